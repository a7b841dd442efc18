"""More memory for a shm group than its block: the blocks of its splits.

It is taken at the end of the group's file. Any of the groups that live in a file may make it
longer, so its end is moved under a lock, and the start of the new part is sent to the others.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
import weakref
from typing import Callable

from synk_comm._core.fabric import NoMemory, Share
from synk_comm._system.memory import allocate, memory_errors
from synk_comm.exceptions import PeerDeclined

from .block import CLOSED, STATE, Layout

_UNIT = 1 << 16
_LOCK_S = 10.0
_threads = threading.Lock()
"""Record locks, as ``lockf`` takes them, exclude processes, not the threads of one."""


class Heap:
    """One rank's handle of the file that its group lives in."""

    def __init__(self, fd: int) -> None:
        self.fd = os.dup(fd)
        # Also if it is never closed, because another thread would not leave a collective.
        self._closer = weakref.finalize(self, os.close, self.fd)

    def close(self) -> None:
        """Forget the file; what is mapped stays mapped."""
        self._closer()

    def write(self, start: int, data: bytes) -> None:
        """Write into the file."""
        os.pwrite(self.fd, data, start)

    @staticmethod
    def agree_on(make: Callable[[], list[int]], rank: int, share: Share) -> list[int]:
        """Let rank 0 find places in the file; return where they begin, the same on all ranks.

        Raises:
            MemoryError: on rank 0; PeerDeclined on the others.
        """
        starts: list[int] = []
        failure: Exception | None = None
        if rank == 0:
            try:
                starts = make()
            except (MemoryError, OSError, OverflowError) as exc:
                failure = exc
        starts, reason = share((starts, str(failure) if failure else ""))[0]
        if failure is not None:
            raise NoMemory(str(failure)) from failure
        if reason:
            raise PeerDeclined(f"rank 0 found no memory: {reason}", reasons={0: reason})
        return starts

    def extend(self, length: int, sparse: int = 0) -> int:
        """Make the file longer; return where the new part begins.

        Args:
            sparse: how much of its end need not have memory yet.
        """
        with _threads:
            self._lock()
            try:
                start = _rounded(os.fstat(self.fd).st_size)
                try:
                    with memory_errors(length):
                        os.ftruncate(self.fd, start + _rounded(length))
                    allocate(self.fd, start, length - sparse)
                except BaseException:
                    os.ftruncate(self.fd, start)
                    raise
            finally:
                fcntl.lockf(self.fd, fcntl.LOCK_UN)
        return start

    def _lock(self) -> None:
        until = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except (BlockingIOError, PermissionError):  # another group of this file is at it
                if time.monotonic() > until:
                    raise MemoryError(
                        f"another group has held the end of the shared file for {_LOCK_S:g} s; "
                        "is one of its processes stopped?"
                    ) from None
                time.sleep(0.001)


class Blocks:
    """Blocks for the splits of a group, which are used again once all their ranks have closed."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._made: list[tuple[int, Layout]] = []

    def place(self, layout: Layout) -> int:
        """Return where a new block may be: zeroed, but for its slots and channels."""
        for start, old in self._made:
            if old.size == layout.size and self._is_over(start, old):
                self._heap.write(start, bytes(old.head_bytes))
                return start
        start = self._heap.extend(layout.nbytes, layout.sparse)
        self._made.append((start, layout))
        return start

    def _is_over(self, start: int, layout: Layout) -> bool:
        words = [layout.control(rank) + 8 * STATE for rank in range(layout.size)]
        states = [os.pread(self._heap.fd, 8, start + word) for word in words]
        return all(int.from_bytes(state, sys.byteorder) == CLOSED for state in states)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _UNIT) * _UNIT
