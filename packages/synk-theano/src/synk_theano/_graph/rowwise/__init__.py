"""What the variables of a graph have to do with the rows of its inputs; begin with `walk`."""

from __future__ import annotations

# The rules register themselves when they are imported.
from . import index, nnet, products, scan, shape, tensor  # noqa: F401
from .reduced import describe_value
from .walk import Note, Value, Walk, find_reshapes, layout_kind, plain, rows, unknown

__all__ = [
    "Note",
    "Value",
    "Walk",
    "describe_value",
    "find_reshapes",
    "layout_kind",
    "plain",
    "rows",
    "unknown",
]
