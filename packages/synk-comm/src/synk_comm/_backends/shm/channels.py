"""Pieces between two ranks: a ring of a few places for each direction."""

from __future__ import annotations

from typing import Callable

from synk_comm._core.fabric import PIECE_HEAD_BYTES
from synk_comm._core.ops import Array
from synk_comm.exceptions import CommError

from .block import LENGTH, PLACES, PUSHED, TAKEN, Block
from .waiting import Waiter

_DATA_LENGTH_AT = PIECE_HEAD_BYTES - LENGTH.size

Check = Callable[[Callable[[], "list[int]"], float, float, str], None]
"""``check(late, began, deadline, doing)`` raises if a wait must end."""


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

    def push(self, dest: int, header: bytes, data: Array, deadline: float) -> None:
        """Send a piece, once there is a place for it."""
        block = self.block
        pushed = block.layout.pair(self.rank, dest) + PUSHED
        number = block.words[pushed]
        self.await_place(dest, number, deadline)
        place = block.layout.place(self.rank, dest, number)
        self.written[dest][number % PLACES] = None
        block.put_text(place, header)
        self.put_length(place, data.nbytes)
        start = place + PIECE_HEAD_BYTES
        block.data[start : start + data.nbytes] = data
        self._step(pushed, number + 1)

    def pull(self, source: int, deadline: float) -> tuple[bytes, Array]:
        """Wait for the next piece."""
        block = self.block
        number = block.words[block.layout.pair(source, self.rank) + TAKEN]
        self.await_piece(source, number, deadline)
        if self.fence is not None:
            self.fence()
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
        doing = f"send to rank {dest}"
        self._wait(dest, index, lambda taken: number - taken < PLACES, deadline, doing)

    def await_piece(self, source: int, number: int, deadline: float) -> None:
        """Wait until a piece has come."""
        index = self.block.layout.pair(source, self.rank) + PUSHED
        doing = f"recv from rank {source}"
        self._wait(source, index, lambda pushed: pushed > number, deadline, doing)

    def heed(self, index: int) -> None:
        """Wake who sleeps on a word; raise if the group was aborted."""
        self.waiter.wake(index)
        failure = self._failure()
        if failure is not None:
            raise failure

    def _wait(
        self, peer: int, index: int, here: Callable[[int], bool], deadline: float, doing: str
    ) -> None:
        words = self.block.words
        for _ in range(self.waiter.spins + 1):
            if here(words[index]):
                return

        def check(began: float) -> None:
            def late() -> list[int]:
                return [] if here(words[index]) else [peer]

            self._check(late, began, deadline, doing)

        self.waiter.until(index, here, check, deadline)

    def _step(self, index: int, value: int) -> None:
        if self.fence is not None:
            self.fence()
        self.block.words[index] = value
        self.waiter.wake_sleepers(index)
