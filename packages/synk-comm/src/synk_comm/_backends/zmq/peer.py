"""The connection of a rank of the zmq back-end to one other, and its messages."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import struct
from collections import deque
from typing import Any, NamedTuple, Tuple

import numpy as np
import zmq

from synk_comm._backends.messages import Peer
from synk_comm._core.fabric import lost
from synk_comm._core.ops import Array

_COOKIE_BYTES = 16
_ENVELOPE = struct.Struct(f"<{_COOKIE_BYTES}scQII")  # cookie, kind, number, two offsets; then text
_EVENT = struct.Struct("=Hi")
FLUSH_MS = 500
"""How long closing may wait until the system has taken the last messages: peers may still need
them to complete a collective that is over for this rank."""


def has_come(socket: Any) -> bool:
    """Return whether a message has arrived.

    To receive without one may cost a signal: if pyzmq is built for all versions
    of Python, what a handler raises while an exception of its own gets its traceback is lost.
    """
    return bool(socket.getsockopt(zmq.EVENTS) & zmq.POLLIN)


def derived(key: bytes, purpose: str) -> bytes:
    """Return a key for one purpose, from which neither ``key`` nor other purposes' keys follow."""
    return hmac.new(key, purpose.encode(), hashlib.sha256).digest()


Parts = Tuple[Tuple[int, Array], ...]
"""Stretches of the sender's slot, or of a piece, each after its offset."""


class Round(NamedTuple):
    """A peer's part of a round.

    Attributes:
        number: of the round.
        head: of the call.
    """

    number: int
    head: bytes
    parts: Parts


class SocketPeer(Peer):
    """One other rank, and the socket to it.

    Attributes:
        met: whether it has said hello.
        connected: whether it ever was.
        cut: whether a message to it was not sent whole.
        taken: how many of the pieces sent to it it has released.
        pieces: headers and data of those that have come and are not released yet.
        rounds: those that have come early; ``current`` is the one that all have posted.
        turn, head: of its last call.
    """

    def __init__(self, rank: int, context: Any, key: bytes, own_rank: int) -> None:
        super().__init__(rank)
        self.socket = socket = context.socket(zmq.PAIR)
        socket.setsockopt(zmq.LINGER, FLUSH_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 0)  # a process that was stopped is late, not lost
        # Rounds and pieces are bounded by themselves.
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED
        self.monitor = socket.get_monitor_socket(events)
        self.met = self.connected = self.cut = False
        self._connections: set[int] = set()  # descriptors
        pairs = f"{own_rank} to {rank}", f"{rank} to {own_rank}"
        self._cookies = [derived(key, pair)[:_COOKIE_BYTES] for pair in pairs]
        self.taken = 0
        self.pieces: deque[tuple[bytes, Array]] = deque()
        self.rounds: deque[Round] = deque()
        self.current = Round(0, b"", ())
        self.turn = 0
        self.head = b""

    def receive(self) -> list[bytes]:
        """Return the frames of the next message; empty if there is none.

        They are copies. pyzmq's own frames look for signals when they are freed, where nothing can
        be raised: a Ctrl-C at that moment (the longer the frame the longer it lasts) would be
        lost, and with it the only end of an endless program.
        """
        if not has_come(self.socket):
            return []
        try:
            frames: list[bytes] = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return []
        return frames

    def send(self, *frames: Any) -> None:
        """Send without waiting; a peer that cannot be reached shows when it is waited for.

        A signal may come between two frames. ZeroMQ would take the next message for the rest of
        this one, so nothing is sent any more then.
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
        """Return the first frame of a message to it."""
        return _ENVELOPE.pack(self._cookies[0], kind, number, *offsets) + text

    def read(self, frames: list[bytes]) -> tuple[bytes, int, bytes, Parts]:
        """Return kind, number, text and parts of a message; PeerLost if it is of somebody else."""
        first = frames[0]
        if not hmac.compare_digest(first[:_COOKIE_BYTES], self._cookies[1]):
            raise lost(self.rank, "another process has taken its place")
        if len(first) < _ENVELOPE.size or len(frames) > 3:
            raise lost(self.rank, "it sent something that is no message")
        _, kind, number, *offsets = _ENVELOPE.unpack_from(first)
        parts = zip(offsets, (np.frombuffer(frame, np.uint8) for frame in frames[1:]))
        return kind, number, first[_ENVELOPE.size :], tuple(parts)

    def follow(self) -> None:
        """Update the set of connections; a rank that had one, and has none, is gone."""
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
        """Close the socket, which lasts until the last messages are out, or ``FLUSH_MS``."""
        if self.socket.closed:
            return
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0 if self.gone or self.cut or not self.connected else FLUSH_MS)


def shut(pid: int, context: Any, peers: dict[int, SocketPeer]) -> None:
    """Close everything, also of a fabric that was forgotten: its context would wait for ever."""
    if os.getpid() != pid:
        return
    for peer in peers.values():
        peer.close()
    context.term()
