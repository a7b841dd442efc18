"""Everything that moves arrays without combining them: from arguments to results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from synk_comm._core import moves
from synk_comm._core.calls import CollectiveCall, Kind, count_bytes, encode, kind_of, text_dtype
from synk_comm._core.lists import (
    as_array,
    bare,
    bundles,
    contiguous,
    flat_bytes,
    is_list,
    pack,
    unpack,
)
from synk_comm._core.ops import Array
from synk_comm._core.steps import Result, Run, Steps, check_out, pickled, unpickled

_BARRIER = CollectiveCall("barrier")
_BARRIER_HEAD = encode(_BARRIER)


class Gathering:
    """barrier, broadcast, gather, all_gather, scatter and all_to_all of one communicator."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def barrier(self) -> Run:
        """Return what waits for all ranks."""
        steps = self._steps

        def run(timeout_s: float | None, *, resuming: bool = False) -> Result:
            deadline = steps.deadline(timeout_s)
            with steps.passing(resuming):
                steps.open(_BARRIER, _BARRIER_HEAD, lambda: 0, deadline, resuming=resuming)
            return None, None

        return run

    # -- from one to all ------------------------------------------------------------------

    def _broadcast_call(self, kind: str, x: Any, root: int) -> CollectiveCall:
        """Check the arguments of a broadcast; return what is said to the others."""
        if x is None and self._steps.rank != root:
            return CollectiveCall(kind, root=root)
        many = is_list(x)
        for array in x if many else [x]:
            if not isinstance(array, np.ndarray):
                got = type(array).__name__
                if self._steps.rank == root:
                    raise TypeError(
                        f"x must be an ndarray, or a list of them, on the root, rank {root}, got "
                        f"{got}; objects go by broadcast_object"
                    )
                raise TypeError(
                    f"x must be an ndarray, a list of them or None: here, on rank "
                    f"{self._steps.rank}, it is where the array of rank {root} goes, got {got}; "
                    "None makes a new one, and objects go by broadcast_object"
                )
            if self._steps.rank != root and not array.flags.writeable:
                raise ValueError("x must be writeable, except on the root")
        kinds = tuple(kind_of(array) for array in (x if many else [x]))
        return CollectiveCall(kind, root=root, arrays=kinds, many=many)

    def broadcast(self, kind: str, x: Any, root: int) -> Run:
        """Check a broadcast; return what does it, and returns ``x``, or what is new."""
        steps = self._steps
        root = steps.check_rank(root)
        if isinstance(x, (int, float, complex, np.generic)):
            return _scalar(self.broadcast(kind, as_array(x), root))
        call = self._broadcast_call(kind, x, root)
        head = encode(call)
        given = bundles(call.arrays, together=call.many)
        source = pack(x if call.many else [x], given[0]) if steps.rank == root else None

        def run(timeout_s: float | None, *, resuming: bool = False) -> Result:
            deadline = steps.deadline(timeout_s)
            with steps.passing(resuming):
                fill = lambda: steps.fabric.post(source)  # noqa: E731
                brought = steps.open(call, head, fill, deadline, resuming=resuming)[root]
                if x is not None:
                    self._spread(list(x) if brought.many else [x], given, root, source, deadline)
                    return x, None
                parts = bundles(brought.arrays, together=brought.many)
                made = [np.empty(shape, text_dtype(dtype)) for dtype, shape in brought.arrays]
                self._spread(made, parts, root, None, deadline)
                return (made if brought.many else bare(made[0])), None

        return run

    def _spread(
        self, arrays: list[Array], parts: Any, root: int, first: Array | None, deadline: float
    ) -> None:
        for which, bundle in enumerate(parts):
            if self._steps.rank == root:
                source = first if which == 0 else pack(arrays, bundle)
                moves.spread(self._steps, root, source, None, deadline, which == 0)
                continue
            alone = arrays[bundle.members[0]]
            usable = len(bundle.members) == 1 and alone.flags.c_contiguous
            target = flat_bytes(alone) if usable else np.empty(bundle.nbytes, np.uint8)
            moves.spread(self._steps, root, None, target, deadline, which == 0)
            unpack(target, bundle, arrays)

    # -- from all to one, or to all ---------------------------------------------------------

    def gather(self, kind: str, x: Any, root: int | None, out: Any) -> Run:
        """Check a gather, or all_gather if ``root`` is None; return what does it."""
        steps = self._steps
        root = None if root is None else steps.check_rank(root)
        receives = root in (None, steps.rank)
        many = is_list(x)
        given = None if x is None else [as_array(array) for array in (x if many else [x])]
        outs = None
        if out is not None and receives:
            if many:
                raise ValueError(f"out of {kind} does not go together with a list of arrays")
            outs = _rows(out, steps.size, kind)
        call = CollectiveCall(
            kind,
            root=-1 if root is None else root,
            arrays=() if given is None else tuple(kind_of(array) for array in given),
            outs=_kinds_of(outs),
            weight=float(given is not None),
            many=many,
        )
        head = encode(call)
        source = None if given is None else _joined(given)

        def run(timeout_s: float | None, *, resuming: bool = False) -> Result:
            deadline = steps.deadline(timeout_s)
            with steps.passing(resuming):
                fill = lambda: steps.fabric.post(source)  # noqa: E731
                calls = steps.open(call, head, fill, deadline, root, resuming=resuming)
                gathered = self._collect(calls, source, outs, root, deadline)
            if not receives:
                return None, None
            return (gathered if out is None else out), None

        return run

    def _collect(
        self,
        calls: Sequence[CollectiveCall],
        source: Array | None,
        outs: Sequence[Array | None] | None,
        root: int | None,
        deadline: float,
    ) -> list[Any]:
        steps = self._steps
        totals = [sum(map(count_bytes, theirs.arrays)) for theirs in calls]
        many = any(theirs.many for theirs in calls)
        inbox: moves.Inbox | None = None
        targets: list[Array | None] = [None] * steps.size
        if root in (None, steps.rank):
            if many:
                kinds: list[Kind | None] = [
                    ("|u1", (total,)) if theirs.arrays else None
                    for total, theirs in zip(totals, calls)
                ]
            else:
                kinds = [theirs.arrays[0] if theirs.arrays else None for theirs in calls]
            avoid = [] if source is None else [source]
            inbox = moves.Inbox(kinds, outs or [None] * steps.size, avoid)
            targets = inbox.flat()
        moves.collect(steps, root, source, targets, totals, deadline)
        if inbox is None:
            return []
        gathered = inbox.taken()
        return _by_array(gathered, calls) if many else _bare_ones(gathered)

    def share(self, obj: Any, deadline: float) -> list[Any]:
        """Send a small object to all ranks, within a collective that has passed the guard."""
        steps = self._steps
        source = pickled(obj)
        call = CollectiveCall("share", arrays=(kind_of(source),))
        head = encode(call)
        calls = steps.open(call, head, lambda: steps.fabric.post(source), deadline)
        return [unpickled(data) for data in self._collect(calls, source, None, None, deadline)]

    # -- dealt ------------------------------------------------------------------------------

    def scatter(self, kind: str, xs: Any, root: int, out: Any) -> Run:
        """Check a scatter; return what does it."""
        root = self._steps.check_rank(root)
        self._steps.check_only_root(kind, xs, root)
        if out is not None:
            check_out(out, None)
        given = self._dealt(kind, xs) if self._steps.rank == root else None
        outs = () if out is None else (kind_of(out),)
        call = CollectiveCall(kind, root=root, arrays=_given_kinds(given), outs=outs)

        def expected(calls: Sequence[CollectiveCall]) -> list[Kind | None]:
            mine = calls[root].arrays[self._steps.rank]
            return [mine if rank == root else None for rank in range(self._steps.size)]

        into: list[Array | None] = [None] * self._steps.size
        into[root] = out
        deal = self._deal(call, given, expected, into)

        def run(timeout_s: float | None, *, resuming: bool = False) -> Result:
            got = deal(timeout_s, resuming=resuming)[root]
            assert got is not None  # noqa: S101 - the root gives to every rank
            return (got if out is not None else bare(got)), None

        return run

    def all_to_all(self, kind: str, xs: Any, out: Any) -> Run:
        """Check an all_to_all; return what does it."""
        given = self._dealt(kind, xs)
        outs = None if out is None else _rows(out, self._steps.size, kind)
        call = CollectiveCall(kind, arrays=_given_kinds(given), outs=_kinds_of(outs))

        def expected(calls: Sequence[CollectiveCall]) -> list[Kind | None]:
            return [theirs.arrays[self._steps.rank] for theirs in calls]

        deal = self._deal(call, given, expected, outs or [None] * self._steps.size)

        def run(timeout_s: float | None, *, resuming: bool = False) -> Result:
            got = deal(timeout_s, resuming=resuming)
            return (_bare_ones(got) if out is None else out), None

        return run

    def _dealt(self, kind: str, xs: Sequence[Any] | None) -> list[Array]:
        size = self._steps.size
        if xs is None or len(xs) != size:
            got = "None" if xs is None else f"a list of {len(xs)}"
            raise ValueError(f"{kind} takes a list of {size} here, one for each rank, got {got}")
        given = [contiguous(as_array(x)) for x in xs]
        if len({x.dtype for x in given}) > 1:
            dtypes = ", ".join(str(x.dtype) for x in given)
            raise TypeError(f"{kind} needs arrays of one dtype, got {dtypes}")
        return given

    def _deal(
        self,
        call: CollectiveCall,
        given: list[Array] | None,
        expected: Callable[[Sequence[CollectiveCall]], list[Kind | None]],
        outs: Sequence[Array | None],
    ) -> Callable[..., list[Array | None]]:
        steps = self._steps
        head = encode(call)
        sources = None if given is None else [flat_bytes(x) for x in given]
        inboxes: list[moves.Inbox] = []

        def begin(calls: Sequence[CollectiveCall]) -> moves.Receive:
            inboxes.append(moves.Inbox(expected(calls), outs, given or []))
            return moves.taker(inboxes[0].flat())

        def run(timeout_s: float | None, *, resuming: bool = False) -> list[Array | None]:
            deadline = steps.deadline(timeout_s)
            with steps.passing(resuming):
                moves.deal(steps, call, head, sources, begin, deadline, resuming)
            return inboxes[0].taken()

        return run


