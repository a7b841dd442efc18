"""The socket of the zmq back-end between two ranks, and its messages."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import struct
from collections import deque
from typing import Any, Tuple

import numpy as np
import zmq

from synk_comm._backends.messages import Peer
from synk_comm._core.fabric import lost
from synk_comm._core.ops import Array

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
        self._cookies = [derived(key, pair)[:_COOKIE_BYTES] for pair in pairs]
        self.taken = 0  # pieces that it has released
        self.pieces: deque[tuple[bytes, Array]] = deque()  # headers and data
        self.rounds: deque[tuple[bytes, Parts]] = deque()  # that all have not posted yet
        self.head_now = b""  # of the round that all have posted
        self.parts_now: Parts = ()
        self.turn = 0  # number of its last call
        self.head = b""

    def receive(self) -> list[bytes]:
        """Return copies of the frames of the next message; empty if there is none.

        When pyzmq's own frames are freed, they look for signals, but cannot raise: a Ctrl-C at
        that moment would be lost.
        """
        frames: list[bytes] = []
        if has_come(self.socket):
            with contextlib.suppress(zmq.Again):
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
        return frames

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
        while has_come(self.monitor):
            try:
                event, fd = _EVENT.unpack(self.monitor.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                break
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


def has_come(socket: Any) -> bool:
    """Return whether a message has arrived.

    A receive without one may lose a signal: some builds of pyzmq drop an exception of a handler
    that is raised while their own ``Again`` gets its traceback.
    """
    return bool(socket.getsockopt(zmq.EVENTS) & zmq.POLLIN)


def derived(key: bytes, purpose: str) -> bytes:
    """Return a key for one purpose, from which neither ``key`` nor other purposes' keys follow."""
    return hmac.new(key, purpose.encode(), hashlib.sha256).digest()


def shut(pid: int, context: Any, peers: dict[int, SocketPeer]) -> None:
    """Close everything, also of a fabric that was forgotten: its context would wait for ever."""
    if os.getpid() == pid:
        for peer in peers.values():
            peer.close()
        context.term()
