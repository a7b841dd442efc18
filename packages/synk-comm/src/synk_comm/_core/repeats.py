"""Where the arrays of a repeated call lie in the slots, and how its result is made of them.

A back-end's shortcut does the round in its own way; what comes before and after it is the same for
all, and is prepared here once: views into the slots, and a function that makes the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional, Protocol, Tuple

import numpy as np

from .calls import CollectiveCall, Kind, count_bytes, text_dtype
from .lists import bare, typed
from .ops import Array, ReduceOp, combine, is_wide, scaled, ufunc_of

Views = Tuple[Array, Array]
"""One for each parity."""

Finish = Callable[[Any, Any, int], Any]
"""``finish(x, out, parity)`` makes the result after the round."""

Parts = Tuple[Optional[Views], Finish]
"""The slots for ``x`` before the round; the function to call after it."""


class WholeSlots(Protocol):
    """The part of a fabric whose slots can all be seen at once."""

    size: int
    slot_bytes: int

    def slots(self, rank: int) -> tuple[Array, Array]:
        """Return both slots of a rank, that of even rounds first."""


def parts_of(fabric: WholeSlots, calls: Sequence[CollectiveCall], rank: int) -> Parts:
    """Return what a rank does before and after the round of calls that have been made before."""
    maker = _MAKERS.get(calls[0].kind, _agree)
    return maker(_Slots(fabric), calls, rank)


class _Slots:
    """Arrays in the slots, as the general way lays them out."""

    def __init__(self, fabric: WholeSlots) -> None:
        self._fabric = fabric

    def whole(self, rank: int, kind: Kind) -> Views:
        """Return the array at the begin of a rank's slots."""
        return self._at(rank, kind, 0)

    def part(self, rank: int, dest: int, kind: Kind) -> Views:
        """Return the array in a rank's slots that is meant for one other rank."""
        return self._at(rank, kind, dest * self._part_bytes)

    def dealt(self, rank: int, kind: Kind) -> Views:
        """Return all parts of a rank's slots as one array with a first axis of ranks."""
        count, *shape = kind[1]
        first, second = self.part(rank, 0, (kind[0], tuple(shape)))
        strides = (self._part_bytes, *first.strides)
        make = np.lib.stride_tricks.as_strided
        return make(first, (count, *shape), strides), make(second, (count, *shape), strides)

    @property
    def _part_bytes(self) -> int:
        return self._fabric.slot_bytes // self._fabric.size // 64 * 64

    def _at(self, rank: int, kind: Kind, start: int) -> Views:
        nbytes, dtype = count_bytes(kind), text_dtype(kind[0])
        even, odd = (
            typed(slot[start : start + nbytes], dtype, kind[1]) for slot in self._fabric.slots(rank)
        )
        return even, odd


def _agree(slots: _Slots, calls: Sequence[CollectiveCall], rank: int) -> Parts:  # noqa: ARG001
    return None, lambda x, out, parity: calls  # noqa: ARG005


def _broadcast(slots: _Slots, calls: Sequence[CollectiveCall], rank: int) -> Parts:
    root = calls[0].root
    origin = slots.whole(root, calls[root].arrays[0])

    def receive(x: Any, out: Any, parity: int) -> Any:  # noqa: ARG001
        x[...] = origin[parity]
        return x

    def keep(x: Any, out: Any, parity: int) -> Any:  # noqa: ARG001
        return x

    def renew(x: Any, out: Any, parity: int) -> Any:  # noqa: ARG001
        return bare(origin[parity].copy())

    if rank == root:
        return origin, keep
    return None, receive if calls[rank].arrays else renew


def _gather(slots: _Slots, calls: Sequence[CollectiveCall], rank: int) -> Parts:
    views = [slots.whole(r, c.arrays[0]) if c.arrays else None for r, c in enumerate(calls)]

    if calls[0].root not in (-1, rank):
        return views[rank], _nothing
    return views[rank], _rows_of(views)


def _scatter(slots: _Slots, calls: Sequence[CollectiveCall], rank: int) -> Parts:
    root = calls[0].root
    kinds = calls[root].arrays
    own = slots.part(root, rank, kinds[rank])

    def finish(x: Any, out: Any, parity: int) -> Any:  # noqa: ARG001
        if out is None:
            return own[parity].copy()
        out[...] = own[parity]
        return out

    bared = _baring(finish, kinds[rank])
    if rank != root:
        return None, bared
    dtype, shape = kinds[0]
    return slots.dealt(root, (dtype, (len(kinds), *shape))), bared


