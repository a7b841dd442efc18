"""The import path of `Function` in release 1.0."""

from __future__ import annotations

from synk_core import Function

__all__ = ["Function"]
