"""Messages and waits between MPI's collectives.

MPI makes progress only while it is called, may block, and does not name the ranks that it waits
for. So nothing here blocks inside MPI: a wait looks at its request, the messages, the peers'
processes, the watch and the clock in turns.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import time
import weakref
from collections import defaultdict, deque
from typing import Any, Callable

import numpy as np

from synk_comm._backends.messages import CLOSE, MessageFabric, Peer
from synk_comm._core.fabric import PIECE_HEAD_BYTES, SLICE_S, Watch, again, lost, moving
from synk_comm._core.ops import Array
from synk_comm._system.liveness import Pidfds
from synk_comm.exceptions import CommError, PeerLost

_SPINS = 50
"""Looks at a request before a look at anything else."""
_ALONE_S = 1e-4
"""Seconds that a rank with a core of its own waits before it gives way: the core may be shared."""
_SPIN_S, _LONG_S, _VERY_LONG_S = 5e-4, 0.1, 10.0
NAPS_S = (5e-5, 5e-4, 2e-3)
"""Seconds of a nap, after _SPIN_S, _LONG_S and _VERY_LONG_S seconds of waiting."""
CLOSE_S = 0.5
"""Seconds that closing waits for the others: MPI moves messages only while it is called."""
_SILENCE_S, _LOOKS = 0.2, 50
"""After so many seconds without a look at messages, a rank looks so often: MPI accepts them bit by
bit, each time that it is called."""
_TAG, _TAG_OF_PIECES = 1, 2
_ENVELOPE = struct.Struct("<cQQ")
"""Kind, number, and how many collectives the sender had begun; then text. By the last, a rank that
has left is not lost while its part of a collective is on its way."""
_PIECES = 4
"""Pieces that may be on the way to a rank."""
_LENGTH = struct.Struct("<Q")  # of a piece's header
_WHO_WAITS, _I_WAIT = b"W", b"H"
_ROLL_CALL_S = 0.2
"""Seconds that ranks have to answer whether they wait: they look every SLICE_S."""


def reported(mpi: Any, comm: Any, exc: Any) -> PeerLost:
    """Return the error for one of MPI's, with the lost rank if MPI names it (ULFM)."""
    names = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
    if exc.Get_error_class() in {getattr(mpi, name, None) for name in names}:
        with contextlib.suppress(mpi.Exception, NotImplementedError, AttributeError):
            group = comm.Get_failed()
            comm.Ack_failed()
            ranks = group.Translate_ranks(None, comm.Get_group())
            if len(ranks):
                return lost(int(ranks[0]), "its process has ended")
    return lost(-1, f"MPI reports: {exc}")


class Mailbox:
    """One rank's short messages."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi = mpi
        self._comm = comm
        self.requests: list[Any] = []  # all that may not be done; each keeps its buffers alive
        self.begun = 0  # collectives of MPI that this rank has begun

    def send(self, rank: int, kind: bytes, number: int = 0, text: bytes = b"") -> None:
        message = _ENVELOPE.pack(kind, number, self.begun) + text
        with contextlib.suppress(self._mpi.Exception):
            self.requests.append(self._comm.Isend([message, self._mpi.BYTE], rank, _TAG))

    def keep(self) -> None:
        """Keep buffers that MPI may still read and write, until the process ends."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.requests))


class _MpiPeer(Peer):
    """Another rank."""

    begun = 0  # collectives that it had begun when it sent its last message
    sent = 0  # pieces that it had sent to this rank when it left
    waits = False  # whether it has answered the last roll call


