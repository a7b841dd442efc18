"""Rounds as messages: one PAIR of ZeroMQ sockets between any two ranks.

Of two ranks the lower binds and the higher connects. The sockets live in a folder that only this
user may enter, or on the loopback interface; either way both ends first prove that they know the
group's token, and every later message carries a cookie that follows from that proof. A message
is ``[cookie, kind, round, offset, text] [data]``; nothing is parsed before its cookie is checked.

A round is one message to, and one message from, every peer. Messages that come early (a peer
may be one round ahead) wait in its inbox. A dead peer shows as a disconnection, which a socket
monitor reports.
"""

from __future__ import annotations

import contextlib
import hmac
import struct
import threading
import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import zmq

from synk_comm._call import HEAD_BYTES
from synk_comm._fabric import SLICE_S, Fabric, Watch, aborted, describe, lost
from synk_comm._ops import Array
from synk_comm._secret import COOKIE_BYTES, NONCE_BYTES, PROOF_BYTES, Handshake
from synk_comm.exceptions import CommError, JoinError

_ENVELOPE = struct.Struct(f"<{COOKIE_BYTES}scQI")
_ROUND, _ABORT, _LOST, _CLOSE = b"R", b"A", b"L", b"C"
_HELLO, _PROOF = b"H", b"P"
_FLUSH_MS = 500
"""How long closing may wait until the system has taken the last messages: peers may still need
them to complete a collective that is over for this rank."""


class _Message(NamedTuple):
    seq: int
    offset: int
    head: bytes
    data: Array


class _Peer:
    """What this rank knows of one other."""

    def __init__(self, rank: int, socket: Any, handshake: Handshake) -> None:
        self.rank = rank
        self.socket = socket
        self.monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.handshake = handshake
        self.met = False
        self.cookies = (b"", b"")  # of messages to it, of messages from it
        self.inbox: deque[_Message] = deque()
        self.current = _Message(0, 0, b"", np.empty(0, np.uint8))
        self.gone = ""
        self.turn = 0
        self.entered = time.monotonic()
        self.latest = b""

    def receive(self) -> list[Any]:
        """Return the frames of the next message; empty if there is none."""
        try:
            frames: list[Any] = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return []
        return frames

    def send(self, frames: list[Any]) -> None:
        """Send without waiting; a peer that cannot be reached shows when it is waited for."""
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart(frames, zmq.NOBLOCK)


