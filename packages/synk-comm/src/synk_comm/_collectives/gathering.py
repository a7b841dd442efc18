"""The collectives that move arrays without combining them: from arguments to results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from synk_comm._core import moves
from synk_comm._core.calls import (
    CollectiveCall,
    Kind,
    count_bytes,
    encode,
    kind_of,
    received,
    text_dtype,
)
from synk_comm._core.ops import Array
from synk_comm._core.packing import (
    NUMBERS,
    as_array,
    bare,
    bundles,
    contiguous,
    flat_bytes,
    is_list,
    pack,
    unpack,
)
from synk_comm._core.steps import CheckedCall, Result, Steps, check_out, pickled, unpickled
from synk_comm._core.table import TABLE, Arguments, CollectiveRow

_BARRIER = CollectiveCall("barrier")
_BARRIER_HEAD = encode(_BARRIER)


def barrier(steps: Steps, row: CollectiveRow, given: Arguments) -> CheckedCall:  # noqa: ARG001
    """Prepare a barrier."""
    return CheckedCall(_BARRIER, _BARRIER_HEAD, lambda calls, deadline: (None, None))  # noqa: ARG005


# -- from one to all ----------------------------------------------------------------------


def broadcast(steps: Steps, row: CollectiveRow, given: Arguments) -> CheckedCall:
    """Check the arguments of a broadcast, and prepare it."""
    root, x = steps.check_rank(given.root), given.x
    if isinstance(x, NUMBERS):
        made = broadcast(steps, row, given._replace(x=as_array(x)))
        return made._replace(finish=lambda *how: (made.finish(*how)[0][()], None))
    call = _broadcast_call(steps, row.name, x, root)
    parts = bundles(call.arrays, together=call.many)
    source = pack(x if call.many else [x], parts[0]) if steps.rank == root else None

    def finish(calls: Sequence[CollectiveCall], deadline: float) -> Result:
        brought = calls[root]
        if x is not None:
            _spread(steps, list(x) if brought.many else [x], parts, root, source, deadline)
            return x, None
        made = [np.empty(shape, text_dtype(dtype)) for dtype, shape in brought.arrays]
        comes = bundles(brought.arrays, together=brought.many)
        _spread(steps, made, comes, root, None, deadline)
        return (made if brought.many else bare(made[0])), None

    return CheckedCall(call, encode(call), finish, lambda: steps.fabric.post(source))


def _broadcast_call(steps: Steps, kind: str, x: Any, root: int) -> CollectiveCall:
    """Check the arguments of a broadcast; return the call for the other ranks."""
    is_root = steps.rank == root
    if x is None and not is_root:
        return CollectiveCall(kind, root=root)
    many = is_list(x)
    for array in x if many else [x]:
        if not isinstance(array, np.ndarray):
            got = type(array).__name__
            if is_root:
                raise TypeError(
                    f"x must be an ndarray, or a list of them, on the root, rank {root}, got "
                    f"{got}; objects go by broadcast_object"
                )
            raise TypeError(
                f"x must be an ndarray, a list of them or None: here, on rank {steps.rank}, it is "
                f"where the array of rank {root} goes, got {got}; None makes a new one, and "
                "objects go by broadcast_object"
            )
        if not is_root and not array.flags.writeable:
            raise ValueError("x must be writeable, except on the root")
    kinds = tuple(kind_of(array) for array in (x if many else [x]))
    return CollectiveCall(kind, root=root, arrays=kinds, many=many)


def _spread(
    steps: Steps, arrays: list[Array], parts: Any, root: int, first: Array | None, deadline: float
) -> None:
    for which, bundle in enumerate(parts):
        if steps.rank == root:
            source = first if which == 0 else pack(arrays, bundle)
            moves.spread(steps.fabric, root, source, None, deadline, which == 0)
            continue
        alone = arrays[bundle.members[0]]
        usable = len(bundle.members) == 1 and alone.flags.c_contiguous
        target = flat_bytes(alone) if usable else np.empty(bundle.nbytes, np.uint8)
        moves.spread(steps.fabric, root, None, target, deadline, which == 0)
        unpack(target, bundle, arrays)


# -- from all to one, or to all -----------------------------------------------------------


def gather(steps: Steps, row: CollectiveRow, given: Arguments) -> CheckedCall:
    """Check the arguments of a gather or all_gather, and prepare it."""
    root = steps.check_rank(given.root) if row.root == "receives" else None
    receives = root in (None, steps.rank)
    x, out, many = given.x, given.out if receives else None, is_list(given.x)
    arrays = None if x is None else [as_array(array) for array in (x if many else [x])]
    if out is not None and many:
        raise ValueError(f"out of {row.name} does not go together with a list of arrays")
    outs = None if out is None else _rows(out, steps.size, row.name)
    call = CollectiveCall(
        row.name,
        root=-1 if root is None else root,
        arrays=_kinds_of(arrays),
        outs=_kinds_of(outs),
        weight=float(arrays is not None),
        many=many,
    )
    source = None if arrays is None else _joined(arrays)

    def finish(calls: Sequence[CollectiveCall], deadline: float) -> Result:
        totals = [sum(map(count_bytes, theirs.arrays)) for theirs in calls]
        if not receives:
            moves.collect(steps.fabric, root, source, [None] * steps.size, totals, deadline)
            return None, None
        lists = any(theirs.many for theirs in calls)
        kinds: list[Kind | None] = [
            (("|u1", (total,)) if lists else theirs.arrays[0]) if theirs.arrays else None
            for total, theirs in zip(totals, calls)
        ]
        avoid = [] if source is None else [source]
        inbox = moves.Inbox(kinds, outs or [None] * steps.size, avoid)
        moves.collect(steps.fabric, root, source, inbox.flat(), totals, deadline)
        gathered = inbox.taken()
        if out is not None:
            return out, None
        return (_by_array(gathered, calls) if lists else _bare_ones(gathered)), None

    return CheckedCall(call, encode(call), finish, lambda: steps.fabric.post(source), root)


_SHARE = TABLE["all_gather_object"]._replace(name="share")


def share(steps: Steps, obj: Any, deadline: float) -> list[Any]:
    """Send a small object to all ranks, within a collective that has passed the guard."""
    prepared = gather(steps, _SHARE, Arguments(pickled(obj)))
    return [unpickled(data) for data in steps.make_inside(prepared, deadline)[0]]


# -- an array for each rank ---------------------------------------------------------------


def deal(steps: Steps, row: CollectiveRow, given: Arguments) -> CheckedCall:
    """Check the arguments of a scatter or all_to_all, and prepare it."""
    out, rank, size = given.out, steps.rank, steps.size
    root, senders, alone = -1, list(range(size)), row.root == "sends"
    if alone:
        root = steps.check_rank(given.root)
        senders = [root]
        steps.check_only_root(row.name, given.x, root)
        if out is not None:
            check_out(out, None)
    arrays = _one_for_each(steps, row.name, given.x) if rank in senders else None
    outs = None if out is None else [out] if alone else _rows(out, size, row.name)
    call = CollectiveCall(row.name, root=root, arrays=_kinds_of(arrays), outs=_kinds_of(outs))
    sources = None if arrays is None else [flat_bytes(x) for x in arrays]
    fill, part = moves.first_parts(steps.fabric, sources)

    def finish(calls: Sequence[CollectiveCall], deadline: float) -> Result:
        inbox = moves.Inbox(received(calls, rank), outs or [None] * len(senders), arrays or [])
        receive = moves.taker(list(zip(senders, inbox.flat())))
        moves.deal(steps.fabric, calls, sources, receive, deadline)
        got = inbox.taken()
        if out is not None:
            return out, None
        return (_bare_ones(got)[0] if alone else _bare_ones(got)), None

    return CheckedCall(call, encode(call), finish, fill, part=part)


def _one_for_each(steps: Steps, kind: str, xs: Sequence[Any] | None) -> list[Array]:
    size = steps.size
    if xs is None or len(xs) != size:
        got = "None" if xs is None else f"a list of {len(xs)}"
        raise ValueError(f"{kind} takes a list of {size} here, one for each rank, got {got}")
    given = [contiguous(as_array(x)) for x in xs]
    if len({x.dtype for x in given}) > 1:
        dtypes = ", ".join(str(x.dtype) for x in given)
        raise TypeError(f"{kind} needs arrays of one dtype, got {dtypes}")
    return given


def _kinds_of(arrays: Sequence[Array | None] | None) -> tuple[Any, ...]:
    return () if arrays is None else tuple(None if x is None else kind_of(x) for x in arrays)


def _rows(out: Any, size: int, kind: str) -> list[Array | None]:
    """Return the arrays that receive, by sender: rows of an array, or members of a list."""
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
    """Cut each rank's bytes into its arrays; return, for each array, those of all ranks."""
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
