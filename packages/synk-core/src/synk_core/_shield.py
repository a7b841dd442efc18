"""Work that no interrupt may leave half done."""

from __future__ import annotations

import signal
import threading
from typing import Optional


class Shield:
    """A block in which this package's handlers of signals raise nothing: ``with SHIELD: ...``.

    What has come meanwhile comes again at its end. In other threads than the main one, which is the
    only one that signals interrupt, it does nothing.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._missed: Optional[int] = None

    def holds(self, number: int) -> bool:
        """Return whether a signal, whose handler asks, has to wait for the end of the block."""
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


SHIELD = Shield()
"""That of this process."""
