"""The import path of `Data` in release 1.0."""

from __future__ import annotations

from synk_core import Data

__all__ = ["Data"]
