"""Movement of device arrays: broadcast, gather, all_gather, scatter, all_to_all; messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synk_comm._backends.nccl.arrays import DeviceArray, check_apart, maker
from synk_comm._core.calls import ON_DEVICES, CollectiveCall, Kind, received
from synk_comm._core.table import Arguments, CollectiveRow

from .link import NcclCalls
from .steps import DeviceCall, DeviceSteps, Finished

Places = Sequence["DeviceArray | None"]
"""Places of arrays, by rank."""
_UINT8 = 1
"""NCCL's type for bytes, as which all arrays are moved."""


def broadcast(steps: DeviceSteps, row: CollectiveRow, asked: Arguments, deadline: float) -> Any:
    x, root = asked.x, steps.check_rank(asked.root)
    arrays = steps.several(x, "x", written=steps.rank != root)
    call = _call_of(row, root, arrays, many=isinstance(x, (list, tuple)))
    starts = [(array.pointer, array.pointer, array.nbytes) for array in arrays if array.nbytes]
    calls = [("broadcast", *start, _UINT8, root) for start in starts]
    DeviceCall(steps, call, steps.stream_for(arrays), lambda *_: (calls, False)).make(deadline)
    return x


def collect(steps: DeviceSteps, row: CollectiveRow, asked: Arguments, deadline: float) -> Any:
    """Make a gather or all_gather."""
    x, out = asked.x, asked.out
    root = steps.check_rank(asked.root) if row.root == "receives" else -1
    receives = root in (-1, steps.rank)
    many = isinstance(x, (list, tuple))
    given = [] if x is None else steps.several(x, "x")
    likes = (x if many else [x]) if given else [out]
    places: Places | None = None
    if receives and out is not None:
        if many:
            raise ValueError(f"{row.name} takes either a list for x, or out")
        places = steps.per_rank(out, "out", written=True)
        check_apart(_beside(steps, given[0] if given else None), places)
    elif receives:
        maker(likes[0])  # its error comes before the others rely on this rank
    call = _call_of(row, root, given, places, many=many)._replace(
        weight=0.0 if x is None else 1.0,
        place="apart" if places and isinstance(out, (list, tuple)) else "",
    )
    results: list[Any] = []

    def finish(said: Sequence[CollectiveCall], _: Any) -> Finished:
        nccl: list[tuple[Any, ...]] = []
        for number in range(next(len(call.arrays) for call in said if call.weight)):
            kinds = [call.arrays[number] if call.weight else None for call in said]
            source, targets = given[number] if given else None, places or ()
            if receives and places is None:
                values, targets = _rows_for(steps, kinds, likes[number if given else 0])
                results.append(values)
            # All ranks must come to the same choice here.
            alike = all(kind == kinds[0] and not c.place for kind, c in zip(kinds, said))
            if root < 0 and alike and source and targets[0]:
                start = (source.pointer, targets[0].pointer, source.nbytes)
                nccl += [("all_gather", *start, _UINT8)] if source.nbytes else []
            else:
                receivers = range(steps.size) if root < 0 else [root]
                nccl += exchange([(to, source) for to in receivers], enumerate(targets))
        return nccl, False

    stream = steps.stream_for([*given, *(places or ())])
    said = DeviceCall(steps, call, stream, finish).make(deadline)
    if not receives:
        return None
    if places is not None:
        return [out[r] if c.weight else None for r, c in enumerate(said)]
    return results if next(c.many for c in said if c.weight) else results[0]


def _rows_for(
    steps: DeviceSteps, kinds: Sequence[Kind | None], like: Any
) -> tuple[list[Any], Places]:
    """Make the arrays that receive, by sender: rows of one array, if all are alike."""
    first = kinds[0]
    if len(kinds) > 1 and first is not None and kinds.count(first) == len(kinds):
        block, where = steps.made(like, (len(kinds), *first[1]))
        return [block[rank] for rank in range(len(kinds))], where.rows()
    made = [(None, None) if kind is None else steps.made(like, kind[1]) for kind in kinds]
    return [value for value, _ in made], [where for _, where in made]


def exchange(sends: Any, receives: Any) -> NcclCalls:
    """Return NCCL's calls for messages; ``sends`` and ``receives`` are pairs of rank and array."""
    return [
        (name, array.pointer, array.nbytes, _UINT8, rank)
        for name, arrays in (("send", sends), ("recv", receives))
        for rank, array in arrays
        if array is not None and array.nbytes
    ]


def _beside(steps: DeviceSteps, array: DeviceArray | None) -> Places:
    """Return an array at this rank's place in a list of all ranks' arrays."""
    return [array if rank == steps.rank else None for rank in range(steps.size)]


def deal(steps: DeviceSteps, row: CollectiveRow, asked: Arguments, deadline: float) -> Any:
    """Make a scatter or all_to_all."""
    xs, out = asked.x, asked.out
    root = steps.check_rank(asked.root) if row.root == "sends" else -1
    senders = range(steps.size) if root < 0 else [root]
    if root >= 0:
        steps.check_only_root(row.name, xs, root)
    if steps.rank in senders and xs is None:
        raise ValueError(f"{row.name} takes a list of {steps.size} here, got None")
    given = [] if xs is None else steps.per_rank(xs, "xs")
    if len({array.dtype for array in given}) > 1:
        dtypes = ", ".join(sorted({array.dtype for array in given}))
        raise TypeError(f"{row.name} needs arrays of one dtype, got {dtypes}")
    like = xs[0] if isinstance(xs, (list, tuple)) else xs
    places: Places | None = None
    if out is None:
        maker(like)  # its error comes before the others rely on this rank
    elif root >= 0:
        places = [steps.one(out, "out", written=True)]
        check_apart(given, _beside(steps, places[0]))
    else:
        places = steps.per_rank(out, "out", written=True)
        check_apart(given, places, in_place=False)
    values = out if root < 0 else [out]

    def finish(said: Sequence[CollectiveCall], _: Any) -> Finished:
        nonlocal values, places
        if places is None:
            values, places = _rows_for(steps, received(said, steps.rank), like)
        return exchange(enumerate(given), zip(senders, places)), False

    stream = steps.stream_for([*given, *(places or ())])
    DeviceCall(steps, _call_of(row, root, given, places), stream, finish).make(deadline)
    return values[0] if root >= 0 else [values[rank] for rank in range(steps.size)]


def _call_of(
    row: CollectiveRow,
    root: int,
    given: Sequence[DeviceArray],
    places: Places | None = None,
    *,
    many: bool = False,
) -> CollectiveCall:
    """Return the call for the other ranks."""
    kinds = tuple(array.kind for array in given)
    outs = () if places is None else tuple(place and place.kind for place in places)
    return CollectiveCall(row.name + ON_DEVICES, "", root, kinds, outs, many=many)
