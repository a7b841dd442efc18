"""Rounds and pieces as messages, over a PAIR of ZeroMQ sockets between any two ranks.

Of two ranks the higher connects and says hello, the lower binds and answers, in a folder that only
their user may enter. A message is ``[cookie, kind, number, offsets, text] [data] [data]``; the
cookie of sender and receiver follows from the group's id, and is checked before anything else.

A round is one message to and from every peer. A peer may be one round ahead: that message waits.
Two slots in turn suffice, since a peer that posts round k+1 has round k whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import struct
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Tuple

import numpy as np
import zmq

from synk_comm._backends.messages import ABORT, MessageFabric, Peer
from synk_comm._core.fabric import SLICE_S, Fabric, Share, Watch, aborted, describe, lost, part_of
from synk_comm._core.ops import Array
from synk_comm._system.folder import SocketFolder
from synk_comm.exceptions import CommError, JoinError

_HELLO, _ROUND, _PIECE, _TAKEN = b"H", b"R", b"M", b"T"
_PIECES = 4
"""Pieces that may be on the way to a rank."""
_FRAME = 1 << 20
"""Longest data of a frame: a longer one would be fresh memory from the system each time."""
_COOKIE_BYTES = 16
_ENVELOPE = struct.Struct(f"<{_COOKIE_BYTES}scQII")  # cookie, kind, number, two offsets; then text
_EVENT = struct.Struct("=Hi")
_FLUSH_MS = 500
"""Milliseconds in which the system takes the last messages after ``close``: peers may need them to
complete a collective that is over for this rank."""

Parts = Tuple[Tuple[int, Array], ...]
"""Stretches of the sender's slot, or of a piece, each after its offset."""


class SocketPeer(Peer):
    """Another rank, and the socket to it."""

    def __init__(self, rank: int, context: Any, key: bytes, own_rank: int) -> None:
        super().__init__(rank)
        self.socket = socket = context.socket(zmq.PAIR)
        socket.setsockopt(zmq.LINGER, _FLUSH_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 0)  # a process that was stopped is late, not lost
        # Rounds and pieces are bounded by themselves.
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED
        self.monitor = socket.get_monitor_socket(events)
        self.met = False  # whether it has said hello
        self.connected = False  # whether it ever was
        self.cut = False  # whether a message to it was not sent whole
        self._connections: set[int] = set()  # descriptors
        pairs = f"{own_rank} to {rank}", f"{rank} to {own_rank}"
        self._cookies = [_derived(key, pair)[:_COOKIE_BYTES] for pair in pairs]
        self.taken = 0  # pieces that it has released
        self.pieces: deque[tuple[bytes, Array]] = deque()  # headers and data
        self.rounds: deque[tuple[bytes, Parts]] = deque()  # that all have not posted yet
        self.head_now = b""  # of the round that all have posted
        self.parts_now: Parts = ()
        self.turn = 0  # number of its last call
        self.head = b""

    def send(self, *frames: Any) -> None:
        """Send without waiting, or drop the message if the peer cannot be reached.

        A signal may come between two frames. ZeroMQ would take the next message for the rest of
        this one, so nothing more is sent then.
        """
        if self.socket.closed or self.cut:
            return
        self.cut = True
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        self.cut = False

    def envelope(
        self, kind: bytes, number: int, text: bytes, offsets: tuple[int, int] = (0, 0)
    ) -> bytes:
        """Return the first frame of a message."""
        return _ENVELOPE.pack(self._cookies[0], kind, number, *offsets) + text

    def read(self, frames: list[bytes]) -> tuple[bytes, int, bytes, Parts]:
        """Return kind, number, text and parts of a message; PeerLost if the sender is another."""
        first = frames[0]
        if not hmac.compare_digest(first[:_COOKIE_BYTES], self._cookies[1]):
            raise lost(self.rank, "another process has taken its place")
        if len(first) < _ENVELOPE.size or len(frames) > 3:
            raise lost(self.rank, "it sent something that is no message")
        _, kind, number, *offsets = _ENVELOPE.unpack_from(first)
        parts = zip(offsets, (np.frombuffer(frame, np.uint8) for frame in frames[1:]))
        return kind, number, first[_ENVELOPE.size :], tuple(parts)

    def follow(self) -> None:
        """Update the set of connections; a rank that has lost its last one is gone."""
        for frames in iter(lambda: received(self.monitor), []):
            event, fd = _EVENT.unpack(frames[0])
            if event == zmq.EVENT_DISCONNECTED:
                self._connections.discard(fd)
            else:
                self._connections.add(fd)
                self.connected = True
        if self.connected and not self._connections and not self.gone:
            self.gone = "its process has ended, or was cut off"

    def close(self) -> None:
        """Close the socket, which lasts until the last messages are out, or ``_FLUSH_MS``."""
        if self.socket.closed:
            return
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0 if self.gone or self.cut or not self.connected else _FLUSH_MS)


def received(socket: Any) -> list[bytes]:
    """Return copies of the frames of the next message; empty if there is none.

    So no Ctrl-C is lost: pyzmq's own frames look for signals when they are freed, but cannot raise;
    and some builds drop an exception of a handler while their own ``Again`` gets its traceback.
    """
    frames: list[bytes] = []
    if socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
        with contextlib.suppress(zmq.Again):
            frames = socket.recv_multipart(zmq.NOBLOCK)
    return frames


def _derived(key: bytes, purpose: str) -> bytes:
    """Return a key for one purpose, from which neither ``key`` nor other purposes' keys follow."""
    return hmac.new(key, purpose.encode(), hashlib.sha256).digest()


def _shut(pid: int, context: Any, peers: dict[int, SocketPeer]) -> None:
    """Close everything, also of a fabric that was forgotten: its context would wait for ever."""
    if os.getpid() == pid:
        for peer in peers.values():
            peer.close()
        context.term()


class ZmqFabric(MessageFabric[SocketPeer]):
    """One rank's sockets. Most of its methods are those of ``Fabric``.

    ``key`` is known to the group's members only; ``folder`` is removed once all have met.
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
        self._shut = weakref.finalize(self, _shut, os.getpid(), self._context, self.peers)
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
        key = _derived(self._key, f"split {self._splits} {ranks}")
        # The first rank makes it. All remove it, in case that rank is killed before.
        folder = SocketFolder.named(_derived(key, "folder"))
        failed = ""
        try:
            if ranks[:1] == [self.rank]:
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
                own = slice(min(rank * part, nbytes), min((rank + 1) * part, nbytes))
                common = slice(min(self.size * part, nbytes), nbytes if to in (None, rank) else 0)
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
            frames = received(peer.socket)
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

    def has_place(self, dest: int) -> bool:
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
