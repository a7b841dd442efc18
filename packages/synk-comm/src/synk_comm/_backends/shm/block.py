"""The layout of the block of memory that the ranks of a shm group share.

::

    page 0            header; the core of the latest waker; alerts: abort, one sleeper per rank
    page 1 + r        control words of rank r, and its text when it aborts
    counters          two words, each on its cache line, for each ordered pair of ranks
    slots             per rank and parity: 16 KB for the head, slot_bytes for data
    channels          per ordered pair: PLACES pieces, each 1 KB for its header, then the data

Every word has a single writer, its rank, so that plain loads and stores are enough. All may set the
abort byte, always to 1, and the core of the waker, which is a hint.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import mmap
import os
import struct

import numpy as np

from synk_comm._core.calls import HEAD_BYTES
from synk_comm._core.fabric import PIECE_HEAD_BYTES, piece_bytes, slot_bytes
from synk_comm._core.ops import Array
from synk_comm._system.futex import low_word
from synk_comm._system.memory import anonymous_memory, memory_errors
from synk_comm.exceptions import JoinError

PAGE = 4096
_HEADER = struct.Struct("<8sQ16s")  # synkcomm, size, group id
WAKER = 8  # the word with 1 + the core of the rank that woke others last
ALERT = 512  # the abort byte; the sleeper byte of rank r is at ALERT + 1 + r
MAX_SIZE = 1024


class Word:
    """Control words of a rank, counted in 8 bytes from the start of its page."""

    POSTED = 0  # signature and number of the latest round; alone on its cache line
    STATE = 8  # 0 not here yet, or:
    JOINED, CLOSED = 1, 2
    PID, STARTED, NAMESPACE = 9, 10, 11
    EXTRA = 12  # rounds posted without a head
    LOST = 13  # 1 + the rank that this rank found gone


LENGTH = struct.Struct("<I")
_REASON = 256  # byte offset, from a rank's page, of its abort text: its length, then UTF-8
_REASON_BYTES = PAGE - _REASON - LENGTH.size
ROUND = 0xFFFF  # the bits of the posted word that hold the number of the round; others: signature

PLACES = 2
TAKEN = 8  # words from ``pushed`` to the one in which the receiver counts released pieces
_PAIR_WORDS = 16


@functools.lru_cache(maxsize=512)
def signature(head: bytes) -> int:
    """Return a 48-bit hash of a head, shifted for the posted word."""
    return int.from_bytes(hashlib.blake2b(head, digest_size=6).digest(), "big") << 16


class Layout:
    """Offsets for a group of ``size``, in bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        pairs = size * (size - 1)
        self._counters = PAGE * (1 + size)
        self._slots = self._counters + _pages(pairs * _PAIR_WORDS * 8)
        self._slot_bytes = HEAD_BYTES + slot_bytes(size)
        self._channels = self._slots + _pages(2 * size * self._slot_bytes)
        self._place_bytes = PIECE_HEAD_BYTES + piece_bytes(size)
        # The length of the channels, which get memory with their first use.
        self.sparse = _pages(pairs * PLACES * self._place_bytes)
        self.nbytes = self._channels + self.sparse

    def control(self, rank: int) -> int:
        """Return the offset of a rank's page."""
        return PAGE * (1 + rank)

    def pushed(self, source: int, dest: int) -> int:
        """Return the index of the word in which a sender counts its pieces."""
        return self._counters // 8 + self._pair(source, dest) * _PAIR_WORDS

    def slot(self, rank: int, number: int) -> int:
        """Return the offset of a rank's slot for a round: the head, then the data."""
        return self._slots + (2 * rank + (number & 1)) * self._slot_bytes

    def place(self, source: int, dest: int, number: int) -> int:
        """Return the offset of a piece: its header, then the data."""
        which = self._pair(source, dest) * PLACES + number % PLACES
        return self._channels + which * self._place_bytes

    def _pair(self, source: int, dest: int) -> int:
        return source * (self.size - 1) + dest - (dest > source)

    def label(self, group_id: bytes) -> bytes:
        """Return the first bytes of the block."""
        return _HEADER.pack(b"synkcomm", self.size, group_id)


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def create(size: int, group_id: bytes) -> int:
    """Make the block of a new group; return its descriptor."""
    if size > MAX_SIZE:
        raise ValueError(f"a group has at most {MAX_SIZE} ranks, got {size}")
    layout = Layout(size)
    fd = anonymous_memory(layout.nbytes, layout.sparse)
    os.pwrite(fd, layout.label(group_id), 0)
    return fd


class Block(Layout):
    """One rank's mapping of a group's block; JoinError if the descriptor is another's."""

    def __init__(self, fd: int, size: int, group_id: bytes) -> None:
        super().__init__(size)
        cure = "start ranks with subprocess.Popen(..., pass_fds=group.fds), or keep the group open"
        try:
            with memory_errors(self.nbytes):
                self._map = mmap.mmap(fd, self.nbytes)
        except (OSError, ValueError) as exc:  # it is not inherited, or too short
            raise JoinError(f"descriptor {fd} is not the group's memory ({exc}); {cure}") from exc
        label = self.label(group_id)
        if self._map[: len(label)] != label:
            self._map.close()
            raise JoinError(f"descriptor {fd} is the memory of another group; {cure}")
        self.bytes = memoryview(self._map)
        self.words = self.bytes.cast("Q")
        self.data: Array = np.frombuffer(self._map, np.uint8)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def word_address(self, index: int) -> int:
        """Return the address of the low half of a word, for the futex."""
        return low_word(self._address + 8 * index)

    def word(self, rank: int, which: int) -> int:
        return self.words[self.control(rank) // 8 + which]

    def put_text(self, start: int, text: bytes) -> None:
        written = packed(text)
        self.bytes[start : start + len(written)] = written

    def text(self, start: int, limit: int = PIECE_HEAD_BYTES) -> bytes:
        """Read a text after its length, which another rank may be writing: at most ``limit``."""
        length = min(LENGTH.unpack_from(self.bytes, start)[0], limit)
        start += LENGTH.size
        return bytes(self.bytes[start : start + length])

    def put_reason(self, rank: int, reason: str) -> None:
        """Write the abort text of a rank that has none."""
        start = self.control(rank) + _REASON
        if not self.text(start, 1):
            self.put_text(start, reason.encode("utf-8", "replace")[:_REASON_BYTES])

    def reason(self, rank: int) -> str:
        """Return the abort text of a rank, or ""."""
        text = self.text(self.control(rank) + _REASON, _REASON_BYTES)
        return text.decode("utf-8", "replace")

    def close(self) -> None:
        """Unmap, as soon as the last view has gone."""
        del self.words, self.bytes, self.data
        with contextlib.suppress(BufferError):
            self._map.close()


def packed(text: bytes) -> bytes:
    """Return a text after its length."""
    return LENGTH.pack(len(text)) + text
