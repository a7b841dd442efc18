"""Is what the ranks compute together what plain Theano computes alone? See `_verify`."""

from __future__ import annotations

from ._report import Report
from ._verify import verify

__all__ = ["Report", "verify"]