def _scalar(run: Run) -> Run:
    """Return what makes a scalar of the array that it gets."""

    def run_bare(timeout_s: float | None, *, resuming: bool = False) -> Result:
        return run(timeout_s, resuming=resuming)[0][()], None

    return run_bare


def _given_kinds(given: list[Array] | None) -> tuple[Kind, ...]:
    return () if given is None else tuple(kind_of(x) for x in given)


def _kinds_of(outs: Sequence[Array | None] | None) -> tuple[Kind | None, ...]:
    return () if outs is None else tuple(None if o is None else kind_of(o) for o in outs)


def _rows(out: Any, size: int, kind: str) -> list[Array | None]:
    """Return what receives from each rank: the rows of an array, or the members of a list."""
    if isinstance(out, np.ndarray):
        check_out(out, None)
        if not out.ndim or out.shape[0] != size:
            raise ValueError(
                f"the first axis of out of {kind} must have length {size}, one row for each "
                f"rank, got shape {out.shape}"
            )
        return [out[rank, ...] for rank in range(size)]
    if not isinstance(out, (list, tuple)):
        raise TypeError(f"out must be an ndarray or a list of them, got {type(out).__name__}")
    if len(out) != size:
        raise ValueError(f"out of {kind} must be a list of {size}, got {len(out)}")
    for row in out:
        if row is not None:
            check_out(row, None)
    return list(out)


def _bare_ones(arrays: Sequence[Array | None]) -> list[Any]:
    return [None if array is None else bare(array) for array in arrays]


def _joined(given: list[Array]) -> Array:
    flats = [flat_bytes(contiguous(x)) for x in given]
    return flats[0] if len(flats) == 1 else np.concatenate(flats)


def _by_array(
    gathered: list[Array | None], calls: Sequence[CollectiveCall]
) -> list[list[Array | None]]:
    """Cut what came from each rank into its arrays; return, for each array, those of all ranks."""
    count = max(len(theirs.arrays) for theirs in calls)
    lists: list[list[Array | None]] = [[None] * len(calls) for _ in range(count)]
    for rank, (flat, theirs) in enumerate(zip(gathered, calls)):
        start = 0
        for which, kind in enumerate(theirs.arrays):
            array = np.empty(kind[1], text_dtype(kind[0]))
            target = flat_bytes(array)
            if flat is not None:
                np.copyto(target, flat[start : start + target.nbytes])
            start += target.nbytes
            lists[which][rank] = array
    return lists
