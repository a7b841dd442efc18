"""A line between rank 0's desk and another rank: sealed goods over a socket that never blocks."""

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
_MAX_GOODS = 1 << 24

Goods = Dict[str, Any]


class HungUp(JoinError):
    """The other side has closed the line."""


class Patience:
    """A deadline and a watch, looked at between short waits."""

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


class Line:
    """A connection between rank 0's desk and one other rank; its socket never blocks."""

    def __init__(self, raw: socket.socket) -> None:
        raw.setblocking(False)
        if raw.family == socket.AF_INET:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.raw = raw
        self._seals = (Seal(b""), Seal(b""))  # of what is sent, and of what is received
        self._heard = bytearray()

    def fileno(self) -> int:
        """Return the descriptor, for poll."""
        return self.raw.fileno()

    def shake_hands(self, handshake: Handshake, own_rank: int, peer_rank: int) -> None:
        """Seal all goods by what this handshake has agreed on."""
        self._seals = handshake.seal(own_rank), handshake.seal(peer_rank)

    def hear(self, nbytes: int) -> bytes | None:
        """Return the next bytes once so many have come; None until then. Never reads further."""
        while len(self._heard) < nbytes:
            try:
                more = self.raw.recv(min(nbytes - len(self._heard), 1 << 16))
            except (BlockingIOError, InterruptedError):
                return None
            except OSError as exc:
                raise HungUp(f"the other side hung up: {exc}") from exc
            if not more:
                raise HungUp("the other side hung up")
            self._heard += more
        return bytes(self._heard)

    def take(self, nbytes: int) -> bytes | None:
        """Like ``hear``, and forget them."""
        data = self.hear(nbytes)
        if data is not None:
            self._heard.clear()
        return data

    def take_goods(self) -> Goods | None:
        """Return the next goods if they have come as a whole; never waits."""
        start = self.hear(_LENGTH.size)
        if start is None:
            return None
        length = _LENGTH.unpack(start[: _LENGTH.size])[0]
        if length > _MAX_GOODS:
            raise JoinError(f"the other side announced {length} bytes, at most {_MAX_GOODS} fit")
        data = self.take(_LENGTH.size + PROOF_BYTES + length)
        if data is None:
            return None
        mark = data[_LENGTH.size : _LENGTH.size + PROOF_BYTES]
        content = data[_LENGTH.size + PROOF_BYTES :]
        if not self._seals[1].check(mark, content):
            raise JoinError("the seal of what the other side sent is broken")
        goods = json.loads(content)
        if not isinstance(goods, dict):
            raise JoinError("what the other side sent is no goods")
        return goods

    def receive(self, nbytes: int, patience: Patience, silent: str) -> bytes:
        """Wait for bytes of rank 0."""
        while True:
            data = self.take(nbytes)
            if data is not None:
                return data
            self._wait(select.POLLIN, patience, silent)

    def send(self, data: bytes, patience: Patience) -> None:
        """Send all, waiting as long as patience allows."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.raw.send(view) :]
            except (BlockingIOError, InterruptedError):
                self._wait(select.POLLOUT, patience, "does not read")
            except OSError as exc:
                raise HungUp(f"the other side hung up: {exc}") from exc

    def send_goods(self, goods: Goods, patience: Patience) -> None:
        """Send goods under the next seal."""
        content = json.dumps(goods).encode()
        self.send(_LENGTH.pack(len(content)) + self._seals[0].mark(content) + content, patience)

    def last_word(self, goods: Goods) -> None:
        """Send goods if that can be done at once, and close."""
        with contextlib.suppress(OSError):
            self.send_goods(goods, Patience(-1, 0.0, None))
            self.raw.shutdown(socket.SHUT_WR)
            while self.raw.recv(1 << 16):  # unread data would make the system take the word back
                pass
        self.close()

    def _wait(self, events: int, patience: Patience, silent: str) -> None:
        wait_for({self.fileno(): events})
        patience.look(lambda: {0: silent})

    def close(self) -> None:
        """Hang up."""
        self.raw.close()


def wait_for(wanted: dict[int, int], slice_s: float = SLICE_S) -> set[int]:
    """Wait a slice at most for one of these descriptors; return those that are ready."""
    poll = select.poll()
    for fd, events in wanted.items():
        poll.register(fd, events)
    return {fd for fd, _ in poll.poll(1000 * slice_s)}
