"""Reductions: their names, their dtypes, and NumPy's functions for them."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
else:
    Array = np.ndarray


OVER = "_over"
"""Marks an exception of NumPy on overflow and its like, raised at the end of its call."""


class ReduceOp(str, enum.Enum):
    """How values of several ranks become one; the plain strings are accepted everywhere."""

    AVG = "avg"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PROD = "prod"

    __str__ = str.__str__  # "sum", also where enum's own would say "ReduceOp.SUM"

    @classmethod
    def parse(cls, op: str | ReduceOp) -> ReduceOp:
        """Return the member that ``op`` names; ValueError lists the known ones."""
        try:
            return cls(op)
        except ValueError:
            known = ", ".join(repr(member.value) for member in cls)
            raise ValueError(f"unknown reduce op {op!r}; expected one of {known}") from None


UFUNC: dict[ReduceOp, np.ufunc] = {
    ReduceOp.AVG: np.add,
    ReduceOp.SUM: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PROD: np.multiply,
}
"""Combines two operands; an average is a sum, divided at the end."""


def check_reducible(dtype: np.dtype[Any], op: ReduceOp) -> None:
    """Raise TypeError, with the cure, if ``op`` has no honest meaning for ``dtype``."""
    if dtype.kind == "m" and op in (ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX):
        return
    if dtype.kind not in "biufc":
        raise TypeError(f"cannot {op} arrays of dtype {dtype}; expected a numeric dtype")
    if op is ReduceOp.AVG and dtype.kind in "biu":
        raise TypeError(f"cannot average dtype {dtype}; convert to a float dtype, or use 'sum'")
    if dtype.kind == "b" and op in (ReduceOp.SUM, ReduceOp.PROD):
        raise TypeError(
            f"cannot {op} booleans; use 'max' for or, 'min' for and, or convert to an integer dtype"
        )


def check_weight(weight: float | None, op: ReduceOp) -> float:
    """Return the weight as float (1.0 if None); it must be finite, not negative, and for avg."""
    if weight is None:
        return 1.0
    if op is not ReduceOp.AVG:
        raise ValueError(f"weight is only meaningful with op 'avg', got op {op.value!r}")
    value = float(weight)
    if not (math.isfinite(value) and value >= 0.0):
        raise ValueError(f"weight must be finite and not negative, got {weight!r}")
    return value


def positive_weight(weight: float | None, op: ReduceOp, kind: str) -> float:
    """Return the weight of a call to which every rank contributes."""
    checked = check_weight(weight, op)
    if not checked:
        raise ValueError(f"every rank contributes to {kind}: weight must be positive")
    return checked


def scaled(weights: Sequence[float]) -> list[float]:
    """Scale weights by a power of two so that the largest lies in [0.5, 1).

    This changes no bit of an average, and keeps the weights in the range of float32.
    """
    exponent = math.frexp(max(weights))[1]
    return [math.ldexp(weight, -exponent) for weight in weights]


def is_wide(dtype: np.dtype[Any], op: ReduceOp) -> bool:
    """Return whether sums are accumulated in float32, as those of float16."""
    return dtype.type is np.float16 and op not in (ReduceOp.MIN, ReduceOp.MAX)


def combine(
    op: ReduceOp, operands: Sequence[Array], out: Array, weights: Sequence[float] | None = None
) -> Exception | None:
    """Reduce arrays of one dtype and shape into ``out``, strictly in the order given.

    float16 is accumulated in float32 and rounded once. ``weights`` (avg only) is None if all are
    equal; then ``out`` may be the very memory of the first or second operand.

    If the caller's settings ask for NumPy's exception on overflow and its like, return it: the
    result is complete all the same, and the rank in step with the others.
    """
    if len(operands) == 1:
        np.copyto(out, operands[0])
        return None
    if not out.ndim:  # NumPy 1 reckons with scalars in double precision
        operands, out = [operand.reshape(1) for operand in operands], out.reshape(1)
    accidents: list[Exception] = []

    def calm(ufunc: Callable[..., Any], *operands: Any, **keywords: Any) -> Any:
        try:
            return ufunc(*operands, **keywords)
        except (FloatingPointError, RuntimeWarning) as exc:  # it has done its work by then
            accidents.append(exc)
            return keywords.get("out")

    ufunc = UFUNC[op]
    wide = is_wide(out.dtype, op)
    total = np.empty(out.shape, np.float32) if wide else out
    kind = {"dtype": np.float32} if wide else {}
    if weights is not None:
        calm(np.multiply, operands[0], weights[0], out=total, **kind)
        for operand, weight in zip(operands[1:], weights[1:]):
            term = calm(np.multiply, operand, weight, out=np.empty_like(total), **kind)
            calm(ufunc, total, term, out=total)
        calm(np.divide, total, math.fsum(weights), out=total)
    else:
        calm(ufunc, operands[0], operands[1], out=total, **kind)
        for operand in operands[2:]:
            calm(ufunc, total, operand, out=total, **kind)
        if op is ReduceOp.AVG:
            calm(np.divide, total, float(len(operands)), out=total)
    if wide:
        calm(np.copyto, out, total, casting="same_kind")
    return accidents[0] if accidents else None
