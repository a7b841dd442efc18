"""Signals while a training is under way: they end it after a step."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any


class _NoBatch(KeyboardInterrupt):
    """The run is to end, and a batch was awaited."""


class Interrupt:
    """A context in which the first Ctrl-C only sets ``by``, to "Ctrl-C"; the second works as usual.
    With ``on_sigterm``, each SIGTERM only sets ``by``, to "SIGTERM", and the end raises SystemExit.

    A context within another one passes signals on to it, which then ends the program in its place.
    If an error kept a SIGTERM from ending the program, the end of the next context in this process
    does it. An error after a Ctrl-C is the cause of a KeyboardInterrupt.

    After any of these, and after `end_wait`, the run is ``over`` with its step, until the next run.

    Nothing changes in other threads than the main one, to which Python delivers signals; nor where
    Ctrl-C is ignored, or has a handler that is not in Python.
    """

    _missed = False  # of the process, as signals are

    def __init__(self, on_sigterm: bool) -> None:
        self.by, self.over, self._draws = "", False, False
        self._on_sigterm = on_sigterm
        self._usual: dict[int, Any]

    def __enter__(self) -> Interrupt:  # noqa: PYI034 - Self is new in Python 3.11
        is_main = threading.current_thread() is threading.main_thread()
        if self._on_sigterm and (not is_main or signal.getsignal(signal.SIGTERM) is None):
            raise RuntimeError(
                "on_sigterm='checkpoint' needs run() in the main thread, and no handler of SIGTERM "
                "that is not Python's; otherwise call trainer.stop() and sys.exit() yourself"
            )
        self.by = "SIGTERM" if is_main and Interrupt._missed else ""
        Interrupt._missed = Interrupt._missed and not is_main
        self.over |= bool(self.by)
        self._usual, self._pid, self._ctrl_c = {}, os.getpid(), False
        if is_main and callable(signal.getsignal(signal.SIGINT)):
            self._usual[signal.SIGINT] = signal.signal(signal.SIGINT, self._take)
        if self._on_sigterm:
            self._usual[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        for number, usual in reversed(self._usual.items()):  # Ctrl-C last: it may raise amid this
            signal.signal(number, usual)
        if kind is None:
            self.end_program()
        elif self.by == "SIGTERM":
            Interrupt._missed = not self._outer(signal.SIGTERM) and not issubclass(kind, SystemExit)
        elif self.by and issubclass(kind, Exception):
            raise KeyboardInterrupt from error

    def drawn(self, items: Iterator[Any]) -> Any:
        """Return the next item; None after the last, or at once when the run is to end."""
        with contextlib.suppress(_NoBatch):
            try:
                self._draws = True
                return None if self.over else next(items, None)
            finally:
                self._draws = False
        return None

    def end_wait(self) -> None:
        """End `drawn`; in a handler of a signal that has interrupted it, by an exception."""
        self.over = True
        if self._draws and threading.current_thread() is threading.main_thread():
            self._draws = False
            raise _NoBatch

    def end_program(self) -> None:
        """Raise SystemExit if SIGTERM came, unless an outer context is to do it."""
        if self.by == "SIGTERM" and not self._outer(signal.SIGTERM):
            raise SystemExit(128 + signal.SIGTERM)  # as shells report a program that it ended

    def _take(self, number: int, _frame: Any) -> None:
        # A child, such as a loader's, is to end.
        if (number == signal.SIGINT and self._ctrl_c) or os.getpid() != self._pid:
            signal.signal(number, self._usual[number])
            signal.raise_signal(number)
        else:
            self._note(number)
            self.end_wait()

    def _note(self, number: int) -> None:
        outer = self._outer(number)
        if outer:
            outer._note(number)
        self._ctrl_c |= number == signal.SIGINT
        self.by = "SIGTERM" if number == signal.SIGTERM else self.by or "Ctrl-C"
        self.over = True

    def _outer(self, number: int) -> Interrupt | None:
        """Return the context around this one that would have got the signal."""
        handler: Any = self._usual.get(number)
        while hasattr(handler, "handler"):  # `whole` holds signals back
            handler = handler.handler
        outer = getattr(handler, "__self__", None)
        return outer if isinstance(outer, Interrupt) and outer._pid == self._pid else None
