"""Rounds and pieces as messages, over a PAIR of ZeroMQ sockets between any two ranks.

Of two ranks the lower binds and answers, the higher connects and says hello, in a folder of their
user. A message is ``[cookie, kind, number, offsets, text] [data] [data]``; the cookie is of sender
and receiver, follows from the group's id, and is checked before anything else.

A round is one message to and from every peer. A peer may be one round ahead: that message waits.
Two slots in turn suffice, since a peer that posts round k+1 has round k whole.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import zmq

from synk_comm._backends.messages import ABORT, MessageFabric
from synk_comm._core.fabric import (
    SLICE_S,
    Fabric,
    Pieces,
    Share,
    Watch,
    aborted,
    describe,
    part_of,
)
from synk_comm._core.ops import Array
from synk_comm._system.folder import SocketFolder
from synk_comm.exceptions import CommError, JoinError

from .peer import SocketPeer, derived, shut

_HELLO, _ROUND, _PIECE, _TAKEN = b"H", b"R", b"M", b"T"
_PIECES = 4
"""Pieces that may be on the way to a rank."""
_FRAME = 1 << 20
"""Longest data of a frame: a longer one would be fresh memory from the system each time."""


class ZmqFabric(MessageFabric[SocketPeer]):
    """One rank's sockets. Most of its methods are those of ``Fabric``.

    Args:
        key: known to the group's members only.
        folder: where the lower of two ranks listens; removed once all have met.
    """

    backend = "zmq"

    def __init__(
        self, rank: int, size: int, watch: Watch | None, key: bytes, folder: SocketFolder
    ) -> None:
        super().__init__(rank, size, watch)
        self.slot_bytes = max(1 << 16, min(_FRAME, (1 << 24) // size // 4096 * 4096))
        self.piece_bytes = 1 << 19
        self._key = key
        self._folder = folder
        self._splits = 0
        self._context = zmq.Context()
        self._slots = [np.empty(self.slot_bytes, np.uint8) for _ in range(2)]
        self._seq = 0
        self._poller = zmq.Poller()
        self._owners: dict[Any, SocketPeer] = {}  # of sockets and monitors
        self._shut = weakref.finalize(self, shut, os.getpid(), self._context, self.peers)
        try:
            for other in range(size):
                if other != rank:
                    self._wire(other)
        except BaseException:
            self.close()
            raise

    def _wire(self, other: int) -> None:
        """Bind for a higher rank; connect to a lower one, as soon as it listens."""
        peer = self.peers[other] = SocketPeer(other, self._context, self._key, self.rank)
        for socket in (peer.socket, peer.monitor):
            self._owners[socket] = peer
            self._poller.register(socket, zmq.POLLIN)
        path = self._folder.path_of(min(other, self.rank), max(other, self.rank))
        if other < self.rank:
            self._folder.check()
            peer.socket.connect(f"ipc://{path}")
            return
        try:
            peer.socket.bind(f"ipc://{path}")
        except zmq.ZMQError as exc:
            raise JoinError(f"rank {self.rank} cannot listen at {path}: {exc}") from exc

    def split(
        self, groups: Sequence[Sequence[int]], mine: int | None, share: Share
    ) -> Fabric | None:
        self._splits += 1
        ranks = [] if mine is None else list(groups[mine])
        key = derived(self._key, f"split {self._splits} {ranks}")
        # The first rank makes it. All remove it: that rank may be killed before.
        folder = SocketFolder.named(derived(key, "folder"))
        failed = ""
        try:
            if len(ranks) > 1 and ranks[0] == self.rank:
                try:
                    folder.make()
                except OSError as exc:
                    failed = f"{type(exc).__name__}: {exc}"
            failures = share(failed)
            for old in ranks:
                if failures[old]:
                    raise JoinError(f"rank {old} could not wire a smaller group: {failures[old]}")
        except BaseException:
            folder.remove()
            raise
        if mine is None:
            return None
        return ZmqFabric(ranks.index(self.rank), len(ranks), self.watch, key, folder)

    def meet(self, deadline: float) -> None:
        peers = self.peers.items()
        with self.io:
            for rank, peer in peers:
                if rank < self.rank:  # the binding end has to receive before it sends
                    self._send(peer, _HELLO)
            # A rank that leaves before all have met has failed.
            self._wait(lambda: [r for r, p in peers if p.gone or not p.met], deadline, "join")
        self.sync(None, 0, deadline)
        self._folder.remove()  # all are connected, or never will be

    def slot(self) -> Array:
        return self._slots[(self._seq + 1) & 1]

    def sync(
        self,
        head: bytes | None,
        nbytes: int,
        deadline: float,
        *,
        to: int | None = None,
        part: int = 0,
    ) -> None:
        peers = self.peers.items()
        with self.io:
            self._enter()
            self._seq += 1
            if head is not None:
                self.turn += 1
                self.own_head = head
            slot = self._slots[self._seq & 1]
            for rank, peer in peers:
                own = common = slice(0, 0)
                if part:
                    own = slice(min(rank * part, nbytes), min((rank + 1) * part, nbytes))
                if to in (None, rank):
                    common = slice(min(self.size * part, nbytes), nbytes)
                stretches = [one for one in (own, common) if one.stop > one.start]
                starts = [*(one.start for one in stretches), 0, 0]
                envelope = peer.envelope(_ROUND, self._seq, head or b"", (starts[0], starts[1]))
                peer.send(envelope, *(slot[one] for one in stretches))
            self._wait(lambda: [r for r, p in peers if not p.rounds], deadline)
            for peer in self.peers.values():
                peer.head_now, peer.parts_now = peer.rounds.popleft()

    def all_said(self, head: bytes) -> bool:
        return all(peer.head_now == head for peer in self.peers.values())

    def heads(self) -> list[bytes]:
        said = {rank: peer.head_now for rank, peer in self.peers.items()}
        return [said.get(rank, self.own_head) for rank in range(self.size)]

    def read(self, rank: int, start: int, stop: int) -> Array:
        if rank == self.rank:
            return self._slots[self._seq & 1][start:stop]
        return part_of(self.peers[rank].parts_now, rank, start, stop)

    def _send(self, peer: SocketPeer, kind: bytes, number: int = 0, text: bytes = b"") -> None:
        if kind == ABORT and peer.cut and not peer.socket.closed:
            self._disconnect(peer)  # that much it sees: this rank is gone
        elif kind == _HELLO or ((peer.met or peer.connected) and not peer.gone):
            peer.send(peer.envelope(kind, number, text))

    def _receive(self) -> bool:
        return self._listen(0)

    def _pause(self, waited_s: float, left_s: float) -> None:  # noqa: ARG002
        self._listen(max(1, int(1000 * min(SLICE_S, left_s))))

    def _listen(self, timeout_ms: int) -> bool:
        """Accept messages; wait for one if there is none; return whether any has come."""
        if not self._shut.alive:  # ZeroMQ would take closed sockets for standard input
            raise aborted(self.rank, "its process is ending")
        ready = self._poller.poll(timeout_ms)
        for socket, _ in ready:
            peer = self._owners[socket]
            if not socket.closed:  # because of the other one of the two
                if socket is peer.monitor:
                    peer.follow()
                self._take_from(peer)
        return bool(ready)

    def _take_from(self, peer: SocketPeer) -> None:
        while not peer.socket.closed:
            frames = peer.receive()
            if frames:
                kind, number, text, parts = peer.read(frames)
                if kind == _HELLO:
                    if peer.rank > self.rank:
                        self._send(peer, _HELLO)
                    peer.met = True
                elif kind == _ROUND:
                    peer.rounds.append((text, parts))
                    if text:
                        peer.turn += 1
                        peer.head = text
                elif kind == _PIECE:
                    peer.pieces.append((text, parts[0][1]))
                elif kind == _TAKEN:
                    peer.taken = number
                else:
                    self._accept(peer, kind, number, text)
            elif peer.gone:
                # Else ZeroMQ would reconnect to its endpoint, where another process may listen.
                self._disconnect(peer)
            else:
                return

    def _disconnect(self, peer: SocketPeer) -> None:
        self._poller.unregister(peer.socket)
        self._poller.unregister(peer.monitor)
        peer.close()

    @property
    def pieces(self) -> Pieces:
        return self

    def has_place(self, dest: int) -> bool:
        """Return whether another rank has taken enough of the pieces sent to it."""
        return self.peers[dest].pushed - self.peers[dest].taken < _PIECES

    def put(self, dest: int, header: bytes, data: Array) -> None:
        peer = self.peers[dest]
        peer.pushed += 1
        peer.send(peer.envelope(_PIECE, peer.pushed, header), data)

    def has_come(self, source: int) -> bool:
        return bool(self.peers[source].pieces)

    def piece(self, source: int) -> tuple[bytes, Array]:
        return self.peers[source].pieces[0]

    def release(self, source: int) -> None:
        peer = self.peers[source]
        peer.pieces.popleft()
        peer.released += 1
        self._send(peer, _TAKEN, peer.released)

    def has_entered(self, rank: int) -> bool:
        return rank == self.rank or self.peers[rank].met

    def last_seen(self, rank: int) -> str:
        peer = self.peers[rank]
        return describe(peer.head, peer.turn) if peer.met else "has not joined yet"

    def close(self) -> None:
        with self.io:
            with contextlib.suppress(CommError):  # a rank that has left needs no message
                self._receive()
            self._leave()
            self._shut()
            self._folder.remove()

    def drop(self) -> None:
        """Forget all: a forked child must not touch ZeroMQ's threads, which it does not have."""
        self._shut.detach()
        self.peers.clear()