def _all_to_all(slots: _Slots, calls: Sequence[CollectiveCall], rank: int) -> Parts:
    views = [slots.part(r, rank, theirs.arrays[rank]) for r, theirs in enumerate(calls)]
    dtype, shape = calls[rank].arrays[0]
    return slots.dealt(rank, (dtype, (len(calls), *shape))), _rows_of(views)


def _reduce_scatter(slots: _Slots, calls: Sequence[CollectiveCall], rank: int) -> Parts:
    dtype, (length, *shape) = calls[0].arrays[0]
    rows = (length // len(calls), *shape)
    views = [slots.part(r, rank, (dtype, rows)) for r in range(len(calls))]
    fold = _fold(calls, rank, views, (dtype, rows))

    def finish(x: Any, out: Any, parity: int) -> Any:  # noqa: ARG001
        return fold(None, out, parity)

    even, odd = slots.dealt(rank, (dtype, (len(calls), *rows)))
    return (even, odd), finish


def _reduce(slots: _Slots, calls: Sequence[CollectiveCall], rank: int) -> Parts:
    kind = next(theirs.arrays[0] for theirs in calls if theirs.weight)
    views = [slots.whole(r, kind) for r in range(len(calls))]
    mine = views[rank] if calls[rank].weight else None
    if calls[0].root not in (-1, rank):
        return mine, _nothing
    return mine, _baring(_fold(calls, rank, views, kind), kind)


def _fold(calls: Sequence[CollectiveCall], rank: int, views: list[Views], kind: Kind) -> Finish:
    """Return what reduces all ranks' views; its ``x``, if not None, stands for the own one."""
    op, dtype, shape = ReduceOp(calls[0].op), text_dtype(kind[0]), kind[1]
    ranks = [r for r, theirs in enumerate(calls) if theirs.weight]
    weights = [calls[r].weight for r in ranks]
    factors = None if min(weights) == max(weights) else scaled(weights)
    if len(ranks) == len(views) == 2 and not factors and not is_wide(dtype, op) and dtype.isnative:
        return _add(op, rank, views, kind)

    def fold(x: Any, out: Any, parity: int) -> Any:
        total = np.empty(shape, dtype) if out is None else out
        operands = [
            x if r == rank and x is not None and out is None else views[r][parity] for r in ranks
        ]
        accident = combine(op, operands, total, factors)
        if accident is not None:
            raise accident
        return total

    return fold


def _add(op: ReduceOp, rank: int, views: list[Views], kind: Kind) -> Finish:
    """Return what ``_fold`` does, for two equal operands that are the result's dtype."""
    dtype, shape = text_dtype(kind[0]), kind[1]
    scalar = shape == ()
    ufunc = ufunc_of(op)
    own, peer = views[rank], views[1 - rank]
    divide = np.divide if op is ReduceOp.AVG else None

    def add(x: Any, out: Any, parity: int) -> Any:
        mine = own[parity] if x is None else x  # the array is quicker to read than the slot
        # Always in rank order: it matters to the bits of NaNs.
        first, second = (peer[parity], mine) if rank else (mine, peer[parity])
        try:
            if out is None and not scalar:
                total = ufunc(first, second, order="C")
            else:
                # By name: NumPy 2.5 deprecates it by position for the largest and smallest.
                total = ufunc(first, second, out=np.empty(shape, dtype) if out is None else out)
            return total if divide is None else divide(total, 2.0, out=total)
        except (FloatingPointError, RuntimeWarning):
            # The caller's settings ask for that. The result is completed all the same.
            if out is not None:
                combine(op, [pair[parity] for pair in views], out)
            raise

    return add


def _baring(finish: Finish, kind: Kind) -> Finish:
    """Return what makes a scalar where ``finish`` makes a new array without axes."""

    def finish_bare(x: Any, out: Any, parity: int) -> Any:
        made = finish(x, out, parity)
        return made[()] if out is None else made

    return finish if kind[1] else finish_bare


def _rows_of(views: Sequence[Views | None]) -> Finish:
    """Return what makes a list of arrays, or fills the rows of ``out``; None where nothing came."""

    def finish(x: Any, out: Any, parity: int) -> Any:  # noqa: ARG001
        if out is None:
            return [None if pair is None else bare(pair[parity].copy()) for pair in views]
        rows = (out[r, ...] for r in range(len(out))) if isinstance(out, np.ndarray) else out
        for row, pair in zip(rows, views):
            if pair is not None:
                row[...] = pair[parity]
        return out

    return finish


def _nothing(x: Any, out: Any, parity: int) -> None:
    """End a call on a rank that gets no result."""


_MAKERS: dict[str, Callable[[_Slots, Sequence[CollectiveCall], int], Parts]] = {
    "all_gather": _gather,
    "all_reduce": _reduce,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "gather": _gather,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "scatter": _scatter,
}