class MpiMessages(MessageFabric[_MpiPeer]):
    """One rank's messages, pieces and waits; see ``MpiFabric``."""

    def __init__(self, mpi: Any, comm: Any, watch: Watch | None) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size(), watch)
        self._mpi = mpi
        self._comm = comm
        comm.Set_errhandler(mpi.ERRORS_RETURN)
        self.peers = {r: _MpiPeer(r) for r in range(self.size) if r != self.rank}
        self._others = list(self.peers) or [self.rank]
        self._pidfds = Pidfds()
        self._mailbox = Mailbox(mpi, comm)
        self._longest = _LENGTH.size + PIECE_HEAD_BYTES + self.piece_bytes
        self._spare: list[Array] = []  # memory of pieces that have gone
        self._under_way: defaultdict[int, deque[tuple[Any, Array]]] = defaultdict(deque)
        self._arriving: dict[int, tuple[Any, Array]] = {}
        self._status = mpi.Status()
        kept = self._mailbox, self.peers, self._pidfds
        self._forget = weakref.finalize(self, _forget, os.getpid(), *kept)
        self._heard = self._watched = 0.0
        self._moves_data = False  # all ranks are in the same collective, which needs no naps
        self.crowded = True  # until ``meet`` has counted the ranks of this machine

    def _send(self, peer: _MpiPeer, kind: bytes, number: int = 0, text: bytes = b"") -> None:
        if not peer.gone:  # it could end this process
            self._mailbox.send(peer.rank, kind, number, text)

    def _receive(self) -> bool:
        now = time.monotonic()
        looks = 1 if now - self._heard < _SILENCE_S else _LOOKS
        self._heard = now
        if now - self._watched >= SLICE_S:
            self._watched = now
            for rank in self._pidfds.gone():
                self.peers[rank].gone = self.peers[rank].gone or "its process has ended"
        has_come = False
        try:
            for _ in range(looks):
                self._mailbox.requests[:] = [r for r in self._mailbox.requests if not r.Test()]
                while self._take():
                    has_come = True
        except self._mpi.Exception as exc:
            self._mpi_failed(exc)
        return has_come

    def _take(self) -> bool:
        """Accept a message, if one has come."""
        found = self._comm.Improbe(self._mpi.ANY_SOURCE, _TAG, self._status)
        if found is None:
            return False
        message = bytearray(self._status.Get_count(self._mpi.BYTE))
        peer = self.peers[self._status.Get_source()]
        found.Recv([message, self._mpi.BYTE])
        kind, number, peer.begun = _ENVELOPE.unpack_from(message)
        if kind == _WHO_WAITS:
            self._send(peer, _I_WAIT)
        elif kind == _I_WAIT:
            peer.waits |= peer.begun >= self._mailbox.begun
        else:
            self._accept(peer, kind, number, bytes(message[_ENVELOPE.size :]))
            peer.sent = number if kind == CLOSE else peer.sent
        return True

    def _enter(self) -> None:
        # A call must not succeed after the end of the group, although all parts may have come.
        if time.monotonic() - self._heard > SLICE_S:
            self._receive()
        if self.ended is not None:
            raise again(self.ended)

    def attend(
        self, done: Callable[[], bool], rank: int, deadline: float, *, sending: bool
    ) -> None:
        def late() -> list[int]:
            return [] if any(done() for _ in range(_SPINS)) else [rank]

        try:
            with self.io:
                self._enter()
                if not done():  # a sender mostly is; the rest costs as much again
                    self._wait(late, deadline, moving(rank, sending))
        except self._mpi.Exception as exc:
            raise self._mpi_failed(exc) from exc

    def _finish(self, request: Any, deadline: float) -> None:
        """Wait for a collective; keep its buffers if the wait ends without it."""

        def late() -> list[int]:
            for _ in range(_SPINS):
                if request.Test():
                    return []
            return self._others

        try:
            if late():
                self._wait(late, deadline)
        except BaseException as exc:
            self._mailbox.requests.append(request)
            if not isinstance(exc, self._mpi.Exception):
                raise
            raise self._mpi_failed(exc) from exc

    def _pause(self, waited_s: float, left_s: float) -> None:  # noqa: ARG002
        if self._receive():
            return
        if waited_s >= (_VERY_LONG_S if self._moves_data else _SPIN_S):
            time.sleep(NAPS_S[(waited_s > _LONG_S) + (waited_s > _VERY_LONG_S)])
        elif self.crowded or waited_s > _ALONE_S:
            os.sched_yield()

    def _patience_s(self, rank: int, doing: str) -> float:
        peer = self.peers.get(rank)
        if peer is None or not peer.gone:
            return 0.0
        comes = peer.sent > peer.released if doing else peer.begun >= self._mailbox.begun
        return CLOSE_S if comes else 0.0

    def _absent(self, late: Callable[[], list[int]], missing: list[int]) -> list[int]:
        """Call the roll: MPI does not name the ranks that a collective misses."""
        for peer in self.peers.values():
            peer.waits = False
        self._send_all(_WHO_WAITS)
        end = time.monotonic() + _ROLL_CALL_S
        while late():
            absent = [rank for rank, peer in self.peers.items() if not peer.waits]
            if not absent or time.monotonic() >= end:
                return absent or missing
            self._receive()
            ended = self._own_end()
            if ended is not None:
                raise again(ended)
            time.sleep(NAPS_S[1])
        return []

    def _mpi_failed(self, exc: Any) -> CommError:
        """Note an error of MPI's; return the group's end."""
        failure = reported(self._mpi, self._comm, exc)
        return self._lose(failure.rank, failure.reason)

    def has_place(self, dest: int) -> bool:
        under_way = self._under_way[dest]
        while under_way and under_way[0][0].Test():
            self._reuse(under_way.popleft()[1])
        return len(under_way) < _PIECES

    def put(self, dest: int, header: bytes, data: Array) -> None:
        begin = _LENGTH.pack(len(header)) + header
        piece = self._memory(len(begin) + data.nbytes)
        piece.data[: len(begin)] = begin
        piece[len(begin) :] = data
        # Synchronous: it is done when it is received.
        request = self._comm.Issend(piece, dest, _TAG_OF_PIECES)
        self._under_way[dest].append((request, piece))
        self._mailbox.requests.append(request)
        self.peers[dest].pushed += 1

    def has_come(self, source: int) -> bool:
        if source not in self._arriving:
            message = self._comm.Improbe(source, _TAG_OF_PIECES, self._status)
            if message is None:
                return False
            piece = self._memory(self._status.Get_count(self._mpi.BYTE))
            request = message.Irecv(piece)
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
        self.peers[source].released += 1

    def _memory(self, nbytes: int) -> Array:
        """Return memory for a piece, if possible used: new memory takes longer than the copy."""
        whole = self._spare.pop() if self._spare else np.empty(self._longest, np.uint8)
        return whole[:nbytes]

    def _reuse(self, piece: Array) -> None:
        if piece.base is not None and len(self._spare) < 2 * _PIECES:
            self._spare.append(piece.base)

    def drop(self) -> None:
        """Forget all: a forked child must not call MPI."""
        self._forget.detach()
        self._pidfds.close()


def _forget(pid: int, mailbox: Mailbox, peers: dict[int, _MpiPeer], pidfds: Pidfds) -> None:
    """Leave a group that was not closed: its ranks do not notice that this one ends."""
    if os.getpid() == pid:
        for rank, peer in peers.items():
            if not peer.gone:
                mailbox.send(rank, CLOSE, peer.pushed)
        mailbox.keep()
        pidfds.close()
