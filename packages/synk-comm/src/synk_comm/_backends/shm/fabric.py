"""Rounds through one block of shared memory (``block.py`` has the layout).

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

import os
import time
from collections.abc import Collection
from typing import Any, Callable

from synk_comm._backends.repeating import repeating
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
from synk_comm._core.guard import deadline_after
from synk_comm._core.ops import Array
from synk_comm._core.repeats import parts_of

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
from .blocks import Blocks
from .channels import Channels
from .states import SharedStates


class ShmFabric(SharedStates):
    """One rank's end of a block. Keeps a duplicate of ``fd``, for the blocks of its splits.

    Most of its methods are those of ``Fabric``.
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
        block = Block(fd, Layout(size, start), group_id)
        try:
            super().__init__(rank, watch, block)
        except BaseException:
            block.close()
            raise
        self._group_id = group_id
        self._layout = block.layout
        self._words = block.words
        self._blocks = Blocks(fd)
        self._channels = Channels(block, rank, self._waiter, self._fence)
        self._seq = 0  # number of the latest round
        self._said = [b"", b""]  # the heads in the own slots, by parity
        self._heads_of = 0
        self._agreed = False
        self._extra = 0

    def meet(self, deadline: float) -> None:
        began = time.monotonic()
        absent = dict(self._peers)
        while absent:
            for rank in list(absent):
                if self._is_here(rank):
                    del absent[rank]
            self._check(absent.keys, began, deadline, "join")
            if absent:
                # A rank that leaves before all have met has failed.
                here = [rank for rank, _ in self._peers if rank not in absent]
                failure = self.gone(here)
                if failure is not None:
                    raise failure
                time.sleep(min(0.002, max(deadline - time.monotonic(), 0)))
        self.sync(None, 0, deadline)

    # -- a round --------------------------------------------------------------------------

    def slot(self) -> Array:
        return self._slice(self.rank, self._seq + 1, 0, self.slot_bytes)

    def sync(
        self,
        head: bytes | None,
        nbytes: int,  # noqa: ARG002 - readers know what they may read
        deadline: float,
        *,
        to: int | None = None,  # noqa: ARG002
        part: int = 0,  # noqa: ARG002
    ) -> None:
        words, me = self._words, self._me
        seq = self._seq + 1
        posted = seq & ROUND
        if head is None:
            self._extra += 1
            words[me + EXTRA] = self._extra
            words[me + HEADED] = self._heads_of
            words[me + BARE] = seq
        else:
            if self._said[seq & 1] != head:
                self._block.put_text(self._layout.slot(self.rank, seq), head)
            self._said[seq & 1] = head
            self._heads_of = seq
            posted |= signature(head)
        if self._fence is not None:
            self._fence()
        self._seq = seq
        words[me] = posted
        self._waiter.wake_sleepers(me)
        self._agreed = True
        for _, page in self._peers:
            left = self._waiter.spins
            while words[page] != posted:
                if not left:
                    self._agreed &= self._await_round(page, seq, posted, deadline)
                    break
                left -= 1
        if self._fence is not None:
            self._fence()

    def _await_round(self, page: int, seq: int, posted: int, deadline: float) -> bool:
        """Wait for one rank's round, asleep if need be; return whether it makes the same call."""

        def here(word: int) -> bool:
            return (word - seq) & ROUND < 2

        def late() -> list[int]:
            return [rank for rank, index in self._peers if not here(self._words[index])]

        def check(began: float) -> None:
            self._check(late, began, deadline, "")

        self._waiter.until(page, here, check, deadline)
        return self._words[page] == posted

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
        return self._slice(rank, self._seq, start, stop)

    # -- repeated calls -------------------------------------------------------------------

    @property
    def is_first_round(self) -> bool:
        return self._seq == self._heads_of

    def slots(self, rank: int) -> tuple[Array, Array]:
        """Return both slots of a rank, that of even rounds first."""
        length = self.slot_bytes
        return self._slice(rank, 0, 0, length), self._slice(rank, 1, 0, length)

    # `exchange` is one function, however long: each call of another one costs 3 % of the whole.
    def shortcut(self, repeated: RepeatedCall) -> Shortcut | None:
        if self.size < 2:
            return None
        mine, finish = parts_of(self, repeated.calls, self.rank)
        heads = list(repeated.heads)
        head, text = heads[self.rank], packed(heads[self.rank])
        signed, timeout_s = signature(head), repeated.timeout_s
        pages = [(page, signature(heads[rank])) for rank, page in self._peers]
        words, me, said, fence = self._words, self._me, self._said, self._fence
        (alert, *more_alerts), spins = self._waiter.alerts, self._waiter.spins
        texts = self._block.bytes
        starts = [self._layout.slot(self.rank, parity) for parity in (0, 1)]
        places = [slice(start, start + len(text)) for start in starts]

        def exchange(x: Any) -> int:
            self._seq = seq = self._seq + 1
            parity = seq & 1
            if said[parity] is not head:
                texts[places[parity]] = text
                said[parity] = head
            if mine is not None:
                mine[parity][...] = x
            number = seq & ROUND
            if fence is not None:
                fence()
            words[me] = signed | number
            if words[alert] or (more_alerts and any(map(words.__getitem__, more_alerts))):
                self._heed_alert()
            for page, signature_there in pages:
                expected = signature_there | number
                left = spins
                while words[page] != expected:
                    if not left:
                        if not self._await_round(page, seq, expected, deadline_after(timeout_s)):
                            parity = -1
                        break
                    left -= 1
            if fence is not None:
                fence()
            if parity < 0:  # a peer is ahead, or makes another call
                self._heads_of, self._agreed = seq, False
                if self.heads() == heads:
                    return seq & 1
            return parity

        return repeating(repeated, exchange, finish)

    def _heed_alert(self) -> None:
        """Raise if the group was aborted; else wake the sleepers."""
        failure = self.failure()
        if failure is not None:
            raise failure
        self._waiter.wake_sleepers(self._me)

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

        self._waiter.until(index, lambda _: done(), check, deadline)

    def give_way(self) -> None:
        super().give_way()
        self._waiter.give_way()

    # -- memory and groups ----------------------------------------------------------------

    def split(self, groups: list[list[int]], mine: int | None, share: Share) -> Fabric | None:
        layouts = [Layout(len(group)) for group in groups]
        starts = self._blocks.agree_on(layouts, self.rank, share)
        for group, layout, start in zip(groups, layouts, starts):
            if group[0] == self.rank:
                os.pwrite(self._blocks.fd, layout.label(self._group_id), start)
        share(None)  # no rank opens a block before it is labelled
        if mine is None:
            return None
        return ShmFabric(
            groups[mine].index(self.rank),
            len(groups[mine]),
            self.watch,
            fd=self._blocks.fd,
            group_id=self._group_id,
            start=starts[mine],
        )

    # -- what ranks have called ------------------------------------------------------------

    def last_seen(self, rank: int) -> str:
        if not self.has_entered(rank):
            return "has not joined yet"
        number = self._number_of(rank)
        if number == self._block.word(rank, BARE):
            number = self._block.word(rank, HEADED)
        return describe(self._head(rank, number) if number else b"", self._turn_of(rank))

    def _number_of(self, rank: int) -> int:
        """Return the number of a rank's latest round, from the last bits, in its word."""
        behind = (self._seq - self._block.word(rank, POSTED)) & ROUND
        return self._seq - (behind if behind < ROUND // 2 else behind - ROUND - 1)

    def _own_head(self) -> bytes:
        return self._head(self.rank, self._heads_of)

    def _turn_of(self, rank: int) -> int:
        return self._number_of(rank) - self._block.word(rank, EXTRA)

    def drop(self) -> None:
        self._blocks.close()
        del self._words
        super().drop()

    # -- where things are -----------------------------------------------------------------

    def _slice(self, rank: int, number: int, start: int, stop: int) -> Array:
        slot = self._layout.slot(rank, number) + HEAD_BYTES
        return self._block.data[slot + start : slot + stop]

    def _head(self, rank: int, number: int) -> bytes:
        return self._block.text(self._layout.slot(rank, number), HEAD_BYTES - LENGTH.size)
