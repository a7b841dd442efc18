"""Messages and waiting between MPI's collectives.

MPI makes progress only while it is called, may block, and does not name the ranks that it waits
for. So nothing here blocks inside MPI: a wait looks at its request, the messages, the peers'
processes, the watch and the clock in turns. Each message says how many collectives its sender had
begun: a rank that has left, and whose part of a collective is still on its way, is not taken for
lost.
"""

from __future__ import annotations

import os
import time
import weakref
from typing import Any, Callable

from synk_comm._backends.messages import CLOSE, MessageFabric, Peer
from synk_comm._core.fabric import SLICE_S, Pieces, Watch, again
from synk_comm._system.liveness import Pidfds
from synk_comm.exceptions import CommError

from .mailbox import Mailbox, reported
from .pieces import MpiPieces

_SPINS = 50
"""Looks at a request before the next one at anything else, or before another rank has its turn."""
_ALONE_S = 1e-4
"""Seconds that a rank with a core of its own waits before it gives way: the core may be shared."""
_SPIN_S, _LONG_S, _VERY_LONG_S = 5e-4, 0.1, 10.0
NAPS_S = (5e-5, 5e-4, 2e-3)
"""Seconds of a nap, after _SPIN_S, _LONG_S and _VERY_LONG_S seconds of waiting."""
CLOSE_S = 0.5
"""Seconds that closing waits for the others: MPI moves messages only while it is called."""
_SILENCE_S, _LOOKS = 0.2, 50
"""After so many seconds without a look at messages, and so many looks then."""
_WHO_WAITS, _I_WAIT = b"W", b"H"
_ROLL_CALL_S = 0.2
"""Seconds that ranks have to answer whether they wait: they look every SLICE_S."""


class _MpiPeer(Peer):
    """Another rank.

    Attributes:
        begun: how many collectives it had begun when it sent its last message.
        sent: how many pieces it had sent to this rank when it left.
        waits: whether it has answered the last roll call, from the same collective on.
    """

    begun = 0
    sent = 0
    waits = False


class MpiMessages(MessageFabric[_MpiPeer]):
    """One rank's messages and waits; see ``MpiFabric``."""

    def __init__(self, mpi: Any, comm: Any, watch: Watch | None) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size(), watch)
        self._mpi = mpi
        self._comm = comm
        comm.Set_errhandler(mpi.ERRORS_RETURN)
        self.peers = {r: _MpiPeer(r) for r in range(self.size) if r != self.rank}
        self._others = list(self.peers) or [self.rank]
        self._pidfds = Pidfds()
        self._mailbox = Mailbox(mpi, comm)
        self._pieces = MpiPieces(mpi, comm, self._mailbox, self.peers, self.piece_bytes)
        self._forget = weakref.finalize(
            self, _forget, os.getpid(), self._mailbox, self.peers, self._pidfds
        )
        self._heard = self._watched = 0.0
        self._moves_data = False  # all ranks are in the same collective, which needs no naps
        self.crowded = True  # until it is known how many ranks are on this machine

    @property
    def pieces(self) -> Pieces:
        return self._pieces

    def _send(self, peer: _MpiPeer, kind: bytes, number: int = 0, text: bytes = b"") -> None:
        if not peer.gone:  # it could end this process
            self._mailbox.send(peer.rank, kind, number, text)

    def _receive(self) -> bool:
        """Accept what has come, and which ranks have ended; return whether anything has come."""
        now = time.monotonic()
        # MPI takes in what has come bit by bit, each time that it is asked.
        looks = 1 if now - self._heard < _SILENCE_S else _LOOKS
        self._heard = now
        if now - self._watched >= SLICE_S:
            self._watched = now
            for rank in self._pidfds.gone():
                self.peers[rank].gone = self.peers[rank].gone or "its process has ended"
        try:
            come = [message for _ in range(looks) for message in self._mailbox.receive()]
        except self._mpi.Exception as exc:
            self._mpi_failed(exc)
            return False
        for rank, kind, number, begun, text in come:
            peer = self.peers[rank]
            peer.begun = begun
            if kind == _WHO_WAITS:
                self._send(peer, _I_WAIT)
            elif kind == _I_WAIT:
                peer.waits |= begun >= self._mailbox.begun
            else:
                self._accept(peer, kind, number, text)
                peer.sent = number if kind == CLOSE else peer.sent
        return bool(come)

    def _enter(self) -> None:
        """Accept what came while this rank did other things; raise if the group has ended.

        A call must not succeed after that, although the peers' parts of it may have come, too.
        """
        if time.monotonic() - self._heard > SLICE_S:
            self._receive()
        if self.ended is not None:
            raise again(self.ended)

    def attend(
        self, done: Callable[[], bool], rank: int, deadline: float, *, sending: bool
    ) -> None:
        def tried() -> bool:
            return any(done() for _ in range(_SPINS))

        try:
            super().attend(tried, rank, deadline, sending=sending)
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
            if isinstance(exc, self._mpi.Exception):
                raise self._mpi_failed(exc) from exc
            raise

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
        """Call the roll: MPI does not say which ranks a collective misses."""
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
        """Note what MPI reports; return what ended the group."""
        failure = reported(self._mpi, self._comm, exc)
        return self._lose(failure.rank, failure.reason)

    def drop(self) -> None:
        """Forget all: a forked child must not call MPI."""
        self._forget.detach()
        self._pidfds.close()


def _forget(pid: int, mailbox: Mailbox, peers: dict[int, _MpiPeer], pidfds: Pidfds) -> None:
    """Leave, also a group that nobody has closed: its ranks do not notice that this one ends."""
    if os.getpid() == pid:
        for rank, peer in peers.items():
            if not peer.gone:
                mailbox.send(rank, CLOSE, peer.pushed)
        mailbox.keep()
        pidfds.close()
