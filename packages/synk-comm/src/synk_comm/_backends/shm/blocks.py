"""The blocks of a shm group's splits, at the end of the file that the group lives in."""

from __future__ import annotations

import os
import sys
import weakref

from synk_comm._core.fabric import NoMemory, Share
from synk_comm._system.memory import extend
from synk_comm.exceptions import PeerDeclined

from .block import CLOSED, STATE, Layout


class Blocks:
    """One rank's duplicate of the file's descriptor, and the blocks that it has made."""

    def __init__(self, fd: int) -> None:
        self.fd = os.dup(fd)
        # Also if it is never closed, because another thread would not leave a collective.
        self.close = weakref.finalize(self, os.close, self.fd)
        self._made: list[tuple[int, Layout]] = []

    def agree_on(self, layouts: list[Layout], rank: int, share: Share) -> list[int]:
        """Let rank 0 find places for new blocks; return where they begin, the same on all ranks.

        Raises:
            MemoryError: on rank 0; PeerDeclined on the others.
        """
        starts: list[int] = []
        failure: Exception | None = None
        if rank == 0:
            try:
                starts = [self._place(layout) for layout in layouts]
            except (MemoryError, OSError, OverflowError) as exc:
                failure = exc
        starts, reason = share((starts, str(failure) if failure else ""))[0]
        if failure is not None:
            raise NoMemory(str(failure)) from failure
        if reason:
            raise PeerDeclined(f"rank 0 found no memory: {reason}", reasons={0: reason})
        return starts

    def _place(self, layout: Layout) -> int:
        """Return where a new block may be: zeroed, but for its slots and channels."""
        for start, old in self._made:
            if old.size == layout.size and self._is_over(start, old):
                os.pwrite(self.fd, bytes(old.head_bytes), start)
                return start
        start = extend(self.fd, layout.nbytes, layout.sparse)
        self._made.append((start, layout))
        return start

    def _is_over(self, start: int, layout: Layout) -> bool:
        """Return whether all ranks of a block have closed."""
        words = [start + layout.control(rank) + 8 * STATE for rank in range(layout.size)]
        states = [os.pread(self.fd, 8, word) for word in words]
        return all(int.from_bytes(state, sys.byteorder) == CLOSED for state in states)
