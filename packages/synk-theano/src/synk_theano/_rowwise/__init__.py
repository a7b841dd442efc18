"""What the variables of a graph have to do with the rows of its inputs; begin with `_walk`."""

from __future__ import annotations

# The rules register themselves when they are imported.
from . import _all_reduce, _index, _nnet, _products, _scan, _shape, _tensor  # noqa: F401
from ._reduced import describe_value
from ._walk import Note, Value, Walk, find_reshapes, layout_kind, plain, rows, unknown

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
