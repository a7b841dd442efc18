"""Pieces between two ranks: a ring of a few places for each direction."""

from __future__ import annotations

from typing import Callable

from synk_comm._core.fabric import PIECE_HEAD_BYTES
from synk_comm._core.ops import Array

from .block import LENGTH, PLACES, PUSHED, TAKEN, Block
from .waiting import Waiter

_DATA_LENGTH_AT = PIECE_HEAD_BYTES - LENGTH.size


class Channels:
    """One rank's ends of all channels; see ``Pieces``."""

    def __init__(
        self, block: Block, rank: int, waiter: Waiter, fence: Callable[[], object] | None
    ) -> None:
        self._block = block
        self._rank = rank
        self._waiter = waiter
        self._fence = fence

    def has_place(self, dest: int) -> bool:
        """Return whether there is a place for a piece."""
        pair = self._block.layout.pair(self._rank, dest)
        return self._block.words[pair + PUSHED] - self._block.words[pair + TAKEN] < PLACES

    def put(self, dest: int, header: bytes, data: Array) -> None:
        """Send a piece; there is a place for it."""
        block = self._block
        pushed = block.layout.pair(self._rank, dest) + PUSHED
        number = block.words[pushed]
        place = block.layout.place(self._rank, dest, number)
        block.put_text(place, header)
        LENGTH.pack_into(block.bytes, place + _DATA_LENGTH_AT, data.nbytes)
        start = place + PIECE_HEAD_BYTES
        block.data[start : start + data.nbytes] = data
        self._step(pushed, number + 1)

    def has_come(self, source: int) -> bool:
        """Return whether a piece is here."""
        pair = self._block.layout.pair(source, self._rank)
        return self._block.words[pair + PUSHED] > self._block.words[pair + TAKEN]

    def piece(self, source: int) -> tuple[bytes, Array]:
        """Return the next piece, which is here."""
        block = self._block
        if self._fence is not None:
            self._fence()
        number = block.words[block.layout.pair(source, self._rank) + TAKEN]
        place = block.layout.place(source, self._rank, number)
        header = block.text(place, _DATA_LENGTH_AT - LENGTH.size)
        nbytes = LENGTH.unpack_from(block.bytes, place + _DATA_LENGTH_AT)[0]
        start = place + PIECE_HEAD_BYTES
        return header, block.data[start : start + nbytes]

    def release(self, source: int) -> None:
        """Give the place of the piece just pulled back to the sender."""
        index = self._block.layout.pair(source, self._rank) + TAKEN
        self._step(index, self._block.words[index] + 1)

    def _step(self, index: int, value: int) -> None:
        if self._fence is not None:
            self._fence()
        self._block.words[index] = value
        self._waiter.wake_sleepers(index)