class ZmqFabric(Fabric):
    """One rank's sockets. ``key`` is the group's (see ``token_key``)."""

    backend = "zmq"

    def __init__(self, rank: int, size: int, watch: Watch | None, *, key: bytes) -> None:
        super().__init__(rank, size, watch)
        self._context = zmq.Context()
        self._peers: dict[int, _Peer] = {}
        self._poller = zmq.Poller()
        self._slot = np.empty(self.chunk_bytes, np.uint8)
        self._seq = 0
        self._turn = 0
        self._head = b""
        self._failure: CommError | None = None
        self._abort_reason: str | None = None
        # A socket may be touched by one thread at a time; abort() comes from any thread.
        self._io = threading.Lock()
        for other in range(size):
            if other != rank:
                self._add(other, Handshake(key, rank, other))

    def _add(self, other: int, handshake: Handshake) -> None:
        socket = self._context.socket(zmq.PAIR)
        socket.setsockopt(zmq.LINGER, _FLUSH_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, self.chunk_bytes + HEAD_BYTES)
        peer = _Peer(other, socket, handshake)
        self._peers[other] = peer
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(peer.monitor, zmq.POLLIN)

    def bind(self, other: int, endpoint: str) -> str:
        """Listen for a higher rank; return the endpoint, with the port that the system chose."""
        socket = self._peers[other].socket
        socket.bind(endpoint)
        actual: str = socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        return actual

    def connect(self, other: int, endpoint: str) -> None:
        """Reach out to a lower rank, which may not listen yet."""
        self._peers[other].socket.connect(endpoint)

    # -- meeting --------------------------------------------------------------------------

    def meet(self, deadline: float) -> None:
        with self._io:
            for peer in self._peers.values():
                if peer.rank < self.rank:  # who binds cannot send before it has heard
                    peer.send([_HELLO + peer.handshake.nonce])
            self._wait(lambda peer: not peer.met, deadline, "join")
        self.sync(None, 0, deadline)

    def _greet(self, peer: _Peer, frame: bytes) -> None:
        kind, content = frame[:1], frame[1:]
        if kind == _HELLO and len(content) == NONCE_BYTES:
            peer.handshake.meet(content)
            if peer.rank > self.rank:
                peer.send([_HELLO + peer.handshake.nonce])
            peer.send([_PROOF + peer.handshake.proof()])
            return
        if kind == _PROOF and len(content) == PROOF_BYTES and peer.handshake.check(content):
            peer.met = True
            peer.cookies = peer.handshake.cookie(self.rank), peer.handshake.cookie(peer.rank)
            return
        raise JoinError(
            f"who answered as rank {peer.rank} does not know the token of this group; "
            "give all ranks the same token, and an address of their own"
        )

    # -- a round --------------------------------------------------------------------------

    def slot(self) -> Array:
        return self._slot

    def sync(
        self,
        head: bytes | None,
        nbytes: int,
        deadline: float,
        *,
        to: int | None = None,
        part: int = 0,
    ) -> None:
        with self._io:
            for peer in self._peers.values():
                self._take_from(peer)
            if self._failure is not None:
                raise self._failure
            self._seq += 1
            self._head = head or b""
            self._turn += head is not None
            for rank, peer in self._peers.items():
                start, stop = (rank * part, (rank + 1) * part) if part else (0, nbytes)
                if to not in (None, rank) or stop > nbytes:
                    start = stop = 0
                frames: list[Any] = [self._envelope(peer, _ROUND, start, self._head)]
                if stop > start:
                    frames.append(self._slot[start:stop])
                peer.send(frames)
            self._wait(lambda peer: not peer.inbox, deadline, f"call #{self._turn}")
            for peer in self._peers.values():
                peer.current = peer.inbox.popleft()
                if peer.current.seq != self._seq:
                    raise lost(peer.rank, "its messages are out of step")

    def _envelope(self, peer: _Peer, kind: bytes, number: int, text: bytes) -> bytes:
        return _ENVELOPE.pack(peer.cookies[0], kind, self._seq, number) + text

    def _wait(self, missing: Any, deadline: float, doing: str) -> None:
        """Take in messages until no peer is ``missing`` any more."""
        began = looked = time.monotonic()
        for peer in self._peers.values():
            self._take_from(peer)
        while True:
            late = [peer for peer in self._peers.values() if missing(peer)]
            if not late:
                return
            failure = self._failure or self._own_abort()
            for peer in late:
                if failure is None and peer.gone:
                    failure = lost(peer.rank, peer.gone)
            if failure is not None:
                raise failure
            now = time.monotonic()
            if now >= deadline:
                raise self.timeout([peer.rank for peer in late], now - began, doing)
            if self.watch is not None and (now - looked >= SLICE_S or looked == began):
                self.watch()
                looked = now
            if self._poller.poll(max(1, int(1000 * min(SLICE_S, deadline - now)))):
                self._take()

    def _take(self) -> None:
        """Move everything that has come into the inboxes; notice who has gone."""
        for peer in self._peers.values():
            while peer.monitor.poll(0):
                peer.monitor.recv_multipart()
                self._take_from(peer)  # what it sent before it went
                peer.gone = peer.gone or "its process has ended, or closed the connection"
            self._take_from(peer)

    def _take_from(self, peer: _Peer) -> None:
        while True:
            frames = peer.receive()
            if not frames:
                return
            if peer.met:
                self._accept(peer, frames)
            else:
                self._greet(peer, frames[0].bytes)

    def _accept(self, peer: _Peer, frames: list[Any]) -> None:
        first = frames[0].bytes
        if not hmac.compare_digest(first[:COOKIE_BYTES], peer.cookies[1]):
            raise lost(peer.rank, "a stranger has taken its place")
        _, kind, seq, number = _ENVELOPE.unpack_from(first)
        text = first[_ENVELOPE.size :]
        if kind == _ROUND:
            data = np.frombuffer(frames[1].buffer if len(frames) > 1 else b"", np.uint8)
            peer.inbox.append(_Message(seq, number, text, data))
            if text:
                peer.turn += 1
                peer.entered = time.monotonic()
                peer.latest = text
        elif kind == _ABORT:
            self._failure = self._failure or aborted(peer.rank, text.decode("utf-8", "replace"))
        elif kind == _LOST:
            self._failure = self._failure or lost(number, f"rank {peer.rank} found it gone")
        elif kind == _CLOSE:
            peer.gone = "it has closed its communicator"

    def all_said(self, head: bytes) -> bool:
        return all(peer.current.head == head for peer in self._peers.values())

    def heads(self) -> list[bytes]:
        return [
            self._head if rank == self.rank else self._peers[rank].current.head
            for rank in range(self.size)
        ]

    def read(self, rank: int, start: int, stop: int) -> Array:
        if rank == self.rank:
            return self._slot[start:stop]
        message = self._peers[rank].current
        data = message.data[start - message.offset : stop - message.offset]
        if data.nbytes != stop - start:
            raise lost(rank, f"it sent {data.nbytes} bytes where {stop - start} belong")
        return data

    # -- failures -------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        if self._abort_reason is None:
            self._abort_reason = reason
        # If another thread is waiting in a round, it will find the reason within a slice.
        if self._io.acquire(False):
            try:
                self._own_abort()
            finally:
                self._io.release()

    def _own_abort(self) -> CommError | None:
        if self._abort_reason is None or self._failure is not None:
            return self._failure
        self._tell(_ABORT, 0, self._abort_reason.encode("utf-8", "replace"))
        self._failure = aborted(self.rank, self._abort_reason)
        return self._failure

    def lose(self, rank: int) -> None:
        with self._io:
            self._tell(_LOST, max(rank, 0), b"")

    def _tell(self, kind: bytes, number: int, text: bytes) -> None:
        for peer in self._peers.values():
            if peer.met and not peer.gone:
                peer.send([self._envelope(peer, kind, number, text)])

    def failure(self) -> CommError | None:
        return self._failure

    def last_seen(self, rank: int) -> str:
        peer = self._peers[rank]
        if not peer.met:
            return "has not joined yet"
        return describe(peer.latest, peer.turn, peer.entered)

    # -- the end --------------------------------------------------------------------------

    def close(self) -> None:
        with self._io:
            self._tell(_CLOSE, 0, b"")
            for peer in self._peers.values():
                peer.socket.disable_monitor()
                peer.monitor.close(0)
                peer.socket.close(0 if peer.gone or not peer.met else _FLUSH_MS)
            self._context.term()

    def drop(self) -> None:
        """Forget all: a forked child must not touch ZeroMQ's threads, which it does not have."""
        self._peers.clear()
