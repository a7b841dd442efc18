"""Pieces from rank to rank, as MPI messages that are synchronous: sent when they are received.

And quick ways to send and receive an array in one piece again, like those of ``shortcuts.py``.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Collection
from functools import partial
from typing import Any, Callable, Protocol

import numpy as np

from synk_comm._core.calls import Kind, count_bytes, text_dtype
from synk_comm._core.fabric import Entrance, moving
from synk_comm._core.lists import bare, typed
from synk_comm._core.ops import Array
from synk_comm.exceptions import CommTimeout

from .notes import Notes
from .requests import Outstanding

_TAG = 2
_PIECES = 4  # that may be on the way to a rank
_LENGTH = struct.Struct("<Q")  # of the header
_SPINS = 50
"""Looks at a rank's channel before the first look at anything else."""


class Letters:
    """The pieces of one rank to and from all others.

    Attributes:
        error: what MPI raises.
    """

    def __init__(self, mpi: Any, comm: Any, outstanding: Outstanding) -> None:
        self.error: type[Exception] = mpi.Exception
        self._mpi = mpi
        self._comm = comm
        self._outstanding = outstanding
        self._under_way: defaultdict[int, deque[Any]] = defaultdict(deque)
        self._sent: defaultdict[int, int] = defaultdict(int)
        self._received: defaultdict[int, int] = defaultdict(int)
        self._arriving: dict[int, tuple[Any, Array]] = {}
        self._status = mpi.Status()

    def sent(self, rank: int) -> int:
        """Return how many pieces have gone to a rank."""
        return self._sent[rank]

    def received(self, rank: int) -> int:
        """Return how many pieces of a rank have been received whole."""
        return self._received[rank]

    def has_place(self, dest: int) -> bool:
        """Return whether another piece may go to a rank."""
        under_way = self._under_way[dest]
        while under_way and under_way[0].Test():
            under_way.popleft()
        return len(under_way) < _PIECES

    def put(self, dest: int, header: bytes, data: Array) -> None:
        """Send a piece; its data are copied."""
        begin = _beginning(header)
        piece = np.empty(len(begin) + data.nbytes, np.uint8)
        piece[: len(begin)] = np.frombuffer(begin, np.uint8)
        piece[len(begin) :] = data
        self.post(dest, piece)

    def post(self, dest: int, piece: bytes | Array) -> None:
        """Send a piece as it is."""
        request = self._comm.Issend([piece, self._mpi.BYTE], dest, _TAG)
        self._under_way[dest].append(request)
        self._outstanding.add(request, piece)
        self._sent[dest] += 1

    def has_come(self, source: int) -> bool:
        """Return whether the next piece of a rank is here whole."""
        if source not in self._arriving:
            message = self._comm.Improbe(source, _TAG, self._status)
            if message is None:
                return False
            piece = np.empty(self._status.Get_count(self._mpi.BYTE), np.uint8)
            request = message.Irecv([piece, self._mpi.BYTE])
            self._outstanding.add(request, piece)
            self._arriving[source] = request, piece
        return bool(self._arriving[source][0].Test())

    def piece(self, source: int) -> tuple[bytes, Array]:
        """Return header and data of the piece that has come; valid until it is released."""
        piece = self._arriving[source][1]
        (length,) = _LENGTH.unpack_from(piece.data)
        start = _LENGTH.size + length
        return piece[_LENGTH.size : start].tobytes(), piece[start:]

    def release(self, source: int) -> None:
        """Forget the piece that has come."""
        del self._arriving[source]
        self._received[source] += 1


class Waits(Protocol):
    """The part of ``MpiFabric`` that quick ways work on."""

    io: threading.Lock
    notes: Notes
    letters: Letters

    def wait(
        self, done: Callable[[], Any], ranks: Collection[int], deadline: float, doing: str
    ) -> None:
        """Wait until ``done`` returns something true, or it cannot be any more."""


def sender(
    fabric: Waits, dest: int, header: bytes, guard: Entrance, timeout_s: float
) -> Callable[[Array], None]:
    """Return what sends arrays of one dtype and shape, under one header."""
    lock, io, notes, letters = guard.lock, fabric.io, fabric.notes, fabric.letters
    has_place, post, error = letters.has_place, letters.post, letters.error
    begin = _beginning(header)

    def send(x: Array) -> None:
        if not lock:
            raise guard.refusal()
        entered = sent = False
        try:
            lock.pop()
            entered = True
            with io:
                try:
                    notes.enter()
                    if not has_place(dest):
                        deadline = time.monotonic() + timeout_s
                        fabric.wait(partial(has_place, dest), [dest], deadline, moving(dest, True))
                    post(dest, begin + x.tobytes())
                    sent = True
                except error as exc:
                    raise notes.mpi_failed(exc) from exc
        except BaseException as exc:
            if not entered and isinstance(exc, IndexError):  # another thread was quicker
                raise guard.refusal() from None
            guard.leave(exc, in_step=not sent and isinstance(exc, CommTimeout))
            raise
        lock.append(None)

    return send


def receiver(
    fabric: Waits,
    source: int,
    header: bytes,
    kind: Kind,
    guard: Entrance,
    timeout_s: float,
    otherwise: Callable[[Any, float], Array],
    is_calm: Callable[[BaseException], bool],
) -> Callable[[Any], Array]:
    """Return what receives arrays that come under one header; see ``Fabric.receiver``."""
    lock, io, notes, letters = guard.lock, fabric.io, fabric.notes, fabric.letters
    has_come, piece, release = letters.has_come, letters.piece, letters.release
    error = letters.error
    dtype, shape, nbytes = text_dtype(kind[0]), kind[1], count_bytes(kind)

    def receive(out: Any) -> Any:
        if not lock:
            raise guard.refusal()
        entered = False
        try:
            lock.pop()
            entered = True
            deadline = time.monotonic() + timeout_s
            with io:
                try:
                    notes.enter()
                    for _ in range(_SPINS):
                        if has_come(source):
                            break
                    else:
                        come = partial(has_come, source)
                        fabric.wait(come, [source], deadline, moving(source, False))
                    found, data = piece(source)
                    fits = found == header and data.nbytes == nbytes
                    if fits:
                        result = np.empty(shape, dtype) if out is None else out
                        result[...] = typed(data, dtype, shape)
                        release(source)
                except error as exc:
                    raise notes.mpi_failed(exc) from exc
            if not fits:
                result = otherwise(out, deadline)
            elif out is None:
                result = bare(result)
        except BaseException as exc:
            if not entered and isinstance(exc, IndexError):  # another thread was quicker
                raise guard.refusal() from None
            guard.leave(exc, in_step=is_calm(exc))
            raise
        lock.append(None)
        return result

    return receive


def _beginning(header: bytes) -> bytes:
    return _LENGTH.pack(len(header)) + header
