"""The ranks' states, outside of rounds: joined, closed, lost or aborted."""

from __future__ import annotations

from collections.abc import Collection

from synk_comm._core.fabric import Fabric, Watch, aborted, lost
from synk_comm._system.futex import memory_fence
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


class SharedStates(Fabric):
    """One rank's end of a block: its state, and those of its peers."""

    def __init__(self, rank: int, watch: Watch | None, block: Block) -> None:
        super().__init__(rank, block.layout.size, watch)
        self._block = block
        self._fence = memory_fence()
        self._waiter = Waiter(block, rank)
        self._pidfds = Pidfds()
        # Where the control words of each rank begin, its posted word first.
        pages = [block.layout.control(r) // 8 + POSTED for r in range(self.size)]
        self._me = pages[rank]
        self._peers = [(r, page) for r, page in enumerate(pages) if r != rank]
        words = block.words
        if words[self._me + STATE]:
            raise JoinError(f"rank {rank} of this group has already been joined")
        words[self._me + PID], words[self._me + STARTED], words[self._me + NAMESPACE] = identity()
        if self._fence is not None:
            self._fence()
        words[self._me + STATE] = JOINED

    def _is_here(self, rank: int) -> bool:
        """Return whether a rank has entered; if so, begin to watch its process."""
        if not self.has_entered(rank):
            return False
        which = (PID, STARTED, NAMESPACE)
        self._pidfds.add(rank, Identity(*(self._block.word(rank, word) for word in which)))
        return True

    def has_entered(self, rank: int) -> bool:
        return bool(self._block.word(rank, STATE))

    def abort(self, reason: str) -> None:
        block, start = self._block, self._block.layout.control(self.rank) + TEXT
        if not LENGTH.unpack_from(block.bytes, start)[0]:
            block.put_text(start, reason.encode("utf-8", "replace")[:TEXT_BYTES])
        if self._fence is not None:
            self._fence()
        block.bytes[ALERT] = 1
        self._wake_all()

    def lose(self, rank: int) -> None:
        self._block.words[self._me + LOST] = 1 + rank
        self._wake_all()

    def close(self) -> None:
        self._block.words[self._me + STATE] = CLOSED
        self._wake_all()
        self.drop()

    def drop(self) -> None:
        self._pidfds.close()
        self._block.close()

    def _wake_all(self) -> None:
        # A sleeper waits on the word of the rank it misses, not on this one's.
        layout = self._block.layout
        self._waiter.wake(self._me)
        for rank, page in self._peers:
            self._waiter.wake(page)
            self._waiter.wake(layout.pair(rank, self.rank) + TAKEN)
            self._waiter.wake(layout.pair(self.rank, rank) + PUSHED)

    def failure(self) -> CommError | None:
        if not self._block.bytes[ALERT]:
            return None
        for rank in range(self.size):
            text = self._block.text(self._block.layout.control(rank) + TEXT, TEXT_BYTES)
            if text:
                return aborted(rank, text.decode("utf-8", "replace"))
        return aborted(-1, "no reason was left")

    def gone(self, ranks: Collection[int]) -> CommError | None:
        lost_peer = self._lost_peer(ranks)
        # Last: a rank that aborts the group closes its communicator at once.
        return self.failure() or lost_peer

    def _lost_peer(self, late: Collection[int]) -> CommError | None:
        """Return the first lost rank: found by others, or among those waited for."""
        dead = self._pidfds.gone()
        # A rank that found another one gone ended because of it, and may have left by now.
        # This one may have found it in another thread.
        ranks = [self.rank, *(rank for rank, _ in self._peers)]
        victims = [rank for rank in ranks if self._block.word(rank, LOST)]
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
