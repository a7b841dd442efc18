"""Pieces from rank to rank, as synchronous messages of MPI: sent when they are received."""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from typing import Any, Mapping

import numpy as np

from synk_comm._backends.messages import Peer
from synk_comm._core.fabric import PIECE_HEAD_BYTES
from synk_comm._core.ops import Array

from .mailbox import Mailbox

_TAG = 2
_PIECES = 4  # that may be on the way to a rank
_LENGTH = struct.Struct("<Q")  # of the header


class MpiPieces:
    """The pieces of one rank to and from all others; see ``Pieces``.

    Args:
        piece_bytes: what a piece has at most, without its header.
    """

    def __init__(
        self, mpi: Any, comm: Any, mailbox: Mailbox, peers: Mapping[int, Peer], piece_bytes: int
    ) -> None:
        self._byte = mpi.BYTE
        self._comm = comm
        self._mailbox = mailbox
        self._peers = peers
        self._longest = _LENGTH.size + PIECE_HEAD_BYTES + piece_bytes
        self._spare: list[Array] = []
        self._under_way: defaultdict[int, deque[tuple[Any, Array]]] = defaultdict(deque)
        self._arriving: dict[int, tuple[Any, Array]] = {}
        self._status = mpi.Status()

    def has_place(self, dest: int) -> bool:
        under_way = self._under_way[dest]
        while under_way and under_way[0][0].Test():
            self._reuse(under_way.popleft()[1])
        return len(under_way) < _PIECES

    def put(self, dest: int, header: bytes, data: Array) -> None:
        begin = _LENGTH.pack(len(header)) + header
        piece = self._memory(len(begin) + data.nbytes)
        piece[: len(begin)] = np.frombuffer(begin, np.uint8)
        piece[len(begin) :] = data
        request = self._comm.Issend([piece, self._byte], dest, _TAG)
        self._under_way[dest].append((request, piece))
        self._mailbox.requests.append(request)
        self._peers[dest].pushed += 1

    def has_come(self, source: int) -> bool:
        if source not in self._arriving:
            message = self._comm.Improbe(source, _TAG, self._status)
            if message is None:
                return False
            piece = self._memory(self._status.Get_count(self._byte))
            request = message.Irecv([piece, self._byte])
            self._mailbox.requests.append(request)
            self._arriving[source] = request, piece
        return bool(self._arriving[source][0].Test())

    def piece(self, source: int) -> tuple[bytes, Array]:
        piece = self._arriving[source][1]
        (length,) = _LENGTH.unpack_from(piece.data)
        start = _LENGTH.size + length
        return piece[_LENGTH.size : start].tobytes(), piece[start:]

    def release(self, source: int) -> None:
        self._reuse(self._arriving.pop(source)[1])
        self._peers[source].released += 1

    def _memory(self, nbytes: int) -> Array:
        """Return memory for a piece, if possible such that was used before: with new memory the
        kernel takes several times as long as the copy."""
        whole = self._spare.pop() if self._spare else np.empty(self._longest, np.uint8)
        return whole[:nbytes]

    def _reuse(self, piece: Array) -> None:
        if piece.base is not None and len(self._spare) < 2 * _PIECES:
            self._spare.append(piece.base)
