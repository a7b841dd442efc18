"""Pieces from rank to rank, as MPI messages that are synchronous: sent when they are received."""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from typing import Any

import numpy as np

from synk_comm._core.ops import Array

from .requests import Outstanding

_TAG = 2
_PIECES = 4  # that may be on the way to a rank
_LENGTH = struct.Struct("<Q")  # of the header


class Letters:
    """The pieces of one rank to and from all others."""

    def __init__(self, mpi: Any, comm: Any, outstanding: Outstanding) -> None:
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
        start = _LENGTH.size + len(header)
        piece = np.empty(start + data.nbytes, np.uint8)
        piece[:start] = np.frombuffer(_LENGTH.pack(len(header)) + header, np.uint8)
        piece[start:] = data
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
