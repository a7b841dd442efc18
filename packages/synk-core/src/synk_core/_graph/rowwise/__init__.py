"""How the variables of a graph depend on the rows of its inputs; start with `walk`."""

from __future__ import annotations

# Importing a module of rules registers them.
from . import index, nnet, products, scan, shape, tensor  # noqa: F401
from .reduced import describe_value
from .walk import Reason, Value, Walk, find_reshapes, layout_kind, plain, rows, unknown

__all__ = [
    "Reason",
    "Value",
    "Walk",
    "describe_value",
    "find_reshapes",
    "layout_kind",
    "plain",
    "rows",
    "unknown",
]
