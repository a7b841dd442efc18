"""Reductions over ranks in the middle of a graph; see :mod:`synk_core.in_graph`."""

from __future__ import annotations

from synk_core.in_graph import all_reduce

__all__ = ["all_reduce"]
