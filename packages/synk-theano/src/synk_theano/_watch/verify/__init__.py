"""Is what the ranks compute together what plain Theano computes alone? See `_watch.verify`."""

from __future__ import annotations

from .report import Report
from .verify import verify

__all__ = ["Report", "verify"]
