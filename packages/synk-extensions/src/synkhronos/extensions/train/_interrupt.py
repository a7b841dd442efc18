"""Signals while a training is under way: they end it after a step."""

from __future__ import annotations

import signal
import threading
from types import TracebackType
from typing import Any


class Interrupt:
    """A context in which the first Ctrl-C only sets :attr:`by`; the second works as usual.

    Python delivers signals to the main thread, so in others nothing changes; nor where Ctrl-C is
    ignored, or has a handler that is not in Python.

    Attributes:
        by: "SIGTERM" if it came, else "Ctrl-C" if that did, else "".

    Args:
        on_sigterm: Whether SIGTERM only sets :attr:`by`, each time.

    Raises:
        RuntimeError: ``on_sigterm`` cannot be had here.
    """

    def __init__(self, on_sigterm: bool) -> None:
        self.by = ""
        self._on_sigterm = on_sigterm
        self._ctrl_c = False
        self._usual: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:  # noqa: PYI034 - Self is new in Python 3.11
        is_main = threading.current_thread() is threading.main_thread()
        if self._on_sigterm and (not is_main or signal.getsignal(signal.SIGTERM) is None):
            raise RuntimeError(
                "on_sigterm='checkpoint' needs run() in the main thread, and no handler of SIGTERM "
                "that is not Python's; otherwise call trainer.stop() and sys.exit() yourself"
            )
        if is_main and callable(signal.getsignal(signal.SIGINT)):
            self._usual[signal.SIGINT] = signal.signal(signal.SIGINT, self._take_ctrl_c)
        if self._on_sigterm:
            self._usual[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._take_sigterm)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, usual in self._usual.items():
            signal.signal(number, usual)
        if kind is None:
            self.end_program()

    def end_program(self) -> None:
        """
        Raises:
            SystemExit: SIGTERM came.
        """
        if self.by == "SIGTERM":
            raise SystemExit(128 + signal.SIGTERM)  # as shells report a program that it ended

    def _take_ctrl_c(self, number: int, frame: Any) -> None:
        if self._ctrl_c:
            self._usual[number](number, frame)
        self._ctrl_c = True
        self.by = self.by or "Ctrl-C"

    def _take_sigterm(self, _number: int, _frame: Any) -> None:
        self.by = "SIGTERM"
