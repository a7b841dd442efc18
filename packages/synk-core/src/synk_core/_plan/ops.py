"""The names of reduce operations, and which of them fit where.

``avg`` is exact on any split: each contribution is weighted by the rows that it was computed
from. ``c_avg`` ... ``c_gather`` of Synkhronos 1.0 are the same operations, through host memory
even where values lie on devices.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

from synk_core._text import shown
from synk_core.exceptions import OpError, SpecError

REDUCE_OPS = ("avg", "sum", "max", "min", "prod")
"""Reduce operations of collectives on shared variables."""

OUTPUT_OPS = (*REDUCE_OPS, "gather", None)
"""Operations that collect outputs; None is the master's own result."""

UPDATE_OPS = (*REDUCE_OPS, "last")
"""How an update accumulates over slices; "last" keeps the value of the last slice."""

ROWLESS_OP = "rowless"
"""In place of "avg", for values that no row goes into: all slices give the same, and so do all
ranks whose shared variables are equal; the outputs of others are averaged."""


OUTPUT_CURE = (
    "use 'gather' if it has an entry for each row, 'sum', 'max', 'min' or 'prod' if not, or cast "
    "the variable, e.g. T.cast(x, 'float64')"
)


def normalize(op: Any, allowed: Sequence[Optional[str]], what: str) -> Optional[str]:
    """Return the operation's plain name; raise `OpError` if it is not one of `allowed`."""
    if op is None and None in allowed:
        return None
    if isinstance(op, str):
        plain = op[2:] if op.startswith("c_") else op
        if plain in allowed:
            return plain
    raise OpError(
        f"{what}: got reduce op {shown(op)}, expected one of {', '.join(map(repr, allowed))}"
    )


def is_through_host(op: Any) -> bool:
    """Return whether an operation was named with the "c_" that has it done in host memory."""
    return isinstance(op, str) and op.startswith("c_")


def check_dtype(op: Optional[str], dtype: str, what: str, cure: str = OUTPUT_CURE) -> None:
    """Raise `SpecError` for averages of integers, and averages, sums and products of booleans."""
    if op == "avg" and not dtype.startswith(("float", "complex")):
        raise SpecError(
            f"{what}: got op 'avg' for dtype {dtype}, expected a float or complex dtype, because "
            f"an average of integers is no integer; {cure}"
        )
    if dtype == "bool" and op in ("sum", "prod"):
        raise SpecError(
            f"{what}: got op {op!r} for dtype bool, expected 'max' (any), 'min' (all) or 'gather'; "
            f"to count, cast the variable, e.g. T.cast(x, 'int64')"
        )
