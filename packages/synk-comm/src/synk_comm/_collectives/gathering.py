"""The collectives that move arrays without combining them: from arguments to results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from synk_comm._core import moves
from synk_comm._core.calls import (
    CollectiveCall,
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
    place_for,
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
    root, is_number = steps.check_rank(given.root), isinstance(given.x, NUMBERS)
    x = as_array(given.x) if is_number else given.x
    call = _broadcast_call(steps, row.name, x, root)
    own = list(x) if call.many else [x]
    parts = bundles(call.arrays, together=call.many)
    source = pack(own, parts[0]) if steps.rank == root else None

    def finish(calls: Sequence[CollectiveCall], deadline: float) -> Result:
        kinds, many = calls[root].arrays, calls[root].many
        arrays = [np.empty(s, text_dtype(d)) for d, s in kinds] if x is None else own
        for which, bundle in enumerate(bundles(kinds, together=many)):
            if steps.rank == root:
                data = source if which == 0 and source is not None else pack(arrays, bundle)
                moves.spread(steps.fabric, root, data, deadline, which == 0)
            else:
                target = place_for(bundle, arrays)
                moves.spread(steps.fabric, root, target, deadline, which == 0)
                unpack(target, bundle, arrays)
        if x is None:
            return (arrays if many else bare(arrays[0])), None
        return (bare(x) if is_number else x), None

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
        lists, nothing = any(theirs.many for theirs in calls), [None] * steps.size
        avoid = [] if source is None else [source]
        gathered = [
            moves.room(("|u1", (total,)) if lists else theirs.arrays[0], place, avoid)
            if theirs.arrays and receives
            else None
            for total, theirs, place in zip(totals, calls, outs or nothing)
        ]
        moves.collect(steps.fabric, root, source, gathered, totals, deadline)
        moves.settle(gathered, outs or nothing)
        if out is not None or not receives:
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
        places = outs or [None] * len(senders)
        got = [
            None if kind is None else moves.room(kind, place, arrays or [])
            for kind, place in zip(received(calls, rank), places)
        ]
        moves.deal(steps.fabric, calls, sources, moves.taker(senders, got), deadline)
        moves.settle(got, places)
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
        for which, (dtype, shape) in enumerate(theirs.arrays if flat is not None else ()):
            array = lists[which][rank] = np.empty(shape, text_dtype(dtype))
            stop = start + array.nbytes
            np.copyto(flat_bytes(array), flat[start:stop])
            start = stop
    return lists
