"""Pieces between two ranks: a ring of a few places for each direction."""

from __future__ import annotations

from typing import Callable

from synk_comm._core.fabric import PIECE_HEAD_BYTES, moving
from synk_comm._core.ops import Array
from synk_comm.exceptions import CommError

from .block import LENGTH, PLACES, PUSHED, TAKEN, Block
from .waiting import Waiter

_DATA_LENGTH_AT = PIECE_HEAD_BYTES - LENGTH.size

Check = Callable[[Callable[[], "list[int]"], float, float, str], float]
"""``check(late, began, deadline, doing)`` raises if a wait must end, else returns how many seconds
it may last until the next check."""


class Channels:
    """One rank's ends of all channels.

    Attributes:
        written: by receiver, the header that lies in each place; None if that is not known.
    """

    def __init__(
        self,
        block: Block,
        rank: int,
        waiter: Waiter,
        fence: Callable[[], object] | None,
        check: Check,
        failure: Callable[[], CommError | None],
    ) -> None:
        self.block = block
        self.rank = rank
        self.waiter = waiter
        self.fence = fence
        self._check = check
        self._failure = failure
        self.written: dict[int, list[bytes | None]] = {
            dest: [None] * PLACES for dest in range(block.layout.size)
        }

    def attend(
        self, done: Callable[[], bool], peer: int, deadline: float, *, sending: bool
    ) -> None:
        """Wait until ``done`` returns True; asleep on the word that the peer changes."""
        pair = self.block.layout.pair
        index = pair(self.rank, peer) + TAKEN if sending else pair(peer, self.rank) + PUSHED
        self._until(peer, index, lambda _: done(), deadline, moving(peer, sending))

    def has_place(self, dest: int) -> bool:
        """Return whether there is a place for a piece."""
        pair = self.block.layout.pair(self.rank, dest)
        return self.block.words[pair + PUSHED] - self.block.words[pair + TAKEN] < PLACES

    def put(self, dest: int, header: bytes, data: Array) -> None:
        """Send a piece; there is a place for it."""
        block = self.block
        pushed = block.layout.pair(self.rank, dest) + PUSHED
        number = block.words[pushed]
        place = block.layout.place(self.rank, dest, number)
        self.written[dest][number % PLACES] = None
        block.put_text(place, header)
        self.put_length(place, data.nbytes)
        start = place + PIECE_HEAD_BYTES
        block.data[start : start + data.nbytes] = data
        self._step(pushed, number + 1)

    def has_come(self, source: int) -> bool:
        """Return whether a piece is here."""
        pair = self.block.layout.pair(source, self.rank)
        return self.block.words[pair + PUSHED] > self.block.words[pair + TAKEN]

    def piece(self, source: int) -> tuple[bytes, Array]:
        """Return the next piece, which is here."""
        block = self.block
        if self.fence is not None:
            self.fence()
        number = block.words[block.layout.pair(source, self.rank) + TAKEN]
        place = block.layout.place(source, self.rank, number)
        header = block.text(place, _DATA_LENGTH_AT - LENGTH.size)
        nbytes = LENGTH.unpack_from(block.bytes, place + _DATA_LENGTH_AT)[0]
        start = place + PIECE_HEAD_BYTES
        return header, block.data[start : start + nbytes]

    def release(self, source: int) -> None:
        """Give the place of the piece just pulled back to the sender."""
        index = self.block.layout.pair(source, self.rank) + TAKEN
        self._step(index, self.block.words[index] + 1)

    def put_length(self, place: int, nbytes: int) -> None:
        """Write how much data a place holds."""
        LENGTH.pack_into(self.block.bytes, place + _DATA_LENGTH_AT, nbytes)

    def await_place(self, dest: int, number: int, deadline: float) -> None:
        """Wait until there is a place for a piece."""
        index = self.block.layout.pair(self.rank, dest) + TAKEN
        self._wait(dest, index, lambda taken: number - taken < PLACES, deadline, sending=True)

    def await_piece(self, source: int, number: int, deadline: float) -> None:
        """Wait until a piece has come."""
        index = self.block.layout.pair(source, self.rank) + PUSHED
        self._wait(source, index, lambda pushed: pushed > number, deadline, sending=False)

    def heed(self, index: int) -> None:
        """Wake who sleeps on a word; raise if the group was aborted."""
        self.waiter.wake(index)
        failure = self._failure()
        if failure is not None:
            raise failure

    def _wait(
        self, peer: int, index: int, here: Callable[[int], bool], deadline: float, *, sending: bool
    ) -> None:
        words = self.block.words
        for _ in range(self.waiter.spins + 1):
            if here(words[index]):
                return
        self._until(peer, index, here, deadline, moving(peer, sending))

    def _until(
        self, peer: int, index: int, here: Callable[[int], bool], deadline: float, doing: str
    ) -> None:
        words = self.block.words

        def check(began: float) -> float:
            return self._check(lambda: [] if here(words[index]) else [peer], began, deadline, doing)

        self.waiter.until(index, here, check, deadline)

    def _step(self, index: int, value: int) -> None:
        if self.fence is not None:
            self.fence()
        self.block.words[index] = value
        self.waiter.wake_sleepers(index)
