"""Authenticated frames between rank 0's server and one other rank, over a non-blocking socket."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import time
from typing import Any, Callable, Dict

from synk_comm._core.fabric import SLICE_S, Watch
from synk_comm._system.auth import PROOF_BYTES, Handshake, Seal
from synk_comm.exceptions import CommTimeout, JoinError

_LENGTH = struct.Struct("<I")
_MAX_FRAME = 1 << 24

Frame = Dict[str, Any]


class Disconnected(JoinError):
    """The peer has closed the connection."""


class WaitLimit:
    """A deadline and a user's watch, checked between short waits."""

    def __init__(self, rank: int, deadline: float, watch: Watch | None) -> None:
        self.rank = rank
        self.deadline = deadline
        self.watch = watch
        self._began = time.monotonic()

    def look(self, waiting_for: Callable[[], dict[int, str]]) -> None:
        """Raise if the time is up, or if the watch does."""
        if self.watch is not None:
            self.watch()
        now = time.monotonic()
        if now >= self.deadline:
            missing = waiting_for()
            ranks = ", ".join(map(str, missing))
            lines = "".join(f"\n  rank {rank}: {text}" for rank, text in missing.items())
            raise CommTimeout(
                f"rank {self.rank} waited {now - self._began:.3g} s in join for "
                f"rank(s) {ranks}:{lines}",
                missing=missing,
            )


class Connection:
    """A connection between rank 0's server and one other rank; its socket never blocks."""

    def __init__(self, raw: socket.socket) -> None:
        raw.setblocking(False)
        if raw.family == socket.AF_INET:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.raw = raw
        self._seals = (Seal(b""), Seal(b""))  # of what is sent, and of what is received
        self._received = bytearray()

    def fileno(self) -> int:
        """Return the descriptor, for poll."""
        return self.raw.fileno()

    def seal_by(self, handshake: Handshake, own_rank: int, peer_rank: int) -> None:
        """Seal all frames with the keys of this handshake."""
        self._seals = handshake.seal(own_rank), handshake.seal(peer_rank)

    def peek(self, nbytes: int) -> bytes | None:
        """Return the next bytes once all have arrived; None until then. Never read further."""
        while len(self._received) < nbytes:
            try:
                more = self.raw.recv(min(nbytes - len(self._received), 1 << 16))
            except (BlockingIOError, InterruptedError):
                return None
            except OSError as exc:
                raise Disconnected(f"the peer closed the connection: {exc}") from exc
            if not more:
                raise Disconnected("the peer closed the connection")
            self._received += more
        return bytes(self._received)

    def take(self, nbytes: int) -> bytes | None:
        """Return the next bytes as ``peek`` does, and consume them."""
        data = self.peek(nbytes)
        if data is not None:
            self._received.clear()
        return data

    def receive_frame(self) -> Frame | None:
        """Return the next frame if all of it has arrived; never wait."""
        start = self.peek(_LENGTH.size)
        if start is None:
            return None
        length = _LENGTH.unpack(start[: _LENGTH.size])[0]
        if length > _MAX_FRAME:
            raise JoinError(f"the peer announced {length} bytes, at most {_MAX_FRAME} fit")
        data = self.take(_LENGTH.size + PROOF_BYTES + length)
        if data is None:
            return None
        mark = data[_LENGTH.size : _LENGTH.size + PROOF_BYTES]
        content = data[_LENGTH.size + PROOF_BYTES :]
        if not self._seals[1].check(mark, content):
            raise JoinError("the seal of a frame from the peer is broken")
        frame = json.loads(content)
        if not isinstance(frame, dict):
            raise JoinError("the peer sent something that is no frame")
        return frame

    def receive(self, nbytes: int, limit: WaitLimit, silent: str) -> bytes:
        """Wait for bytes of rank 0."""
        while True:
            data = self.take(nbytes)
            if data is not None:
                return data
            self._wait(select.POLLIN, limit, silent)

    def send(self, data: bytes, limit: WaitLimit) -> None:
        """Send all, within the limit."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.raw.send(view) :]
            except (BlockingIOError, InterruptedError):
                self._wait(select.POLLOUT, limit, "does not read")
            except OSError as exc:
                raise Disconnected(f"the peer closed the connection: {exc}") from exc

    def send_frame(self, frame: Frame, limit: WaitLimit) -> None:
        """Send a frame under the next seal."""
        content = json.dumps(frame).encode()
        self.send(_LENGTH.pack(len(content)) + self._seals[0].mark(content) + content, limit)

    def send_last(self, frame: Frame) -> None:
        """Send a frame if that can be done at once, and close."""
        with contextlib.suppress(OSError):
            self.send_frame(frame, WaitLimit(-1, 0.0, None))
            self.raw.shutdown(socket.SHUT_WR)
            while self.raw.recv(1 << 16):  # unread data would make the system discard what was sent
                pass
        self.close()

    def _wait(self, events: int, limit: WaitLimit, silent: str) -> None:
        wait_for({self.fileno(): events})
        limit.look(lambda: {0: silent})

    def close(self) -> None:
        """Close the socket."""
        self.raw.close()


def wait_for(wanted: dict[int, int], slice_s: float = SLICE_S) -> set[int]:
    """Wait at most a slice for these descriptors; return those that are ready."""
    poll = select.poll()
    for fd, events in wanted.items():
        poll.register(fd, events)
    return {fd for fd, _ in poll.poll(1000 * slice_s)}
