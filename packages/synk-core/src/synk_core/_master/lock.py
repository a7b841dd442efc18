"""The lock that acts are staged and performed under."""

from __future__ import annotations

import _thread
import os
from time import perf_counter
from typing import Any

from synk_core._shield import require_frames
from synk_core.exceptions import NestedCall

_RLock: Any = _thread.RLock


class OrderLock(_RLock):  # type: ignore[misc] # Any, because some versions' stubs are final
    """A lock around staging and performing. Other threads wait for it.

    The thread that holds it cannot take it again: that would be a call from inside a computation,
    or from a signal handler, which would write into the memory that the outer one has prepared.

    Its release is written in C, as plain locks' is: Ctrl-C comes before or after it.

    Attributes:
        running: whether an order is being performed.
        began: when the lock was taken, in seconds of `time.perf_counter`.
    """

    def __init__(self) -> None:
        self.running = False
        self.began = 0.0
        self._pid = os.getpid()

    def __enter__(self) -> None:
        require_frames()  # an order that has begun comes to its end
        if os.getpid() != self._pid:  # a child, without the thread that may hold the lock
            self._at_fork_reinit()
            self._pid = os.getpid()
        if self._is_owned():
            raise NestedCall(
                "got a call inside a call: this thread already performs one on this runtime (the "
                "inner one comes from an Op's perform, a callback or a signal handler), expected "
                "one at a time; use synk.step() to perform several together"
            )
        try:
            self.acquire()
            self.began = perf_counter()
        except BaseException:  # a signal: `__exit__` will not run
            if self._is_owned():
                self.release()
            raise
