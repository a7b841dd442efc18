"""Pieces from rank to rank, as MPI messages that are synchronous: sent when they are received.

And quick ways to send and receive an array in one piece again, like those of ``shortcuts.py``.
"""

from __future__ import annotations

import struct
import time
from collections import defaultdict, deque
from functools import partial
from typing import Any, Callable

import numpy as np

from synk_comm._core.calls import Kind, count_bytes, text_dtype
from synk_comm._core.fabric import PIECE_HEAD_BYTES, Entrance
from synk_comm._core.lists import bare, typed
from synk_comm._core.ops import Array
from synk_comm.exceptions import CommTimeout

from .requests import Outstanding

_TAG = 2
_PIECES = 4  # that may be on the way to a rank
_LENGTH = struct.Struct("<Q")  # of the header


class Letters:
    """The pieces of one rank to and from all others.

    Args:
        piece_bytes: what a piece has at most, without its header.
    """

    def __init__(self, mpi: Any, comm: Any, outstanding: Outstanding, piece_bytes: int) -> None:
        self._mpi = mpi
        self._comm = comm
        self._outstanding = outstanding
        self._longest = _LENGTH.size + PIECE_HEAD_BYTES + piece_bytes
        self._spare: list[Array] = []
        self._under_way: defaultdict[int, deque[tuple[Any, Any]]] = defaultdict(deque)
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
        while under_way and under_way[0][0].Test():
            self._keep(under_way.popleft()[1])
        return len(under_way) < _PIECES

    def put(self, dest: int, header: bytes, data: Array) -> None:
        """Send a piece; its data are copied."""
        begin = _beginning(header)
        piece = self._room(len(begin) + data.nbytes)
        piece[: len(begin)] = np.frombuffer(begin, np.uint8)
        piece[len(begin) :] = data
        self.post(dest, piece)

    def post(self, dest: int, piece: bytes | Array) -> None:
        """Send a piece as it is."""
        request = self._comm.Issend([piece, self._mpi.BYTE], dest, _TAG)
        self._under_way[dest].append((request, piece))
        self._outstanding.add(request, piece)
        self._sent[dest] += 1

    def has_come(self, source: int) -> bool:
        """Return whether the next piece of a rank is here whole."""
        if source not in self._arriving:
            message = self._comm.Improbe(source, _TAG, self._status)
            if message is None:
                return False
            piece = self._room(self._status.Get_count(self._mpi.BYTE))
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
        self._keep(self._arriving.pop(source)[1])
        self._received[source] += 1

    def _room(self, nbytes: int) -> Array:
        """Return memory for a piece, if possible such that was used before: with new memory the
        kernel takes several times as long as the copy."""
        whole = self._spare.pop() if self._spare else np.empty(self._longest, np.uint8)
        return whole[:nbytes]

    def _keep(self, piece: Any) -> None:
        """Keep the memory of a piece that has gone or was read, for another."""
        whole = getattr(piece, "base", None)  # none of bytes, which a quick way has sent
        if whole is not None and len(self._spare) < 2 * _PIECES:
            self._spare.append(whole)


def sender(
    letters: Letters,
    attend: Callable[..., None],
    dest: int,
    header: bytes,
    guard: Entrance,
    timeout_s: float,
) -> Callable[[Array], None]:
    """Return what sends arrays of one dtype and shape, under one header.

    Args:
        attend: of ``MpiFabric``.
    """
    lock, begin = guard.lock, _beginning(header)

    def send(x: Array) -> None:
        sent = False

        def put() -> bool:
            nonlocal sent
            if letters.has_place(dest):
                letters.post(dest, begin + x.tobytes())
                sent = True
            return sent

        if not lock:
            raise guard.refusal()
        entered = False
        try:
            lock.pop()
            entered = True
            attend(put, dest, time.monotonic() + timeout_s, sending=True)
        except BaseException as exc:
            if not entered and isinstance(exc, IndexError):  # another thread was quicker
                raise guard.refusal() from None
            guard.leave(exc, in_step=not sent and isinstance(exc, CommTimeout))
            raise
        lock.append(None)

    return send


def receiver(
    letters: Letters,
    attend: Callable[..., None],
    source: int,
    header: bytes,
    kind: Kind,
    guard: Entrance,
    timeout_s: float,
    otherwise: Callable[[Any, float], Array],
    is_calm: Callable[[BaseException], bool],
) -> Callable[[Any], Array]:
    """Return what receives arrays that come under one header; see ``Fabric.receiver``.

    Args:
        attend: of ``MpiFabric``.
    """
    lock, come = guard.lock, partial(letters.has_come, source)
    dtype, shape, nbytes = text_dtype(kind[0]), kind[1], count_bytes(kind)

    def receive(out: Any) -> Any:
        if not lock:
            raise guard.refusal()
        entered = False
        try:
            lock.pop()
            entered = True
            deadline = time.monotonic() + timeout_s
            attend(come, source, deadline, sending=False)
            found, data = letters.piece(source)
            fits = found == header and data.nbytes == nbytes
            if fits:
                result = np.empty(shape, dtype) if out is None else out
                result[...] = typed(data, dtype, shape)
                letters.release(source)
            else:
                result = otherwise(out, deadline)
        except BaseException as exc:
            if not entered and isinstance(exc, IndexError):  # another thread was quicker
                raise guard.refusal() from None
            guard.leave(exc, in_step=is_calm(exc))
            raise
        lock.append(None)
        return bare(result) if fits and out is None else result

    return receive


def _beginning(header: bytes) -> bytes:
    return _LENGTH.pack(len(header)) + header
