"""What ranks tell each other before a call on device arrays, and which NCCL types carry it.

All pure: no pointer is followed here, and nothing is sent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any, NamedTuple, Optional, Tuple

import numpy as np

from synk_comm._backends.nccl.arrays import BFLOAT16, DeviceArray
from synk_comm._core.calls import mismatch, text_dtype
from synk_comm._core.ops import ReduceOp, check_reducible, scaled

Kind = Tuple[str, Tuple[int, ...]]

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
_SHOWN = 8


class Said(NamedTuple):
    """One rank's call, as the others are told of it.

    Attributes:
        kind: name of the method.
        op: reduce op, or "".
        root: root rank, or -1.
        arrays: dtype and shape of each array brought, or looked for.
        outs: if given, what is there for the results, by the rank they come from; None where
            nothing comes.
        weight: of this rank's contribution; 0 if it contributes nothing.
        many: ``arrays`` is a list, on each of which the collective is done.
        block: if equal arrays come from all ranks, there is one block of memory for them.
    """

    kind: str
    op: str = ""
    root: int = -1
    arrays: Tuple[Kind, ...] = ()
    outs: Tuple[Optional[Kind], ...] = ()
    weight: float = 1.0
    many: bool = False
    block: bool = True

    def __str__(self) -> str:
        words = [self.op] if self.op else []
        words.extend(f"{dtype} {shape}" for dtype, shape in self.arrays[:_SHOWN])
        if len(self.arrays) > _SHOWN:
            words.append(f"... {len(self.arrays)} arrays in all")
        if any(self.outs):
            fits = [
                "nothing" if out is None else f"{out[0]} {out[1]}" for out in self.outs[:_SHOWN]
            ]
            words.append(f"out={', '.join(fits)}")
        if not self.weight:
            words.append("contributing nothing")
        elif self.weight != 1.0:
            words.append(f"weight {self.weight:g}")
        if self.root >= 0:
            words.append(f"root {self.root}")
        return f"{self.kind}({', '.join(words)}) of device arrays"

    def to_text(self) -> str:
        """Return what ``from_text`` reads."""
        said = [self.arrays, self.outs, self.many, self.block]
        return json.dumps(said, separators=(",", ":"))

    def with_text(self, text: str) -> Said:
        """Return this with what ``to_text`` wrote."""
        arrays, outs, many, block = json.loads(text)
        return self._replace(
            arrays=tuple(_kind(array) for array in arrays),
            outs=tuple(None if out is None else _kind(out) for out in outs),
            many=bool(many),
            block=bool(block),
        )


def _kind(said: Any) -> Kind:
    dtype, shape = said
    return str(dtype), tuple(int(n) for n in shape)


def count_bytes(kind: Kind) -> int:
    """Return the length of an array in bytes."""
    dtype, shape = kind
    return math.prod(shape) * (2 if dtype == BFLOAT16 else text_dtype(dtype).itemsize)


# -- do the calls fit together? -----------------------------------------------------------

_OPTIONAL = ("reduce", "all_reduce", "gather", "all_gather")


def check_agreement(calls: Sequence[Said]) -> None:
    """Raise MismatchError, the same on every rank, unless the calls fit together."""
    first = calls[0]
    if first.weight and all(call is first for call in calls):
        return
    problem = _disagreement(calls)
    if problem is not None:
        raise mismatch(problem, calls)


def _disagreement(calls: Sequence[Said]) -> str | None:
    first = calls[0]
    kind = first.kind
    if any((call.kind, call.op, call.root) != (kind, first.op, first.root) for call in calls):
        return "the ranks called different collectives"
    if kind in _OPTIONAL and not any(call.weight for call in calls):
        return f"no rank contributes to this {kind}"
    gathering = kind in ("gather", "all_gather")
    brought = [call for call in calls if call.arrays]
    if kind == "scatter":
        brought = [calls[first.root]]
    if kind != "all_to_all" and len({(call.many, len(call.arrays)) for call in brought}) > 1:
        return f"the ranks brought different numbers of arrays to this {kind}"
    if len({tuple(dtype for dtype, _ in call.arrays) for call in brought}) > 1:
        return f"the ranks brought different dtypes to this {kind}"
    if gathering:
        if any(call.outs for call in calls) and any(call.many for call in calls):
            return f"this {kind} got a list from one rank and out from another"
        if len({tuple(len(shape) for _, shape in call.arrays) for call in brought}) > 1:
            return f"the ranks brought different numbers of dimensions to this {kind}"
    elif kind not in ("scatter", "all_to_all") and len({call.arrays for call in brought}) > 1:
        return f"the ranks brought different shapes to this {kind}"
    for rank, call in enumerate(calls):
        if call.outs:
            comes = received(calls, rank)
            if list(call.outs) != comes:
                return f"out of rank {rank} does not fit what this {kind} would put there"
    return None


def received(calls: Sequence[Said], receiver: int) -> list[Kind | None]:
    """Return what a rank gets from each rank (of a scatter: the one array that it gets)."""
    kind, root = calls[0].kind, calls[0].root
    if kind == "scatter":
        return [calls[root].arrays[receiver]]
    if kind == "all_to_all":
        return [call.arrays[receiver] for call in calls]
    return [call.arrays[0] if call.weight and call.arrays else None for call in calls]


# -- reductions in NCCL's terms -----------------------------------------------------------


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


class Plan(NamedTuple):
    """A call of a reduction: what is the same whenever it is called with the like arrays.

    Attributes:
        said: what peers are told.
        hows: how each array is combined.
        counts: how many of NCCL's elements each has.
    """

    said: Said
    hows: Tuple[Reduction, ...]
    counts: Tuple[int, ...]


@lru_cache(maxsize=1024)
def plan(
    kind: str, op: ReduceOp, root: int, arrays: Tuple[Kind, ...], weight: float, many: bool
) -> Plan:
    """Return the plan of a call; TypeError if NCCL cannot combine one of the dtypes."""
    hows = tuple(reduction(dtype, op) for dtype, _ in arrays)
    counts = tuple(math.prod(shape) * how.parts for (_, shape), how in zip(arrays, hows))
    return Plan(Said(kind, op.value, root, arrays, (), weight, many), hows, counts)


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
    """Tell whether arrays are alike and lie one after the other."""
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
    """Raise ValueError if what is written overlaps what is read, or what else is written.

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
