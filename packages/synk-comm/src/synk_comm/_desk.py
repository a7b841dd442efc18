"""The desk where ranks without a common parent meet.

Rank 0 keeps a desk at the address; each other rank calls there, with retries until rank 0 is up::

    rank r                                    rank 0
    magic, rank, size, nonce    -->           (the caller's user is checked on Unix sockets)
                                <--           nonce, proof
    proof                       -->
    goods: JSON, sealed         -->           waits for all ranks
                                <--           everybody's goods: JSON, sealed (+ a descriptor)

"Sealed" is a length and a keyed digest: nothing is parsed before the digest is right, and nothing
here is ever unpickled. For shm the descriptor of the group's memory travels (SCM_RIGHTS); for zmq
over TCP the endpoints do; zmq over a folder needs no desk.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import struct
import time
from typing import Any, Callable, Dict

from ._fabric import SLICE_S, Watch
from ._secret import NONCE_BYTES, PROOF_BYTES, Handshake
from .exceptions import CommTimeout, JoinError

_MAGIC = b"synkcom1"
_CALL = struct.Struct(f"<8sII{NONCE_BYTES}s")
_LENGTH = struct.Struct("<I")
_MAX_GOODS = 1 << 20
_STRANGER_S = 2.0
"""How long the desk listens to one caller who says nothing."""

Goods = Dict[str, Any]


class Patience:
    """A deadline and a watch, looked at between short waits."""

    def __init__(self, deadline: float, watch: Watch | None) -> None:
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
            raise CommTimeout(
                f"waited {now - self._began:.3g} s for rank(s) {ranks} to join", missing=missing
            )


class Line:
    """A connection between rank 0's desk and one other rank."""

    def __init__(self, raw: socket.socket, patience: Patience) -> None:
        raw.settimeout(SLICE_S)
        if raw.family == socket.AF_INET:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.raw = raw
        self._patience = patience
        self._seals = (b"", b"")  # keys of what is sent, and of what is received

    def shake_hands(self, handshake: Handshake, own_rank: int, peer_rank: int) -> None:
        self._seals = handshake.cookie(own_rank), handshake.cookie(peer_rank)

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.raw.send(view) :]
            except socket.timeout:
                self._patience.look(lambda: {-1: "does not read"})
            except OSError as exc:
                raise JoinError(f"the other side hung up: {exc}") from exc

    def receive(self, nbytes: int, until: float | None = None) -> bytes:
        data = b""
        while len(data) < nbytes:
            try:
                more = self.raw.recv(nbytes - len(data))
            except socket.timeout:
                self._patience.look(lambda: {-1: "does not answer"})
                if until is not None and time.monotonic() > until:
                    raise JoinError("the caller says nothing") from None
                continue
            except OSError as exc:
                raise JoinError(f"the other side hung up: {exc}") from exc
            if not more:
                raise JoinError(
                    "the other side hung up: it has failed, or has another token or size"
                )
            data += more
        return data

    def send_goods(self, goods: Goods) -> None:
        content = json.dumps(goods).encode()
        digest = hmac.new(self._seals[0], content, "sha256").digest()
        self.send(_LENGTH.pack(len(content)) + digest + content)

    def receive_goods(self) -> Goods:
        length = _LENGTH.unpack(self.receive(_LENGTH.size))[0]
        if length > _MAX_GOODS:
            raise JoinError(f"the other side announced {length} bytes, at most {_MAX_GOODS} fit")
        digest = self.receive(PROOF_BYTES)
        content = self.receive(length)
        if not hmac.compare_digest(digest, hmac.new(self._seals[1], content, "sha256").digest()):
            raise JoinError("the seal of what the other side sent is broken")
        goods: Goods = json.loads(content)
        return goods

    def close(self) -> None:
        self.raw.close()


class Desk:
    """Where rank 0 receives the others."""

    def __init__(self, listener: socket.socket, size: int, key: bytes, patience: Patience) -> None:
        self._listener = listener
        self._size = size
        self._key = key
        self._patience = patience
        self.lines: dict[int, Line] = {}
        self.goods: dict[int, Goods] = {}
        listener.listen(size)
        listener.settimeout(SLICE_S)

    def receive_all(self) -> None:
        """Wait until every other rank has called and shown its goods."""
        while len(self.lines) < self._size - 1:
            try:
                raw, _ = self._listener.accept()
            except socket.timeout:
                self._patience.look(self._absent)
                continue
            line = Line(raw, self._patience)
            try:
                self._receive(line)
            except JoinError:
                # A stranger, or a rank with another token, which learns it from the hang-up.
                line.close()

    def _receive(self, line: Line) -> None:
        _check_user(line.raw)
        until = time.monotonic() + _STRANGER_S
        magic, rank, size, nonce = _CALL.unpack(line.receive(_CALL.size, until))
        if magic != _MAGIC or size != self._size or not 0 < rank < size or rank in self.lines:
            raise JoinError("this is no rank of this group")
        handshake = Handshake(self._key, 0, rank)
        handshake.meet(nonce)
        line.send(handshake.nonce + handshake.proof())
        if not handshake.check(line.receive(PROOF_BYTES, until)):
            raise JoinError("wrong token")
        line.shake_hands(handshake, 0, rank)
        self.goods[rank] = line.receive_goods()
        self.lines[rank] = line

    def _absent(self) -> dict[int, str]:
        return {r: "has not called" for r in range(1, self._size) if r not in self.lines}

    def close(self) -> None:
        self._listener.close()
        for line in self.lines.values():
            line.close()


def call_desk(
    make: Callable[[], tuple[socket.socket, Any]],
    rank: int,
    size: int,
    key: bytes,
    patience: Patience,
) -> Line:
    """Call rank 0's desk, as soon as it is there."""
    while True:
        raw, where = make()
        try:
            raw.settimeout(SLICE_S)
            raw.connect(where)
            break
        except OSError:
            raw.close()
            patience.look(lambda: {0: "does not listen yet"})
            time.sleep(SLICE_S)
    line = Line(raw, patience)
    try:
        _check_user(raw)
        handshake = Handshake(key, rank, 0)
        line.send(_CALL.pack(_MAGIC, rank, size, handshake.nonce))
        handshake.meet(line.receive(NONCE_BYTES))
        if not handshake.check(line.receive(PROOF_BYTES)):
            raise JoinError("who listens at this address does not know the token of this group")
        line.send(handshake.proof())
        line.shake_hands(handshake, rank, 0)
    except BaseException:
        line.close()
        raise
    return line


def _check_user(raw: socket.socket) -> None:
    """Raise JoinError if the other end of a Unix socket is another user's."""
    if raw.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return
    credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    if user != os.geteuid():
        raise JoinError(f"the other end belongs to user {user}, not to this one")
