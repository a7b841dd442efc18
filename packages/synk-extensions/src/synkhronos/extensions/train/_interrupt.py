"""Ctrl-C that waits for the end of a step."""

from __future__ import annotations

import signal
import threading
from types import TracebackType
from typing import Any


class Interrupt:
    """While it is entered, the first Ctrl-C only sets :attr:`requested`; the second is as usual.

    Python delivers signals to the main thread, so elsewhere nothing is changed; nor where Ctrl-C is
    ignored, or handled by something that is not Python.
    """

    def __init__(self) -> None:
        self.requested = False
        self._usual: Any = None

    def __enter__(self) -> Interrupt:  # noqa: PYI034 - Self is new in Python 3.11
        if threading.current_thread() is threading.main_thread():
            usual = signal.getsignal(signal.SIGINT)
            if callable(usual):
                self._usual = usual
                signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._usual is not None:
            signal.signal(signal.SIGINT, self._usual)

    def _on_signal(self, number: int, frame: Any) -> None:
        if self.requested:
            self._usual(number, frame)
        self.requested = True
