"""Warnings that are meant for the user's own line, however deep in this library they come up."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Type


def warn_user(text: str, category: Type[Warning]) -> None:
    """Warn at the innermost line outside of this library; of the program as a whole if there is
    none, as at its end."""
    frame, level = sys._getframe(1), 2
    while _is_ours(frame):
        if frame.f_back is None:
            warnings.warn_explicit(text, category, sys.argv[0] or "<program>", 0)
            return
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def _is_ours(frame: Any) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in ("synk_theano", "synkhronos")
