"""Reductions in NCCL's terms, and overlaps of device arrays.

All pure: no pointer is followed here, and nothing is sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from synk_comm._backends.nccl.arrays import BFLOAT16, DeviceArray
from synk_comm._core.calls import Kind, text_dtype
from synk_comm._core.ops import ReduceOp, check_reducible

UINT8 = 1
"""NCCL's type for bytes: all that is moved, not combined, travels as this."""

_SUM, _PROD, _MAX, _MIN, _AVG = range(5)
_OPS = {ReduceOp.SUM: _SUM, ReduceOp.PROD: _PROD, ReduceOp.MAX: _MAX, ReduceOp.MIN: _MIN}
_TYPES = ["|i1", "|u1", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", BFLOAT16]
"""dtypes, by the numbers that NCCL gives them."""
_PARTS = {"<c8": "<f4", "<c16": "<f8"}


class Combined(NamedTuple):
    """How NCCL combines an array.

    Attributes:
        type: NCCL's data type.
        dtype: the same as text; of complex numbers that of their parts.
        elements: how many of these the array has.
    """

    type: int
    dtype: str
    elements: int


@lru_cache(maxsize=1024)
def combined(kind: Kind, op: ReduceOp) -> Combined:
    """Return how NCCL combines an array; TypeError, with the cure, if it cannot."""
    dtype, shape = kind
    elements = math.prod(shape)
    if dtype != BFLOAT16 and text_dtype(dtype).isnative:
        check_reducible(text_dtype(dtype), op)
    if dtype == "|b1":
        dtype = "|u1"  # only min and max are left: and, or
    elif dtype in _PARTS:
        if op not in (ReduceOp.SUM, ReduceOp.AVG):
            raise TypeError(
                f"NCCL cannot {op} complex numbers, only sum and avg; reduce a copy in host memory"
            )
        dtype, elements = _PARTS[dtype], 2 * elements
    elif dtype not in _TYPES:
        raise TypeError(
            f"NCCL cannot {op} arrays of dtype {text_dtype(dtype)}; convert to one of int8, uint8, "
            "int32, uint32, int64, uint64, float16, float32, float64, or reduce in host memory"
        )
    return Combined(_TYPES.index(dtype), dtype, elements)


def plain_op(op: ReduceOp, weights: Sequence[float]) -> int | None:
    """Return NCCL's own op; None if the average needs each rank to multiply by a factor."""
    if len(weights) == 1:
        return _SUM  # a copy: NCCL 2.28 leaves out the last elements of some averages of one rank
    if op is not ReduceOp.AVG:
        return _OPS[op]
    return _AVG if weights.count(weights[0]) == len(weights) else None


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
