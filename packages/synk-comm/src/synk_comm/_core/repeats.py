"""A call that all ranks have made before, repeated with all checks in a few microseconds.

Its parts before and after the round are the same in all back-ends, and prepared once: views into
the slots, and a function that makes the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable, Optional, Tuple

import numpy as np

from .bulk import agreed
from .calls import CollectiveCall, count_bytes, sent_to, text_dtype
from .fabric import RepeatedCall, Shortcut, is_in_step, part_bytes
from .ops import UFUNC, Array, ReduceOp, combine, is_wide
from .packing import bare, typed
from .table import row_of

Views = Tuple[Array, Array]
"""One for each parity."""

Exchange = Callable[[Any], int]
"""``exchange(x)`` makes the round and returns its parity; -1 if some rank makes another call."""

Finish = Callable[[Any, Any, int], Any]
"""``finish(x, out, parity)`` makes the result after the round."""

Parts = Tuple[Optional[Views], Optional[Finish]]
"""The slots for ``x`` before the round; what makes the result after it, None if that is ``x``."""


def repeating(repeated: RepeatedCall, exchange: Exchange, finish: Finish | None) -> Shortcut:
    """Return the shortcut for a call."""
    guard, otherwise = repeated.guard, repeated.otherwise
    lock = guard.lock

    def shortcut(x: Any, out: Any) -> Any:
        entered = synced = False
        try:
            lock.pop()
            entered = True
            parity = exchange(x)
            if parity >= 0:
                synced = True
                result = x if finish is None else finish(x, out, parity)
            else:
                result = otherwise(x, out)
        except BaseException as exc:
            if not entered and isinstance(exc, IndexError):  # no key in the lock
                raise guard.refusal() from None
            guard.leave(exc, in_step=synced or is_in_step(exc))
            raise
        lock.append(None)
        return result

    return shortcut


def parts_of(slots: Callable[[int], Views], calls: Sequence[CollectiveCall], rank: int) -> Parts:
    """Return the parts of a rank's repeated call; ``slots`` returns both slots of any rank."""
    row, root, size = row_of(calls[0].kind), calls[0].root, len(calls)
    if not row.sends:
        return None, lambda x, out, parity: calls  # noqa: ARG005
    dealt, part = row.sends == "parts", part_bytes(slots(rank)[0].nbytes, size)

    def sent(sender: int, receiver: int) -> Views | None:
        """Return the place of a rank's array for another one; None if it sends nothing."""
        kind = sent_to(receiver, calls[sender], size)
        sends = calls[sender].weight and (row.root != "sends" or sender == root)
        if kind is None or not sends:
            return None
        start = receiver * part if dealt else 0
        stop, dtype = start + count_bytes(kind), text_dtype(kind[0])
        even, odd = (typed(slot[start:stop], dtype, kind[1]) for slot in slots(sender))
        return even, odd

    mine, views = sent(rank, 0), [sent(sender, rank) for sender in range(size)]
    if mine is not None and dealt:  # all parts, as an array with a first axis of ranks
        even, odd = (
            np.lib.stride_tricks.as_strided(block, (size, *block.shape), (part, *block.strides))
            for block in mine
        )
        mine = even, odd
    if row.root == "receives" and rank != root:
        return mine, lambda x, out, parity: None  # noqa: ARG005
    if row.makes == "rows":
        return mine, _rows_of(views)
    if row.makes == "fold":
        return mine, _fold(calls, rank, views, from_x=not dealt)
    origin = views[root]
    assert origin is not None  # noqa: S101 - the root sends
    if row.makes == "fill" and rank == root:
        return mine, None
    return mine, _one_of(origin, into_x=row.makes == "fill")


def _one_of(origin: Views, *, into_x: bool) -> Finish:
    """Return a function that takes the root's array."""

    def finish(x: Any, out: Any, parity: int) -> Any:
        target = x if into_x else out
        if target is None:
            return bare(origin[parity].copy())
        target[...] = origin[parity]
        return target

    return finish


def _rows_of(views: Sequence[Views | None]) -> Finish:
    """Return a function that makes a list of all ranks' arrays, or fills ``out``."""

    def finish(x: Any, out: Any, parity: int) -> Any:  # noqa: ARG001
        if out is None:
            return [None if pair is None else bare(pair[parity].copy()) for pair in views]
        for r, pair in enumerate(views):
            if pair is not None:
                out[r, ...] = pair[parity]
        return out

    return finish


def _fold(
    calls: Sequence[CollectiveCall], rank: int, views: Sequence[Views | None], *, from_x: bool
) -> Finish:
    """Return a function that reduces all views; ``from_x`` if it reads ``x``, not the own one."""
    op, _, factors, *_ = agreed(calls)
    operands = [(pair, from_x and r == rank) for r, pair in enumerate(views) if pair is not None]
    like = operands[0][0][0]
    dtype, shape = like.dtype, like.shape
    if not is_wide(dtype, op) and dtype.isnative and len(operands) == len(views) == 2:
        return _add(op, rank, [pair for pair, _ in operands], factors, from_x=from_x)

    def fold(x: Any, out: Any, parity: int) -> Any:
        total = np.empty(shape, dtype) if out is None else out
        arrays = [x if own and out is None else pair[parity] for pair, own in operands]
        accident = combine(op, arrays, total, factors)
        if accident is not None:
            raise accident
        return total if shape or out is not None else total[()]

    return fold


def _add(op: ReduceOp, rank: int, views: Sequence[Views], factors: Any, *, from_x: bool) -> Finish:
    """Return the function of ``_fold`` for two operands, in one call of Python."""
    dtype, shape = views[0][0].dtype, views[0][0].shape
    ufunc = UFUNC[op]
    own, peer = views[rank], views[1 - rank]
    divide = np.divide if op is ReduceOp.AVG else None
    divisor = math.fsum(factors) if factors else 2.0

    def add(x: Any, out: Any, parity: int) -> Any:
        mine = x if from_x else own[parity]  # the array is quicker to read than the slot
        # Always in rank order: it matters to the bits of NaNs.
        first, second = (peer[parity], mine) if rank else (mine, peer[parity])
        try:
            if factors:  # with a dtype: NumPy 1 reckons with scalars in double precision
                first = np.multiply(first, factors[0], dtype=dtype)
                second = np.multiply(second, factors[1], dtype=dtype)
            if out is None and shape:
                total = ufunc(first, second, order="C")
            else:
                # By name: NumPy 2.5 deprecates it by position for the largest and smallest.
                total = ufunc(first, second, out=np.empty(shape, dtype) if out is None else out)
            if divide is not None:
                divide(total, divisor, out=total, dtype=dtype)
            return total if shape or out is not None else total[()]
        except (FloatingPointError, RuntimeWarning):  # the result is completed all the same
            if out is not None:
                combine(op, [pair[parity] for pair in views], out, factors)
            raise

    return add
