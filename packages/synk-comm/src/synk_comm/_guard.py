"""Who may call, and what an exception does to the group."""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType

from ._call import shorten
from ._fabric import Fabric, aborted
from .exceptions import (
    AbortedError,
    ClosedError,
    CommError,
    MismatchError,
    MisuseError,
    PeerDeclined,
    PeerLost,
)

IN_STEP = (MismatchError, PeerDeclined)
"""Raised by all ranks alike after a complete round: the group stays in step."""


class Guard:
    """The only door into a collective: ``with guard: ...``.

    On entry it refuses a second thread, a forked child and a group that has ended. On exit by an
    exception that leaves the ranks out of step, it ends the group and remembers why.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._ended: CommError | None = None

    def __enter__(self) -> None:
        if os.getpid() != self._pid:
            raise MisuseError(
                "this communicator belongs to the parent process; a child made by os.fork() "
                "must join a group of its own"
            )
        if not self._lock.acquire(False):
            raise MisuseError(
                "another thread is inside a collective of this communicator; "
                "use one thread at a time, or one group per thread"
            )
        ended = self.ended()
        if ended is not None:
            self._lock.release()
            raise ended

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc is not None and not isinstance(exc, IN_STEP):
                self._end(exc)
        finally:
            self._lock.release()

    def ended(self) -> CommError | None:
        """Return a fresh error if the communicator cannot be used any more."""
        if self._closed:
            return ClosedError("this communicator is closed")
        ended = self._ended or self._fabric.failure()
        if ended is None:
            return None
        self._ended = ended
        if isinstance(ended, PeerLost):
            return PeerLost(str(ended), rank=ended.rank)
        if isinstance(ended, AbortedError):
            return AbortedError(str(ended), rank=ended.rank, reason=ended.reason)
        return ended

    @property
    def state(self) -> str:
        """``open``, ``closed``, or why the group ended."""
        if self._closed:
            return "closed"
        if os.getpid() != self._pid:
            return "of the parent process"
        ended = self.ended()
        if isinstance(ended, PeerLost):
            return f"lost rank {ended.rank}"
        return "open" if ended is None else "aborted"

    def _end(self, exc: BaseException) -> None:
        if isinstance(exc, PeerLost):
            self._ended = exc
            self._fabric.lose(exc.rank)
        elif isinstance(exc, AbortedError):
            self._ended = exc
        else:
            self.abort(f"{type(exc).__name__}: {exc}")

    def abort(self, reason: str) -> None:
        """End the group for all ranks."""
        if self._closed or os.getpid() != self._pid:
            return
        reason = shorten(str(reason), 3000)
        if self._ended is None:
            self._ended = aborted(self._fabric.rank, reason)
        self._fabric.abort(reason)

    def close(self) -> None:
        """Leave the group once; a thread still inside a collective is made to leave it first."""
        if self._closed:
            return
        if os.getpid() != self._pid:
            self._closed = True
            self._fabric.drop()
            return
        if not self._lock.acquire(False):
            self.abort("the communicator was closed by another thread")
            if not self._lock.acquire(timeout=1.0):
                # Its memory may still be in use there: leave freeing to the garbage collector.
                return
        try:
            if not self._closed:
                self._closed = True
                self._fabric.close()
        finally:
            self._lock.release()


def deadline_after(timeout_s: float) -> float:
    """Return the moment, on the monotonic clock, when a wait that starts now is over."""
    if not timeout_s > 0:
        raise ValueError(f"timeout_s must be positive, got {timeout_s!r}")
    return time.monotonic() + timeout_s
