"""Rounds through one block of shared memory.

The block, made by ``create`` and mapped by every rank::

    page 0            magic, version, size, group id; one abort byte; one sleeper byte per rank
    page 1 + r        control words of rank r, and its text when it aborts
    then, per rank and parity: 16 KB for the head, chunk_bytes for data

Every word has a single writer, its rank, so plain loads and stores are enough; the abort byte
may be set by all, always to 1. A round writes data, head, then the sequence word (this order is
what peers rely on; see ``memory_fence``). The slots alternate between two parities.

A waiting rank spins briefly, then yields, then sleeps in the kernel in slices; between slices it
looks at the abort byte, at its peers' processes, at ``watch`` and at the clock.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
import time

import numpy as np

from synk_comm._call import HEAD_BYTES
from synk_comm._fabric import SLICE_S, Fabric, Watch, aborted, chunk_bytes, describe, lost
from synk_comm._futex import Futex, low_word, memory_fence
from synk_comm._liveness import Identity, Vigil, identity
from synk_comm._memory import anonymous_memory
from synk_comm._ops import Array
from synk_comm.exceptions import CommError, JoinError

_PAGE = 4096
_MAGIC = b"synkcomm"
_HEADER = struct.Struct("<8sQQ16s")  # magic, layout version, size, group id
_VERSION = 1
_ABORT = 256  # the abort byte
_SLEEPERS = 512  # one byte per rank
MAX_SIZE = _PAGE - _SLEEPERS

# Control words of a rank, counted in 8 bytes from the start of its page.
_SEQ = 0  # rounds posted; alone on its cache line
_STATE = 8  # 0 not here yet, 1 joined, 2 closed
_PID, _STARTED, _NAMESPACE = 9, 10, 11
_TURN = 12  # collectives entered
_ENTERED = 13  # when, in ns of the monotonic clock, which all processes share
_LOST = 14  # 1 + the rank that this rank found gone
_HEADED = 15  # the round that carried the latest head
_TEXT = 256  # byte offset of the abort text: its length (u32), then UTF-8
_TEXT_BYTES = _PAGE - _TEXT - 4
_LENGTH = struct.Struct("<I")

_SPINS = 400
_YIELD_S = 0.001
_YIELDS_OVERSUBSCRIBED = 50
_nap = getattr(os, "sched_yield", lambda: time.sleep(0))


def block_bytes(size: int) -> int:
    """Return the length of the block for a group."""
    return _PAGE * (1 + size) + size * 2 * (HEAD_BYTES + chunk_bytes(size))


def create(size: int, group_id: bytes) -> int:
    """Make the block of a new group; return its descriptor."""
    if size > MAX_SIZE:
        raise ValueError(f"a group has at most {MAX_SIZE} ranks, got {size}")
    fd = anonymous_memory(block_bytes(size))
    os.pwrite(fd, _HEADER.pack(_MAGIC, _VERSION, size, group_id), 0)
    return fd


class ShmFabric(Fabric):
    """One rank's mapping of the group's block. Does not own ``fd``."""

    backend = "shm"

    def __init__(
        self, rank: int, size: int, watch: Watch | None, *, fd: int, group_id: bytes
    ) -> None:
        super().__init__(rank, size, watch)
        self._map = _map(fd, size, group_id)
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")
        self._data = np.frombuffer(self._map, np.uint8)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._me = self._page(rank) // 8
        self._peers = [(r, self._page(r) // 8) for r in range(size) if r != rank]
        self._nobody_sleeps = bytes(size)
        self._sleepers = self._bytes[_SLEEPERS : _SLEEPERS + size]
        self._seq = 0
        self._turn = 0
        self._heads_of = 0
        self._futex = Futex()
        self._fence = memory_fence()
        self._vigil = Vigil()
        self._oversubscribed = _cores() < size
        self._enter()

    def _enter(self) -> None:
        if self._words[self._me + _STATE]:
            raise JoinError(f"rank {self.rank} of this group has already been joined")
        pid, started, namespace = identity()
        words, me = self._words, self._me
        words[me + _PID], words[me + _STARTED], words[me + _NAMESPACE] = pid, started, namespace
        words[me + _ENTERED] = time.monotonic_ns()
        if self._fence is not None:
            self._fence()
        words[me + _STATE] = 1

    def meet(self, deadline: float) -> None:
        began = time.monotonic()
        absent = dict(self._peers)
        while absent:
            for rank, page in list(absent.items()):
                if self._words[page + _STATE]:
                    words = self._words[page + _PID : page + _PID + 3].tolist()
                    self._vigil.add(rank, Identity(*words))
                    del absent[rank]
            failure = self.failure() or self._peer_failure(list(absent))
            if failure is not None:
                raise failure
            if absent:
                if self.watch is not None:
                    self.watch()
                now = time.monotonic()
                if now >= deadline:
                    raise self.timeout(list(absent), now - began, "join")
                time.sleep(min(0.002, deadline - now))
        self.sync(None, 0, deadline)

    # -- a round --------------------------------------------------------------------------

    def slot(self) -> Array:
        start = self._slot(self.rank, self._seq + 1) + HEAD_BYTES
        return self._data[start : start + self.chunk_bytes]

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
        if head is not None:
            start = self._slot(self.rank, seq)
            packed = _LENGTH.pack(len(head)) + head
            self._bytes[start : start + len(packed)] = packed
            self._heads_of = seq
            self._turn += 1
            words[me + _TURN] = self._turn
            words[me + _ENTERED] = time.monotonic_ns()
            words[me + _HEADED] = seq
        if self._fence is not None:
            self._fence()
        self._seq = seq
        words[me + _SEQ] = seq
        if self._sleepers != self._nobody_sleeps:
            self._futex.wake(self._seq_address(self.rank))
        spins = 0 if self._oversubscribed else _SPINS
        for rank, page in self._peers:
            left = spins
            while words[page] < seq:
                if not left:
                    self._wait(rank, seq, deadline)
                    break
                left -= 1
        if self._fence is not None:
            self._fence()

    def _wait(self, rank: int, seq: int, deadline: float) -> None:
        """Wait for one rank's word the slow way."""
        words, page = self._words, self._page(rank) // 8
        began = time.monotonic()
        yields = 0
        while words[page] < seq:
            _nap()
            yields += 1
            if self._oversubscribed:
                if yields >= _YIELDS_OVERSUBSCRIBED:
                    break
            elif time.monotonic() - began > _YIELD_S:
                break
        while words[page] < seq:
            self._look_around(seq, began, deadline)
            self._sleepers[self.rank] = 1
            try:
                seen = words[page]
                if seen < seq:
                    slice_s = min(SLICE_S, max(deadline - time.monotonic(), 1e-4))
                    self._futex.wait(self._seq_address(rank), seen, slice_s)
            finally:
                self._sleepers[self.rank] = 0

    def _look_around(self, seq: int, began: float, deadline: float) -> None:
        """Raise what ends the wait, unless everybody has come meanwhile."""
        if self.watch is not None:
            self.watch()
        late = self._late(seq)
        failure = self.failure() or self._peer_failure(late)
        now = time.monotonic()
        if failure is None and now < deadline:
            return
        late = self._late(seq)  # a peer may have posted this round and then left
        if late:
            raise failure or self.timeout(late, now - began, f"call #{self._turn}")

    def _late(self, seq: int) -> list[int]:
        return [rank for rank, page in self._peers if self._words[page] < seq]

    def all_said(self, head: bytes) -> bool:
        packed = _LENGTH.pack(len(head)) + head
        view, length = self._bytes, len(packed)
        for rank, _ in self._peers:
            start = self._slot(rank, self._heads_of)
            if view[start : start + length] != packed:
                return False
        return True

    def heads(self) -> list[bytes]:
        return [self._head(rank, self._heads_of) for rank in range(self.size)]

    def read(self, rank: int, start: int, stop: int) -> Array:
        slot = self._slot(rank, self._seq) + HEAD_BYTES
        return self._data[slot + start : slot + stop]

    # -- failures -------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        page = self._page(self.rank)
        text = reason.encode("utf-8", "replace")[:_TEXT_BYTES]
        if not _LENGTH.unpack_from(self._bytes, page + _TEXT)[0]:
            start = page + _TEXT + 4
            self._bytes[start : start + len(text)] = text
            _LENGTH.pack_into(self._bytes, page + _TEXT, len(text))
        if self._fence is not None:
            self._fence()
        self._bytes[_ABORT] = 1
        self._wake_all()

    def lose(self, rank: int) -> None:
        self._words[self._me + _LOST] = 1 + rank
        self._wake_all()

    def _wake_all(self) -> None:
        # A sleeper waits on the word of the rank it misses, not on this one's.
        for rank in range(self.size):
            self._futex.wake(self._seq_address(rank))

    def failure(self) -> CommError | None:
        if not self._bytes[_ABORT]:
            return None
        for rank in range(self.size):
            start = self._page(rank) + _TEXT
            length = _LENGTH.unpack_from(self._bytes, start)[0]
            if length:
                text = bytes(self._bytes[start + 4 : start + 4 + min(length, _TEXT_BYTES)])
                return aborted(rank, text.decode("utf-8", "replace"))
        return aborted(-1, "no reason was left")

    def _peer_failure(self, late: list[int]) -> CommError | None:
        for rank in self._vigil.gone():
            if rank in late:
                return lost(rank, f"its process (pid {self._word(rank, _PID)}) has ended")
        for rank, page in self._peers:
            gone = self._words[page + _LOST]
            if gone:
                return lost(gone - 1, f"rank {rank} found it gone")
        for rank in late:
            if self._word(rank, _STATE) == 2:
                return lost(rank, "it has closed its communicator")
        return None

    def last_seen(self, rank: int) -> str:
        if not self._word(rank, _STATE):
            return "has not joined yet"
        headed = self._word(rank, _HEADED)
        head = self._head(rank, headed) if headed else b""
        return describe(head, self._word(rank, _TURN), self._word(rank, _ENTERED) / 1e9)

    # -- the end --------------------------------------------------------------------------

    def close(self) -> None:
        self._words[self._me + _STATE] = 2
        self._wake_all()
        self.drop()

    def drop(self) -> None:
        self._vigil.close()
        # Views keep the mapping alive until the last of them is gone.
        del self._words, self._sleepers, self._bytes, self._data
        with contextlib.suppress(BufferError):
            self._map.close()

    # -- where things are -----------------------------------------------------------------

    def _page(self, rank: int) -> int:
        return _PAGE * (1 + rank)

    def _slot(self, rank: int, seq: int) -> int:
        number = 2 * rank + (seq & 1)
        return _PAGE * (1 + self.size) + number * (HEAD_BYTES + self.chunk_bytes)

    def _head(self, rank: int, seq: int) -> bytes:
        start = self._slot(rank, seq)
        length = min(_LENGTH.unpack_from(self._bytes, start)[0], HEAD_BYTES - 4)
        return bytes(self._bytes[start + 4 : start + 4 + length])

    def _word(self, rank: int, which: int) -> int:
        return self._words[self._page(rank) // 8 + which]

    def _seq_address(self, rank: int) -> int:
        return low_word(self._address + self._page(rank))


def _map(fd: int, size: int, group_id: bytes) -> mmap.mmap:
    cure = "start ranks with subprocess.Popen(..., pass_fds=group.fds)"
    try:
        length = os.fstat(fd).st_size
        if length != block_bytes(size):
            raise JoinError(f"descriptor {fd} is not the memory of this group; {cure}")
        mapping = mmap.mmap(fd, length)
    except OSError as exc:
        if isinstance(exc, JoinError):
            raise
        raise JoinError(f"descriptor {fd} of the group was not inherited ({exc}); {cure}") from exc
    if mapping[: _HEADER.size] != _HEADER.pack(_MAGIC, _VERSION, size, group_id):
        mapping.close()
        raise JoinError(f"descriptor {fd} is the memory of another group; {cure}")
    return mapping


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
