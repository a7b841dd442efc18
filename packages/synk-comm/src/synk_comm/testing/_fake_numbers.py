"""What the fake NCCL is told, and how it counts, with bfloat16 and the rounding of each step."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, NamedTuple

import numpy as np

from synk_comm._core.ops import Array

DTYPES = ["i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "bfloat16"]
_UFUNCS: list[Callable[..., Any]] = [np.add, np.multiply, np.maximum, np.minimum, np.add]
_AVG = 4
FIRST_OWN_OP = 5


class FakeNcclError(Exception):
    """What the binding raises; ``NCCLError`` there."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(f"{text or 'error'} ({status})")
        self.status = status


class Op(NamedTuple):
    """One call, as it was given."""

    name: str
    source: int
    target: int
    elements: int
    dtype: int
    op: int = 0
    root: int = -1


def itemsize(dtype: int) -> int:
    """Return the bytes of an element."""
    return 2 if DTYPES[dtype] == "bfloat16" else np.dtype(DTYPES[dtype]).itemsize


def read_scalar(address: int, dtype: int) -> Any:
    """Read one element from host memory."""
    return _decoded(
        np.frombuffer(ctypes.string_at(address, itemsize(dtype)), np.uint8), DTYPES[dtype]
    )[0]


def combined(operands: list[Array], dtype: int, op: int, factors: list[Any]) -> Array:
    """Reduce operands given as bytes; averages and own ops multiply first."""
    kind = DTYPES[dtype]
    ufunc = _UFUNCS[min(op, _AVG)]
    total: Any = None
    with np.errstate(all="ignore"):
        for operand, factor in zip(operands, factors):
            values = _decoded(operand, kind)
            if op >= FIRST_OWN_OP:
                values = values * values.dtype.type(factor)
            elif op == _AVG:
                values = values * values.dtype.type(1.0 / len(operands))
            values = _rounded(values, kind)
            total = values if total is None else _rounded(ufunc(total, values), kind)
    return _encoded(total, kind)


def _decoded(memory: Array, kind: str) -> Array:
    if kind != "bfloat16":
        return memory.copy().view(kind)
    return (memory.copy().view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _rounded(values: Array, kind: str) -> Array:
    return _decoded(_encoded(values, kind), kind)


def _encoded(values: Array, kind: str) -> Array:
    if kind != "bfloat16":
        return np.ascontiguousarray(values).view(np.uint8)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    return bits.astype(np.uint16).view(np.uint8)
