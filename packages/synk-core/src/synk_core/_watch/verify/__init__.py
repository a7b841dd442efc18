"""Compare the ranks' results with those of plain Theano; see `verify.verify`."""

from __future__ import annotations

from .report import Report
from .verify import verify

__all__ = ["Report", "verify"]
