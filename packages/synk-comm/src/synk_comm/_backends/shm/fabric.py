"""Rounds through one block of shared memory (``block.py`` has the layout).

A round writes data, then the head, then the *posted* word (see ``memory_fence``): the number of the
round, in 16 bits, and a signature of the head, in 48. A peer's word that equals the own one shows
that the peer has come and makes the same call; otherwise the heads are read. No rank is ever more
than one round ahead of another, so that numbers may wrap around.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Collection
from typing import Any, Callable

from synk_comm._core.calls import HEAD_BYTES
from synk_comm._core.fabric import (
    PIECE_HEAD_BYTES,
    Fabric,
    NoMemory,
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
from synk_comm._core.repeats import parts_of, repeating
from synk_comm._system.futex import memory_fence
from synk_comm._system.liveness import Identity, Pidfds, identity
from synk_comm.exceptions import CommError, JoinError, PeerDeclined

from .block import ALERT, LENGTH, PLACES, ROUND, TAKEN, Block, Word, create, packed, signature
from .waiting import Waiter

_IDENTITY = (Word.PID, Word.STARTED, Word.NAMESPACE)


class ShmFabric(Fabric):
    """One rank's end of a block. Most of its methods are those of ``Fabric``.

    ``fd``, of the block's memory, is closed after all have met: others may open it here.
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
        pages = [block.control(r) // 8 + Word.POSTED for r in range(size)]
        self._me = pages[rank]
        self._peers = [(r, page) for r, page in enumerate(pages) if r != rank]
        self._seq = 0  # number of the latest round
        self._said = [b"", b""]  # the heads in the own slots, by parity
        self._heads_of = 0
        self._agreed = False
        self._extra = 0
        if words[self._me + Word.STATE]:
            self.drop()
            raise JoinError(f"rank {rank} of this group has already been joined")
        for word, value in zip(_IDENTITY, identity()):
            words[self._me + word] = value
        if self._fence is not None:
            self._fence()
        words[self._me + Word.STATE] = Word.JOINED

    def meet(self, deadline: float) -> None:
        began = time.monotonic()
        absent = [rank for rank, _ in self._peers]
        while absent:
            for rank in filter(self.has_entered, absent.copy()):
                absent.remove(rank)
                process = Identity(*(self._block.word(rank, word) for word in _IDENTITY))
                self._pidfds.add(rank, process)
            self._check(lambda: absent, began, deadline, "join")
            if absent:
                # A rank that leaves before all have met has failed.
                failure = self.gone([rank for rank, _ in self._peers if rank not in absent])
                if failure is not None:
                    raise failure
                time.sleep(min(0.002, max(deadline - time.monotonic(), 0)))
        self.sync(None, 0, deadline)
        self._release()

    def has_entered(self, rank: int) -> bool:
        return bool(self._block.word(rank, Word.STATE))

    def slot(self) -> Array:
        return self._slice(self.rank, self._seq + 1, 0, self.slot_bytes)

    def sync(
        self,
        head: bytes | None,
        nbytes: int,  # noqa: ARG002 - all can read all of it
        deadline: float,
        *,
        to: int | None = None,  # noqa: ARG002
        part: int = 0,  # noqa: ARG002
    ) -> None:
        words, me, written = self._words, self._me, self._said
        seq = self._seq + 1
        posted = seq & ROUND
        if head is None:
            self._extra += 1
            words[me + Word.EXTRA] = self._extra
            head = written[self._seq & 1]  # for errors of other ranks
        else:
            self._heads_of = seq
            posted |= signature(head)
        if written[seq & 1] != head:
            self._block.put_text(self._block.slot(self.rank, seq), head)
        written[seq & 1] = head
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
        """Wait for one rank's round; return whether it makes the same call."""

        def here(word: int) -> bool:
            return (word - seq) & ROUND < 2

        def late() -> list[int]:
            return [rank for rank, index in self._peers if not here(self._words[index])]

        self._waiter.until(page, here, lambda at: self._check(late, at, deadline, ""), deadline)
        return self._words[page] == posted

    def _check(
        self, late: Callable[[], Collection[int]], began: float, deadline: float, doing: str
    ) -> None:
        """Raise an error that ends a wait, unless all have come meanwhile."""
        self.look()
        missing = list(late())
        failure = self.gone(missing)
        now = time.monotonic()
        if failure is not None or now >= deadline:
            missing = list(late())  # a peer may have come and then left
            if missing:
                own = said(self._said[self._seq & 1])
                doing = doing or f"call #{self._seq - self._extra}, {own}"
                raise failure or self.timeout(missing, now - began, doing)

    def all_said(self, head: bytes) -> bool:
        return self._agreed or all(said == head for said in self.heads())

    def heads(self) -> list[bytes]:
        return [self._head(rank, self._heads_of) for rank in range(self.size)]

    def read(self, rank: int, start: int, stop: int) -> Array:
        return self._slice(rank, self._seq, start, stop)

    @property
    def is_first_round(self) -> bool:
        return self._seq == self._heads_of

    def slots(self, rank: int) -> tuple[Array, Array]:
        """Return both slots of a rank, that of even rounds first."""
        length = self.slot_bytes
        return self._slice(rank, 0, 0, length), self._slice(rank, 1, 0, length)

    # `exchange` is one function, however long: each call of another one costs 3 % of the whole.
    def shortcut(self, repeated: RepeatedCall) -> Shortcut | None:
        mine, finish = parts_of(self.slots, repeated.calls, self.rank)
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
                self._answer_alert()
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

    def _answer_alert(self) -> None:
        """Raise if the group was aborted; else wake the sleepers."""
        failure = self.failure()
        if failure is not None:
            raise failure
        self._waiter.wake_sleepers(self._me)

    def has_place(self, dest: int) -> bool:
        pushed = self._block.pushed(self.rank, dest)
        return self._words[pushed] - self._words[pushed + TAKEN] < PLACES

    def put(self, dest: int, header: bytes, data: Array) -> None:
        pushed = self._block.pushed(self.rank, dest)
        number = self._words[pushed]
        place = self._block.place(self.rank, dest, number)
        self._block.put_text(place, header)
        start = place + PIECE_HEAD_BYTES
        LENGTH.pack_into(self._block.bytes, start - LENGTH.size, data.nbytes)
        self._block.data[start : start + data.nbytes] = data
        self._step(pushed, number + 1)

    def has_come(self, source: int) -> bool:
        pushed = self._block.pushed(source, self.rank)
        return self._words[pushed] > self._words[pushed + TAKEN]

    def piece(self, source: int) -> tuple[bytes, Array]:
        if self._fence is not None:
            self._fence()
        number = self._words[self._block.pushed(source, self.rank) + TAKEN]
        place = self._block.place(source, self.rank, number)
        start = place + PIECE_HEAD_BYTES
        (nbytes,) = LENGTH.unpack_from(self._block.bytes, start - LENGTH.size)
        return self._block.text(place), self._block.data[start : start + nbytes]

    def release(self, source: int) -> None:
        index = self._block.pushed(source, self.rank) + TAKEN
        self._step(index, self._words[index] + 1)

    def _step(self, index: int, value: int) -> None:
        if self._fence is not None:
            self._fence()
        self._words[index] = value
        self._waiter.wake_sleepers(index)

    def attend(
        self, done: Callable[[], bool], rank: int, deadline: float, *, sending: bool
    ) -> None:
        if done():  # mostly; the rest costs as much again
            return
        block = self._block  # in which the other rank changes this word:
        index = block.pushed(self.rank, rank) + TAKEN if sending else block.pushed(rank, self.rank)

        def check(began: float) -> None:
            late = lambda: [] if done() else [rank]  # noqa: E731
            self._check(late, began, deadline, moving(rank, sending))

        self._waiter.until(index, lambda _: done(), check, deadline)

    def give_way(self) -> None:
        super().give_way()
        self._waiter.give_way()

    def split(self, groups: list[list[int]], mine: int | None, share: Share) -> Fabric | None:
        ranks = [] if mine is None else groups[mine]
        is_maker = ranks[:1] == [self.rank]
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
            if fd >= 0:
                os.close(fd)
            raise
        if not ranks:
            return None
        try:
            fd = fd if is_maker else os.open(places[ranks[0]][0], os.O_RDWR | os.O_CLOEXEC)
        except OSError as exc:
            raise JoinError(f"rank {ranks[0]} has no memory for a smaller group: {exc}") from exc
        rank, size = ranks.index(self.rank), len(ranks)
        return ShmFabric(rank, size, self.watch, fd=fd, group_id=self._group_id)

    def abort(self, reason: str) -> None:
        self._block.put_reason(self.rank, reason)
        if self._fence is not None:
            self._fence()
        self._block.bytes[ALERT] = 1
        self._wake_all()

    def lose(self, rank: int) -> None:
        self._block.words[self._me + Word.LOST] = 1 + rank
        self._wake_all()

    def close(self) -> None:
        self._block.words[self._me + Word.STATE] = Word.CLOSED
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
            self._waiter.wake(self._block.pushed(rank, self.rank) + TAKEN)
            self._waiter.wake(self._block.pushed(self.rank, rank))

    def failure(self) -> CommError | None:
        if not self._block.bytes[ALERT]:
            return None
        for rank in range(self.size):
            reason = self._block.reason(rank)
            if reason:
                return aborted(rank, reason)
        return aborted(-1, "no reason was left")

    def gone(self, ranks: Collection[int]) -> CommError | None:
        lost_peer = self._lost_peer(ranks)
        # Last: a rank that aborts the group closes its communicator at once.
        return self.failure() or lost_peer

    def _lost_peer(self, late: Collection[int]) -> CommError | None:
        """Return the first lost rank: found by others, or among those waited for."""
        dead = self._pidfds.gone()
        # A rank that found another one gone, perhaps this one in another thread, ended because of
        # it, and may have left by now.
        found = {rank: self._block.word(rank, Word.LOST) - 1 for rank in range(self.size)}
        causes = [cause for cause in found.values() if cause >= 0]
        causes.sort(key=lambda rank: found[rank] >= 0)
        for rank in [*causes, *late]:
            if rank in dead:
                pid = self._block.word(rank, Word.PID)
                return lost(rank, f"its process (pid {pid}) has ended")
            if rank in causes:
                return lost(rank, "another rank found it gone")
        for rank in late:
            if self._block.word(rank, Word.STATE) == Word.CLOSED:
                return lost(rank, "it has closed its communicator")
        return None

    def last_seen(self, rank: int) -> str:
        if not self.has_entered(rank):
            return "has not joined yet"
        # The number of its latest round, of which its word has the last bits.
        behind = (self._seq - self._block.word(rank, Word.POSTED)) & ROUND
        number = self._seq - (behind if behind < ROUND // 2 else behind - ROUND - 1)
        turn = number - self._block.word(rank, Word.EXTRA)
        return describe(self._head(rank, number), turn)

    def _slice(self, rank: int, number: int, start: int, stop: int) -> Array:
        slot = self._block.slot(rank, number) + HEAD_BYTES
        return self._block.data[slot + start : slot + stop]

    def _head(self, rank: int, number: int) -> bytes:
        return self._block.text(self._block.slot(rank, number), HEAD_BYTES - LENGTH.size)
