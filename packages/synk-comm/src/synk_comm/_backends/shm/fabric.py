"""Rounds through one block of shared memory (``block.py`` says where everything in it is).

A round writes data, then the head, then the *posted* word; this order is what peers rely on (see
``memory_fence``). The posted word holds the number of the round, in 16 bits, and a signature of
the head, in 48: a rank that finds in its peers' words what is in its own knows with one
comparison that all have come and call the same. Otherwise the heads themselves are read. No rank
is ever more than one round ahead of another, so numbers may wrap around, and slots and heads
alternate between two parities. A head is only written if the one of two rounds ago was another.

A waiting rank looks between two slices of sleep at the abort byte, at its peers' processes, at
``watch`` and at the clock.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Callable

from synk_comm._core.calls import HEAD_BYTES
from synk_comm._core.fabric import (
    Fabric,
    RepeatedCall,
    Share,
    Shortcut,
    Watch,
    describe,
    moving,
    said,
)
from synk_comm._core.ops import Array
from synk_comm._system.futex import memory_fence
from synk_comm.exceptions import CommError

from . import shortcuts
from .block import (
    BARE,
    EXTRA,
    HEADED,
    LENGTH,
    POSTED,
    PUSHED,
    ROUND,
    TAKEN,
    Block,
    Layout,
    packed,
    signature,
)
from .channels import Channels
from .heap import Blocks, Heap
from .states import PeerStates
from .waiting import Waiter


class ShmFabric(Fabric):
    """One rank's end of a block. Keeps a duplicate of ``fd``, for more memory.

    Attributes:
        words, me, peers: all words; index of the own posted word; (rank, index) of the others'.
        seq: number of the latest round.
        said: the heads in the own slots, by parity.
    """

    backend = "shm"

    def __init__(
        self,
        rank: int,
        size: int,
        watch: Watch | None,
        *,
        fd: int,
        group_id: bytes,
        start: int = 0,
    ) -> None:
        super().__init__(rank, size, watch)
        self._group_id = group_id
        self._layout = layout = Layout(size, start)
        self._block = Block(fd, layout, group_id)
        self._heap = Heap(fd)
        self._blocks = Blocks(self._heap)
        self.fence = memory_fence()
        self.waiter = Waiter(self._block, rank)
        self._states = PeerStates(self._block, rank, self.waiter, self.fence)
        self._channels = Channels(self._block, rank, self.waiter, self.fence)
        self.words = self._block.words
        self.me = layout.control(rank) // 8 + POSTED
        self.peers = [(r, layout.control(r) // 8 + POSTED) for r in range(size) if r != rank]
        self.seq = 0
        self.said: list[bytes] = [b"", b""]
        self._heads_of = 0
        self._agreed = False
        self._extra = 0
        try:
            self._states.enter()
        except BaseException:
            self.drop()
            raise

    def meet(self, deadline: float) -> None:
        began = time.monotonic()
        absent = dict(self.peers)
        while absent:
            for rank in list(absent):
                if self._states.is_here(rank):
                    del absent[rank]
            self._check(absent.keys, began, deadline, "join")
            if absent:
                # A rank that leaves before all have met has failed.
                here = [rank for rank, _ in self.peers if rank not in absent]
                failure = self.gone(here)
                if failure is not None:
                    raise failure
                time.sleep(min(0.002, max(deadline - time.monotonic(), 0)))
        self.sync(None, 0, deadline)

    # -- a round --------------------------------------------------------------------------

    def slot(self) -> Array:
        return self._slice(self.rank, self.seq + 1, 0, self.slot_bytes)

    def sync(
        self,
        head: bytes | None,
        nbytes: int,  # noqa: ARG002 - readers know what they may read
        deadline: float,
        *,
        to: int | None = None,  # noqa: ARG002
        part: int = 0,  # noqa: ARG002
    ) -> None:
        words, me = self.words, self.me
        seq = self.seq + 1
        posted = seq & ROUND
        if head is None:
            self._extra += 1
            words[me + EXTRA] = self._extra
            words[me + HEADED] = self._heads_of
            words[me + BARE] = seq
        else:
            self.say(head, seq)
            posted |= signature(head)
        if self.fence is not None:
            self.fence()
        self.seq = seq
        words[me] = posted
        self.waiter.wake_sleepers(me)
        self._agreed = True
        for _, page in self.peers:
            left = self.waiter.spins
            while words[page] != posted:
                if not left:
                    self._agreed &= self.await_round(page, seq, posted, deadline)
                    break
                left -= 1
        if self.fence is not None:
            self.fence()

    def say(self, head: bytes, seq: int) -> None:
        """Write the head of a round into the own slot, if it is not there already."""
        if self.said[seq & 1] != head:
            self._block.put_text(self._layout.slot(self.rank, seq), head)
        self.said[seq & 1] = head
        self._heads_of = seq

    def await_round(self, page: int, seq: int, posted: int, deadline: float) -> bool:
        """Wait for one rank's round the slow way; return whether it says the same as this one."""

        def here(word: int) -> bool:
            return (word - seq) & ROUND < 2

        def late() -> list[int]:
            return [rank for rank, index in self.peers if not here(self.words[index])]

        def check(began: float) -> None:
            self._check(late, began, deadline, "")

        self.waiter.until(page, here, check, deadline)
        return self.words[page] == posted

    def _check(
        self, late: Callable[[], Collection[int]], began: float, deadline: float, doing: str
    ) -> None:
        """Raise what ends a wait, unless everybody has come meanwhile."""
        self.look()
        missing = list(late())
        failure = self.gone(missing)
        now = time.monotonic()
        if failure is not None or now >= deadline:
            missing = list(late())  # a peer may have come and then left
            if missing:
                doing = doing or f"call #{self._turn_of(self.rank)}, {said(self._own_head())}"
                raise failure or self.timeout(missing, now - began, doing)

    def all_said(self, head: bytes) -> bool:
        return self._agreed or all(said == head for said in self.heads())

    def heads(self) -> list[bytes]:
        return [self._head(rank, self._heads_of) for rank in range(self.size)]

    def read(self, rank: int, start: int, stop: int) -> Array:
        return self._slice(rank, self.seq, start, stop)

    # -- shortcuts ------------------------------------------------------------------------

    @property
    def is_first_round(self) -> bool:
        return self.seq == self._heads_of

    def shortcut(self, repeated: RepeatedCall) -> Shortcut | None:
        return shortcuts.make(self, repeated)

    def own_text(self, head: bytes) -> tuple[memoryview, bytes, tuple[slice, slice]]:
        """Return the memory where this rank says a head, what to write there, and at which places:
        those for even and odd rounds."""
        text = packed(head)
        even, odd = (self._layout.slot(self.rank, number) for number in (0, 1))
        return self._block.bytes, text, (slice(even, even + len(text)), slice(odd, odd + len(text)))

    def slots(self, rank: int) -> tuple[Array, Array]:
        """Return both slots of a rank, that of even rounds first."""
        length = self.slot_bytes
        return self._slice(rank, 0, 0, length), self._slice(rank, 1, 0, length)

    def have_said(self, seq: int, heads: Sequence[bytes]) -> bool:
        """Compare the heads of a round that found peers ahead, or saying something else."""
        self._heads_of = seq
        self._agreed = False
        return self.heads() == heads

    def heed_alert(self) -> None:
        """Raise if the group was aborted; else wake the sleepers."""
        failure = self.failure()
        if failure is not None:
            raise failure
        self.waiter.wake_sleepers(self.me)

    # -- pieces ---------------------------------------------------------------------------

    @property
    def pieces(self) -> Channels:
        return self._channels

    def attend(
        self, done: Callable[[], bool], rank: int, deadline: float, *, sending: bool
    ) -> None:
        if done():  # mostly: what follows costs as much again
            return
        pair = self._layout.pair
        # The word that the other rank changes.
        index = pair(self.rank, rank) + TAKEN if sending else pair(rank, self.rank) + PUSHED

        def check(began: float) -> None:
            missing = lambda: [] if done() else [rank]  # noqa: E731
            self._check(missing, began, deadline, moving(rank, sending))

        self.waiter.until(index, lambda _: done(), check, deadline)

    def give_way(self) -> None:
        super().give_way()
        self.waiter.give_way()

    # -- memory and groups ----------------------------------------------------------------

    def split(self, groups: list[list[int]], mine: int | None, share: Share) -> Fabric | None:
        layouts = [Layout(len(group)) for group in groups]
        starts = self._heap.agree_on(
            lambda: [self._blocks.place(layout) for layout in layouts], self.rank, share
        )
        for group, layout, start in zip(groups, layouts, starts):
            if group[0] == self.rank:
                self._heap.write(start, layout.label(self._group_id))
        share(None)  # no rank opens a block before it is labelled
        if mine is None:
            return None
        return ShmFabric(
            groups[mine].index(self.rank),
            len(groups[mine]),
            self.watch,
            fd=self._heap.fd,
            group_id=self._group_id,
            start=starts[mine],
        )

    # -- failures -------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        self._states.abort(reason)

    def lose(self, rank: int) -> None:
        self._states.lose(rank)

    def failure(self) -> CommError | None:
        return self._states.failure()

    def gone(self, ranks: Collection[int]) -> CommError | None:
        lost_peer = self._states.peer_failure(ranks)
        # Last: a rank that aborts the group closes its communicator at once.
        return self.failure() or lost_peer

    def has_entered(self, rank: int) -> bool:
        return self._states.has_entered(rank)

    def last_seen(self, rank: int) -> str:
        if not self._states.has_entered(rank):
            return "has not joined yet"
        number = self._number_of(rank)
        if number == self._block.word(rank, BARE):
            number = self._block.word(rank, HEADED)
        return describe(self._head(rank, number) if number else b"", self._turn_of(rank))

    def _number_of(self, rank: int) -> int:
        """Return the number of a rank's latest round, from the last bits, in its word."""
        behind = (self.seq - self._block.word(rank, POSTED)) & ROUND
        return self.seq - (behind if behind < ROUND // 2 else behind - ROUND - 1)

    def _own_head(self) -> bytes:
        return self._head(self.rank, self._heads_of)

    def _turn_of(self, rank: int) -> int:
        return self._number_of(rank) - self._block.word(rank, EXTRA)

    # -- the end --------------------------------------------------------------------------

    def close(self) -> None:
        self._states.leave()
        self.drop()

    def drop(self) -> None:
        self._states.close()
        self._heap.close()
        del self.words
        self._block.close()

    # -- where things are -----------------------------------------------------------------

    def _slice(self, rank: int, number: int, start: int, stop: int) -> Array:
        slot = self._layout.slot(rank, number) + HEAD_BYTES
        return self._block.data[slot + start : slot + stop]

    def _head(self, rank: int, number: int) -> bytes:
        return self._block.text(self._layout.slot(rank, number), HEAD_BYTES - LENGTH.size)
