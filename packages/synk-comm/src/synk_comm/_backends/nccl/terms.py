"""Reductions in NCCL's terms, and overlaps of device arrays.

All pure: no pointer is followed here, and nothing is sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple, Tuple

import numpy as np

from synk_comm._backends.nccl.arrays import BFLOAT16, DeviceArray
from synk_comm._core.calls import ON_DEVICES, CollectiveCall, Kind, text_dtype
from synk_comm._core.ops import ReduceOp, check_reducible, scaled

UINT8 = 1
"""NCCL's type for bytes: all that is moved, not combined, travels as this."""

_SUM, _PROD, _MAX, _MIN, _AVG = range(5)
_OPS = {ReduceOp.SUM: _SUM, ReduceOp.PROD: _PROD, ReduceOp.MAX: _MAX, ReduceOp.MIN: _MIN}
_TYPES = {
    "|i1": 0,
    "|u1": 1,
    "<i4": 2,
    "<u4": 3,
    "<i8": 4,
    "<u8": 5,
    "<f2": 6,
    "<f4": 7,
    "<f8": 8,
    BFLOAT16: 9,
}
_PARTS = {"<c8": "<f4", "<c16": "<f8"}


def count_bytes(kind: Kind) -> int:
    """Return the length of an array in bytes."""
    dtype, shape = kind
    return math.prod(shape) * (2 if dtype == BFLOAT16 else text_dtype(dtype).itemsize)


class Reduction(NamedTuple):
    """How a dtype is combined.

    Attributes:
        type: NCCL's data type.
        parts: how many of these make up an element: 2 for complex numbers.
        dtype: of these, as text.
    """

    type: int
    parts: int
    dtype: str


def reduction(dtype: str, op: ReduceOp) -> Reduction:
    """Return how NCCL combines a dtype; TypeError, with the cure, if it cannot."""
    if dtype == BFLOAT16:
        return Reduction(_TYPES[dtype], 1, dtype)
    if text_dtype(dtype).isnative:
        check_reducible(text_dtype(dtype), op)
    if dtype == "|b1":
        return Reduction(UINT8, 1, "|u1")  # only min and max are left: and, or
    if dtype in _PARTS:
        if op not in (ReduceOp.SUM, ReduceOp.AVG):
            raise TypeError(
                f"NCCL cannot {op} complex numbers, only sum and avg; reduce a copy in host memory"
            )
        return Reduction(_TYPES[_PARTS[dtype]], 2, _PARTS[dtype])
    if dtype not in _TYPES:
        raise TypeError(
            f"NCCL cannot {op} arrays of dtype {text_dtype(dtype)}; convert to one of int8, uint8, "
            "int32, uint32, int64, uint64, float16, float32, float64, or reduce in host memory"
        )
    return Reduction(_TYPES[dtype], 1, dtype)


class NcclReduction(NamedTuple):
    """The part of a reduction that is the same for all calls with such arrays.

    Attributes:
        call: what the ranks compare.
        hows: how each array is combined.
        counts: how many of NCCL's elements each has.
    """

    call: CollectiveCall
    hows: Tuple[Reduction, ...]
    counts: Tuple[int, ...]


@lru_cache(maxsize=1024)
def plan(
    kind: str, op: ReduceOp, root: int, arrays: Tuple[Kind, ...], weight: float, many: bool
) -> NcclReduction:
    """Return the plan of a call; TypeError if NCCL cannot combine one of the dtypes."""
    hows = tuple(reduction(dtype, op) for dtype, _ in arrays)
    counts = tuple(math.prod(shape) * how.parts for (_, shape), how in zip(arrays, hows))
    call = CollectiveCall(kind + ON_DEVICES, op.value, root, arrays, (), weight, many)
    return NcclReduction(call, hows, counts)


def plain_op(op: ReduceOp, weights: Sequence[float]) -> int | None:
    """Return NCCL's own op; None if the average needs each rank to multiply by a factor."""
    if op is not ReduceOp.AVG:
        return _OPS[op]
    return _AVG if weights.count(weights[0]) == len(weights) else None


def factor(weights: Sequence[float], rank: int) -> float:
    """Return what a rank multiplies its array by in a weighted average."""
    small = scaled(weights)
    return small[rank] / math.fsum(small)


def element(value: float, dtype: str) -> bytes:
    """Return a number as the bytes of an element."""
    if dtype != BFLOAT16:
        return np.asarray(value, text_dtype(dtype)).tobytes()
    bits = int(np.asarray(value, np.float32).view(np.uint32))
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).to_bytes(2, "little")


def neutral(op: ReduceOp, dtype: str) -> bytes:
    """Return the element that changes nothing when it is combined."""
    if op in (ReduceOp.SUM, ReduceOp.AVG):
        return element(0, dtype)
    if op is ReduceOp.PROD:
        return element(1, dtype)
    if dtype == BFLOAT16 or text_dtype(dtype).kind == "f":
        return element(-math.inf if op is ReduceOp.MAX else math.inf, dtype)
    limits = np.iinfo(text_dtype(dtype))
    return element(limits.min if op is ReduceOp.MAX else limits.max, dtype)


def is_block(arrays: Sequence[DeviceArray | None]) -> bool:
    """Return whether arrays are alike and lie one after the other."""
    first = arrays[0]
    return first is not None and all(
        array is not None
        and array.kind == first.kind
        and array.pointer == first.pointer + number * first.nbytes
        for number, array in enumerate(arrays)
    )


def check_apart(
    reads: Sequence[DeviceArray | None],
    writes: Sequence[DeviceArray | None],
    *,
    in_place: bool = True,
) -> None:
    """Raise ValueError if an array to be written overlaps another array of the call.

    Args:
        reads, writes: one after the other, side by side; None where there is nothing.
        in_place: whether an array may be read and written if both stand side by side.
    """
    spans: list[tuple[int, int, bool]] = []
    for read, write in zip_longest(reads, writes):
        if in_place and read and write and (read.pointer, read.kind) == (write.pointer, write.kind):
            spans.append((write.pointer, write.pointer + write.nbytes, True))
            continue
        spans.extend(
            (array.pointer, array.pointer + array.nbytes, array is write)
            for array in (read, write)
            if array is not None
        )
    last_end = last_written = 0
    for start, end, written in sorted(span for span in spans if span[0] < span[1]):
        if start < last_written or (written and start < last_end):
            raise ValueError(
                "out overlaps an array that is read, or itself; NCCL can only work in place if "
                "both are the same memory, from beginning to end"
            )
        last_end = max(last_end, end)
        last_written = max(last_written, end) if written else last_written


def check_like(given: Sequence[DeviceArray], outs: Sequence[DeviceArray]) -> None:
    """Raise ValueError unless each out can receive the result for the array given."""
    if len(given) != len(outs):
        raise ValueError(f"out must be a list like x, of {len(given)} arrays, got {len(outs)}")
    for x, out in zip(given, outs):
        if x.kind != out.kind:
            raise ValueError(
                f"out must be like x, {x.dtype} {x.shape}, got {out.dtype} {out.shape}"
            )
