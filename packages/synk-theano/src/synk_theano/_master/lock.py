"""The lock of a runtime: one order at a time, and none within another."""

from __future__ import annotations

import _thread
from time import perf_counter
from typing import Any

from synk_theano.exceptions import NestedCall

_RLock: Any = _thread.RLock


class OrderLock(_RLock):  # type: ignore[misc] # Any, because some versions' stubs are final
    """A lock around staging and performing. Other threads wait for it.

    The thread that holds it cannot take it again: that would be a call from inside a computation,
    or from a signal handler, which would write into the memory that the outer one has prepared.

    Its release is written in C, as plain locks' is: Ctrl-C comes before or after it.

    Attributes:
        running: whether an order is being performed.
        several: the holder makes several calls one after the other, as `verify()` does.
        began: when the lock was taken, or the latest of several calls began, in seconds of
            `time.perf_counter`.
    """

    def __init__(self) -> None:
        self.running = False
        self.several = False
        self.began = 0.0

    def __enter__(self) -> None:
        nested = self._is_owned()
        if nested and (self.running or not self.several):
            raise NestedCall(
                "got a call inside a call: this thread is at work on another one of the same "
                "runtime (the inner one comes from an Op's perform, a callback or a signal "
                "handler), expected one at a time; synk.step() has several things done in one go"
            )
        try:
            self.acquire()
            if not nested or self.several:
                self.began = perf_counter()
        except BaseException:  # a signal: `__exit__` will not run
            if not nested and self._is_owned():
                self.release()
            raise
