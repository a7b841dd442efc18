"""The ranks' states, outside of rounds: joined, closed, lost or aborted."""

from __future__ import annotations

from collections.abc import Collection
from typing import Callable

from synk_comm._core.fabric import aborted, lost
from synk_comm._system.liveness import Identity, Pidfds, identity
from synk_comm.exceptions import CommError, JoinError

from .block import (
    ALERT,
    CLOSED,
    JOINED,
    LENGTH,
    LOST,
    NAMESPACE,
    PID,
    POSTED,
    PUSHED,
    STARTED,
    STATE,
    TAKEN,
    TEXT,
    TEXT_BYTES,
    Block,
)
from .waiting import Waiter


class PeerStates:
    """One rank's state, and those of its peers."""

    def __init__(
        self, block: Block, rank: int, waiter: Waiter, fence: Callable[[], object] | None
    ) -> None:
        self._block = block
        self._rank = rank
        self._waiter = waiter
        self._fence = fence
        self._pidfds = Pidfds()
        self._peers = [r for r in range(block.layout.size) if r != rank]

    def enter(self) -> None:
        """Mark this rank as joined, with the identity of its process."""
        words, me = self._block.words, self._block.layout.control(self._rank) // 8
        if words[me + STATE]:
            raise JoinError(f"rank {self._rank} of this group has already been joined")
        known = identity()
        words[me + PID] = known.pid
        words[me + STARTED] = known.started
        words[me + NAMESPACE] = known.namespace
        if self._fence is not None:
            self._fence()
        words[me + STATE] = JOINED

    def is_here(self, rank: int) -> bool:
        """Return whether a rank has entered; if so, begin to watch its process."""
        if not self._block.word(rank, STATE):
            return False
        which = (PID, STARTED, NAMESPACE)
        self._pidfds.add(rank, Identity(*(self._block.word(rank, word) for word in which)))
        return True

    def has_entered(self, rank: int) -> bool:
        """Return whether a rank has ever entered."""
        return bool(self._block.word(rank, STATE))

    def leave(self) -> None:
        """Mark this rank's communicator as closed."""
        self._block.words[self._block.layout.control(self._rank) // 8 + STATE] = CLOSED
        self._wake_all()

    def abort(self, reason: str) -> None:
        """Mark the group as aborted, with a reason."""
        start = self._block.layout.control(self._rank) + TEXT
        if not LENGTH.unpack_from(self._block.bytes, start)[0]:
            self._block.put_text(start, reason.encode("utf-8", "replace")[:TEXT_BYTES])
        if self._fence is not None:
            self._fence()
        self._block.bytes[ALERT] = 1
        self._wake_all()

    def lose(self, rank: int) -> None:
        """Record a peer that this rank found gone."""
        self._block.words[self._block.layout.control(self._rank) // 8 + LOST] = 1 + rank
        self._wake_all()

    def _wake_all(self) -> None:
        # A sleeper waits on the word of the rank it misses, not on this one's.
        layout = self._block.layout
        for rank in range(layout.size):
            self._waiter.wake(layout.control(rank) // 8 + POSTED)
        for rank in self._peers:
            self._waiter.wake(layout.pair(rank, self._rank) + TAKEN)
            self._waiter.wake(layout.pair(self._rank, rank) + PUSHED)

    def failure(self) -> CommError | None:
        """Return the reason of an abort, if there was one."""
        if not self._block.bytes[ALERT]:
            return None
        for rank in range(self._block.layout.size):
            start = self._block.layout.control(rank) + TEXT
            text = self._block.text(start, TEXT_BYTES)
            if text:
                return aborted(rank, text.decode("utf-8", "replace"))
        return aborted(-1, "no reason was left")

    def peer_failure(self, late: Collection[int]) -> CommError | None:
        """Return the first lost rank: found by others, or among those waited for."""
        dead = self._pidfds.gone()
        # A rank that found another one gone ended because of it, and may have left by now.
        # This one may have found it in another thread.
        victims = [rank for rank in (self._rank, *self._peers) if self._block.word(rank, LOST)]
        causes = [self._block.word(rank, LOST) - 1 for rank in victims]
        causes.sort(key=victims.__contains__)
        for rank in [*causes, *late]:
            if rank in dead:
                pid = self._block.word(rank, PID)
                return lost(rank, f"its process (pid {pid}) has ended")
            if rank in causes:
                return lost(rank, "another rank found it gone")
        for rank in late:
            if self._block.word(rank, STATE) == CLOSED:
                return lost(rank, "it has closed its communicator")
        return None

    def close(self) -> None:
        """Stop watching."""
        self._pidfds.close()
