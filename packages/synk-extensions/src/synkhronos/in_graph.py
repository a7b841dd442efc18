"""Reductions over ranks in the middle of a graph; see :mod:`synk_core.in_graph`."""

from __future__ import annotations

from synk_core.in_graph import all_gather, all_reduce, positions

__all__ = ["all_gather", "all_reduce", "positions"]
