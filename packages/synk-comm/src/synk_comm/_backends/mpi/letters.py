"""Pieces from rank to rank, as MPI messages that are synchronous: sent when they are received."""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from typing import Any

import numpy as np

from synk_comm._core.fabric import PIECE_HEAD_BYTES
from synk_comm._core.ops import Array

from .requests import Outstanding

_TAG = 2
_PIECES = 4  # that may be on the way to a rank
_LENGTH = struct.Struct("<Q")  # of the header


class Letters:
    """The pieces of one rank to and from all others; see ``Pieces``.

    Args:
        piece_bytes: what a piece has at most, without its header.
    """

    def __init__(self, mpi: Any, comm: Any, outstanding: Outstanding, piece_bytes: int) -> None:
        self._mpi = mpi
        self._comm = comm
        self._outstanding = outstanding
        self._longest = _LENGTH.size + PIECE_HEAD_BYTES + piece_bytes
        self._spare: list[Array] = []
        self._under_way: defaultdict[int, deque[tuple[Any, Array]]] = defaultdict(deque)
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
        begin = _LENGTH.pack(len(header)) + header
        piece = self._room(len(begin) + data.nbytes)
        piece[: len(begin)] = np.frombuffer(begin, np.uint8)
        piece[len(begin) :] = data
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

    def _keep(self, piece: Array) -> None:
        """Keep the memory of a piece that has gone or was read, for another."""
        if piece.base is not None and len(self._spare) < 2 * _PIECES:
            self._spare.append(piece.base)
