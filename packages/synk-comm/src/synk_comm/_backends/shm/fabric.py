"""Rounds through one block of shared memory (``block.py`` has the layout).

A round writes data, then the head, then the *posted* word; this order is what peers rely on (see
``memory_fence``). The posted word holds the number of the round, in 16 bits, and a signature of
the head, in 48: a rank that finds in its peers' words what is in its own knows with one
comparison that all have come and call the same. Otherwise the heads themselves are read. No rank
is ever more than one round ahead of another, so numbers may wrap around, and slots and heads
alternate between two parities. A head is only written if the one of two rounds ago was another.

A waiting rank looks between two slices of sleep at the abort byte, at its peers' processes, at
``watch`` and at the clock.

Pieces between two ranks lie in a ring of a few places for each direction. A smaller group is a new
one, whose block its first rank makes.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Collection
from typing import Any, Callable

from synk_comm._backends.repeating import repeating
from synk_comm._core.calls import HEAD_BYTES
from synk_comm._core.fabric import (
    PIECE_HEAD_BYTES,
    Fabric,
    NoMemory,
    Pieces,
    RepeatedCall,
    Share,
    Shortcut,
    Watch,
    aborted,
    describe,
    lost,
    moving,
    said,
)
from synk_comm._core.guard import deadline_after
from synk_comm._core.ops import Array
from synk_comm._core.repeats import parts_of
from synk_comm._system.futex import memory_fence
from synk_comm._system.liveness import Identity, Pidfds, identity
from synk_comm.exceptions import CommError, JoinError, PeerDeclined

from .block import (
    ALERT,
    BARE,
    CLOSED,
    EXTRA,
    HEADED,
    JOINED,
    LENGTH,
    LOST,
    NAMESPACE,
    PID,
    PLACES,
    POSTED,
    PUSHED,
    ROUND,
    STARTED,
    STATE,
    TAKEN,
    TEXT,
    TEXT_BYTES,
    Block,
    create,
    packed,
    signature,
)
from .waiting import Waiter

_DATA_LENGTH_AT = PIECE_HEAD_BYTES - LENGTH.size


class ShmFabric(Fabric):
    """One rank's end of a block.

    Most of its methods are those of ``Fabric``.

    Args:
        fd: of the block's memory; closed when all have met, who may have to open it here.
    """

    backend = "shm"

    def __init__(
        self, rank: int, size: int, watch: Watch | None, *, fd: int, group_id: bytes
    ) -> None:
        super().__init__(rank, size, watch)
        self._release = weakref.finalize(self, os.close, fd)
        self._group_id = group_id
        self._block = block = Block(fd, size, group_id)
        self._words = words = block.words
        self._fence = memory_fence()
        self._waiter = Waiter(block, rank)
        self._pidfds = Pidfds()
        # Where the control words of each rank begin, its posted word first.
        pages = [block.control(r) // 8 + POSTED for r in range(size)]
        self._me = pages[rank]
        self._peers = [(r, page) for r, page in enumerate(pages) if r != rank]
        self._seq = 0  # number of the latest round
        self._said = [b"", b""]  # the heads in the own slots, by parity
        self._heads_of = 0
        self._agreed = False
        self._extra = 0
        if words[self._me + STATE]:
            self.drop()
            raise JoinError(f"rank {rank} of this group has already been joined")
        words[self._me + PID], words[self._me + STARTED], words[self._me + NAMESPACE] = identity()
        if self._fence is not None:
            self._fence()
        words[self._me + STATE] = JOINED

    def meet(self, deadline: float) -> None:
        began = time.monotonic()
        absent = [rank for rank, _ in self._peers]
        while absent:
            for rank in filter(self.has_entered, absent.copy()):
                absent.remove(rank)
                who = (self._block.word(rank, word) for word in (PID, STARTED, NAMESPACE))
                self._pidfds.add(rank, Identity(*who))
            self._check(lambda: absent, began, deadline, "join")
            if absent:
                # A rank that leaves before all have met has failed.
                here = [rank for rank, _ in self._peers if rank not in absent]
                failure = self.gone(here)
                if failure is not None:
                    raise failure
                time.sleep(min(0.002, max(deadline - time.monotonic(), 0)))
        self.sync(None, 0, deadline)
        self._release()

    def has_entered(self, rank: int) -> bool:
        return bool(self._block.word(rank, STATE))

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
                self._block.put_text(self._block.slot(self.rank, seq), head)
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

        self._waiter.until(page, here, lambda at: self._check(late, at, deadline, ""), deadline)
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
                own = said(self._head(self.rank, self._heads_of))
                doing = doing or f"call #{self._turn_of(self.rank)}, {own}"
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
        starts = [self._block.slot(self.rank, parity) for parity in (0, 1)]
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
    def pieces(self) -> Pieces:
        return self

    def has_place(self, dest: int) -> bool:
        """Return whether the ring of another rank has a place for a piece."""
        pair = self._block.pair(self.rank, dest)
        return self._words[pair + PUSHED] - self._words[pair + TAKEN] < PLACES

    def put(self, dest: int, header: bytes, data: Array) -> None:
        pushed = self._block.pair(self.rank, dest) + PUSHED
        number = self._words[pushed]
        place = self._block.place(self.rank, dest, number)
        self._block.put_text(place, header)
        LENGTH.pack_into(self._block.bytes, place + _DATA_LENGTH_AT, data.nbytes)
        start = place + PIECE_HEAD_BYTES
        self._block.data[start : start + data.nbytes] = data
        self._step(pushed, number + 1)

    def has_come(self, source: int) -> bool:
        pair = self._block.pair(source, self.rank)
        return self._words[pair + PUSHED] > self._words[pair + TAKEN]

    def piece(self, source: int) -> tuple[bytes, Array]:
        if self._fence is not None:
            self._fence()
        number = self._words[self._block.pair(source, self.rank) + TAKEN]
        place = self._block.place(source, self.rank, number)
        header = self._block.text(place, _DATA_LENGTH_AT - LENGTH.size)
        nbytes = LENGTH.unpack_from(self._block.bytes, place + _DATA_LENGTH_AT)[0]
        start = place + PIECE_HEAD_BYTES
        return header, self._block.data[start : start + nbytes]

    def release(self, source: int) -> None:
        index = self._block.pair(source, self.rank) + TAKEN
        self._step(index, self._words[index] + 1)

    def _step(self, index: int, value: int) -> None:
        if self._fence is not None:
            self._fence()
        self._words[index] = value
        self._waiter.wake_sleepers(index)

    def attend(
        self, done: Callable[[], bool], rank: int, deadline: float, *, sending: bool
    ) -> None:
        if done():  # mostly: what follows costs as much again
            return
        pair = self._block.pair
        # The word that the other rank changes.
        index = pair(self.rank, rank) + TAKEN if sending else pair(rank, self.rank) + PUSHED

        def check(began: float) -> None:
            late = lambda: [] if done() else [rank]  # noqa: E731
            self._check(late, began, deadline, moving(rank, sending))

        self._waiter.until(index, lambda _: done(), check, deadline)

    def give_way(self) -> None:
        super().give_way()
        self._waiter.give_way()

    # -- groups and their ends --------------------------------------------------------------

    def split(self, groups: list[list[int]], mine: int | None, share: Share) -> Fabric | None:
        ranks = [self.rank] if mine is None else groups[mine]
        is_maker = mine is not None and ranks[0] == self.rank
        fd, failure = -1, ""
        try:
            fd = create(len(ranks), self._group_id) if is_maker else fd
        except (MemoryError, OSError, OverflowError) as exc:
            failure = f"{type(exc).__name__}: {exc}"
        try:
            places = share((f"/proc/{os.getpid()}/fd/{fd}", failure))
            reasons = {rank: reason for rank, (_, reason) in enumerate(places) if reason}
            if failure:
                raise NoMemory(failure)
            if reasons:
                raise PeerDeclined(f"no memory for a smaller group: {reasons}", reasons=reasons)
        except BaseException:
            if is_maker and not failure:
                os.close(fd)
            raise
        if mine is None:
            return None
        if not is_maker:
            try:
                fd = os.open(places[ranks[0]][0], os.O_RDWR | os.O_CLOEXEC)
            except OSError as exc:
                raise JoinError(
                    f"rank {ranks[0]} has no memory for a smaller group: {exc}"
                ) from exc
        rank, size = ranks.index(self.rank), len(ranks)
        return ShmFabric(rank, size, self.watch, fd=fd, group_id=self._group_id)

    def abort(self, reason: str) -> None:
        block, start = self._block, self._block.control(self.rank) + TEXT
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
        self._release()
        self._pidfds.close()
        del self._words
        self._block.close()

    def _wake_all(self) -> None:
        # A sleeper waits on the word of the rank it misses, not on this one's.
        self._waiter.wake(self._me)
        for rank, page in self._peers:
            self._waiter.wake(page)
            self._waiter.wake(self._block.pair(rank, self.rank) + TAKEN)
            self._waiter.wake(self._block.pair(self.rank, rank) + PUSHED)

    def failure(self) -> CommError | None:
        if not self._block.bytes[ALERT]:
            return None
        for rank in range(self.size):
            text = self._block.text(self._block.control(rank) + TEXT, TEXT_BYTES)
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

    def _turn_of(self, rank: int) -> int:
        return self._number_of(rank) - self._block.word(rank, EXTRA)

    # -- where things are -----------------------------------------------------------------

    def _slice(self, rank: int, number: int, start: int, stop: int) -> Array:
        slot = self._block.slot(rank, number) + HEAD_BYTES
        return self._block.data[slot + start : slot + stop]

    def _head(self, rank: int, number: int) -> bytes:
        return self._block.text(self._block.slot(rank, number), HEAD_BYTES - LENGTH.size)
