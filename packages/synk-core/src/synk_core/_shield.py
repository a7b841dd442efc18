"""Work that no interrupt, and no deep recursion, may leave half done."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Optional


class Shield:
    """A block in which this package's handlers of signals raise nothing: ``with SHIELD: ...``.

    The last signal is raised again at its end. Outside of the main thread, the only one that
    signals interrupt, it does nothing.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._missed: Optional[int] = None

    def holds(self, number: int) -> bool:
        """Return whether a signal has to wait for the end of the block; called by its handler."""
        if self._depth:
            self._missed = number
        return self._depth > 0

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            self._depth -= 1
            if self._missed is not None and not self._depth:
                number, self._missed = self._missed, None
                signal.raise_signal(number)


FRAMES = 150
"""Nested calls that an order or a start may need; imports take many."""


def require_frames() -> None:
    """Raise RecursionError, before anything is done, if the limit leaves too few calls."""
    limit = sys.getrecursionlimit()
    try:
        _nest(FRAMES)
    except RecursionError:
        text = f"fewer than {FRAMES} nested calls are left until Python's limit; nothing was done. "
        cure = f"Call it less deep, or sys.setrecursionlimit({limit + 2 * FRAMES})"
        raise RecursionError(text + cure) from None


def _nest(depth: int) -> None:
    if depth:
        _nest(depth - 1)


SHIELD = Shield()
"""That of this process."""
