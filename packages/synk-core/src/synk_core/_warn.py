"""Warnings that point to the user's own line, however deep in this library they arise."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Optional, Tuple, Type

from ._tracebacks import PACKAGES, package_of

Place = Tuple[str, int]
"""A file and a line in it."""


def warn_user(text: str, category: Type[Warning], place: Optional[Place] = None) -> None:
    """Warn at the innermost line outside of this library; without one, as at the program's end, at
    `place`, or of the program as a whole."""
    frame = _users_frame()
    if frame is None:
        file, line = place or (sys.argv[0] or "<program>", 0)
        warnings.warn_explicit(text, category, file, line)
        return
    module = str(frame.f_globals.get("__name__", "<string>"))
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    file, line = frame.f_code.co_filename, frame.f_lineno
    warnings.warn_explicit(text, category, file, line, module, registry)


def user_place() -> Optional[Place]:
    """Return the innermost line outside of this library; None without one."""
    frame = _users_frame()
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _users_frame() -> Any:
    frame: Any = sys._getframe(1)
    while frame is not None and package_of(frame) in PACKAGES:
        frame = frame.f_back
    return frame
