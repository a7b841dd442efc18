"""Whose turn it is: one order at a time, and none within another."""

from __future__ import annotations

import threading
from time import perf_counter

from .exceptions import NestedCall


class Turn:
    """A lock around staging and performing. Other threads wait for it.

    The thread that holds it cannot take it again: that would be a call from inside a computation,
    or from a signal handler, which would write into the memory that the outer one has prepared.

    Attributes:
        running: whether an order is being performed.
        several: the holder does several calls one after the other, as `verify()` does.
        began: when the turn was taken, or the latest of several calls began, in seconds of
            `time.perf_counter`.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self.running = False
        self.several = False
        self.began = 0.0

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._depth and (self.running or not self.several):
            self._lock.release()
            raise NestedCall(
                "got a call inside a call: this thread is at work on another one of the same "
                "runtime (the inner one comes from an Op's perform, a callback or a signal "
                "handler), expected one at a time; synk.step() has several things done in one go"
            )
        try:
            if not self._depth or self.several:
                self.began = perf_counter()
            self._depth += 1
        except BaseException:  # a signal: nobody will leave
            self._lock.release()
            raise

    def __exit__(self, *exc: object) -> None:
        try:
            self._depth -= 1
        finally:
            self._lock.release()
