"""The server at which ranks without a common parent meet.

Rank 0 listens at the address; each other rank connects, with retries until rank 0 is up::

    rank r                                    rank 0
    magic, rank, nonce          -->           (checks the peer's user on Unix sockets)
                                <--           nonce, proof
    proof                       -->
    frame: its size and card    -->           rejects, or
                                <--           frame: accepted

The connections stay open until all ranks have joined (``meeting.py``). A frame is JSON under a
seal: a length, a keyed mark that no other frame has, the text. Nothing is parsed before its mark
is right, and nothing here is ever unpickled. The server reads from all unauthenticated clients
side by side, for a few seconds only; if there are too many, it drops those silent the longest.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from typing import Any, Callable, Tuple, Union

from synk_comm._core.fabric import SLICE_S
from synk_comm._system.auth import NONCE_BYTES, PROOF_BYTES, Handshake
from synk_comm.exceptions import CommError, CommTimeout, JoinError

from .link import Connection, Disconnected, Frame, WaitLimit, wait_for

_MAGIC = b"synkcom2"
_HELLO = struct.Struct(f"<8sI{NONCE_BYTES}s")
_HANDSHAKE_S = 5.0
"""Seconds until a client without a valid proof is dropped."""
_MAX_CLIENTS = 64
"""Unauthenticated clients at a time, besides two for each rank."""
_CONNECT_S = 3.0
"""Seconds until an attempt to connect is given up: more than any network needs."""

Where = Union[str, Tuple[str, int]]
"""A path, or a numeric IPv4 address and a port."""


class _Client:
    """A client that the server has not accepted yet."""

    def __init__(self, raw: socket.socket, key: bytes) -> None:
        self.connection = Connection(raw)
        self.until = time.monotonic() + _HANDSHAKE_S
        self.rank = -1
        self.proved = False
        self._key = key
        self._handshake: Handshake | None = None

    def advance(self) -> Frame | None:
        """Read what has arrived; return the card of a rank whose proof is valid."""
        if self._handshake is None:
            call = self.connection.take(_HELLO.size)
            if call is None:
                return None
            magic, rank, nonce = _HELLO.unpack(call)
            if magic != _MAGIC or not rank:
                raise JoinError("this is no rank of a group")
            handshake = Handshake(self._key, 0, rank)
            handshake.meet(nonce)
            self.rank = rank
            self._handshake = handshake
            # Fits the buffers of a connection on which nothing was sent yet.
            self.connection.send(handshake.nonce + handshake.proof(), WaitLimit(0, 0.0, None))
        if not self.proved:
            proof = self.connection.take(PROOF_BYTES)
            if proof is None:
                return None
            if not self._handshake.check(proof):
                raise JoinError("wrong token")
            self.connection.seal_by(self._handshake, 0, self.rank)
            self.proved = True
        return self.connection.receive_frame()


class Server:
    """Rank 0's side: accepts the other ranks.

    Attributes:
        connections: to the accepted ranks; the given mapping, which fills.
        cards: how these ranks describe themselves.
    """

    def __init__(
        self,
        listener: socket.socket,
        size: int,
        key: bytes,
        limit: WaitLimit,
        connections: dict[int, Connection],
    ) -> None:
        self._listener = listener
        self._size = size
        self._key = key
        self._limit = limit
        self._clients: dict[int, _Client] = {}
        self._rejected: dict[int, str] = {}
        self.connections = connections
        self.cards: dict[int, Any] = {}
        listener.listen(max(128, 2 * size))
        listener.setblocking(False)

    def accept_all(self, look: Callable[[], None]) -> None:
        """Wait until every other rank is accepted; ``look`` watches those that are."""
        try:
            while len(self.connections) < self._size - 1:
                wanted = dict.fromkeys(self._clients, select.POLLIN)
                wanted[self._listener.fileno()] = select.POLLIN
                ready = wait_for(wanted)
                if self._listener.fileno() in ready:
                    self._accept()
                for fd in ready & self._clients.keys():
                    self._read(fd)
                self._drop_silent()
                look()
                self._limit.look(self._absent)
        finally:
            for client in self._clients.values():
                client.connection.close()
            self._clients.clear()

    def _accept(self) -> None:
        for _ in range(_MAX_CLIENTS):
            try:
                raw, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # gone before it was accepted, or too many descriptors are open
                return
            try:
                check_user(raw)
            except JoinError:
                raw.close()
                continue
            client = _Client(raw, self._key)
            self._clients[raw.fileno()] = client

    def _drop_silent(self) -> None:
        """Drop clients that took too long, and the oldest if there are too many."""
        now = time.monotonic()
        surplus = len(self._clients) - _MAX_CLIENTS - 2 * self._size
        for fd, client in list(self._clients.items()):
            if surplus <= 0 and now < client.until:
                return
            surplus -= 1
            del self._clients[fd]
            client.connection.close()

    def _read(self, fd: int) -> None:
        client = self._clients[fd]
        try:
            card = client.advance()
        except (JoinError, CommTimeout, OSError, ValueError):
            # No rank of this group; or one with another token, which raises that itself.
            if 0 < client.rank < self._size:
                self._rejected[client.rank] = (
                    "has not joined yet (a client that claimed to be this rank did not prove "
                    "that it knows the token)"
                )
            del self._clients[fd]
            client.connection.close()
            return
        if card is not None:
            del self._clients[fd]
            self._decide(client, card)

    def _decide(self, client: _Client, card: Frame) -> None:
        """Accept a rank whose proof is valid, or reject it with a reason."""
        rank, connection = client.rank, client.connection
        size = card.get("size")
        if size != self._size or rank >= self._size:
            problem = (
                f"rank {rank} was started for a group of {size}, rank 0 for one of {self._size}; "
                "give all ranks the same size, and ranks from 0 to size - 1"
            )
            connection.send_last({"rejected": problem})
            raise JoinError(problem)
        if rank in self.connections:
            connection.send_last({"rejected": f"rank {rank} has already joined this group"})
            return
        try:
            connection.send_frame({"accepted": True}, self._limit)
        except Disconnected:
            connection.close()
            return
        self.connections[rank] = connection
        self.cards[rank] = card

    def _absent(self) -> dict[int, str]:
        return {
            rank: self._rejected.get(rank, "has not joined yet")
            for rank in range(1, self._size)
            if rank not in self.connections
        }


def connect_to_server(
    where: Where,
    rank: int,
    key: bytes,
    card: Callable[[socket.socket], Frame],
    limit: WaitLimit,
) -> Connection:
    """Connect to rank 0's server as soon as it listens; return once it has accepted this rank.

    If the server closes the connection before that, connect again: it may have too many clients.
    """
    reason = "does not listen yet"
    while True:
        raw = _connect(where, limit)
        if raw is not None:
            connection = Connection(raw)
            try:
                return _handshake_as_client(connection, rank, key, card, limit)
            except Disconnected:
                connection.close()
                reason = f"listens at {where}, but disconnects: another group or program?"
            except BaseException:
                connection.close()
                raise
        limit.look(lambda reason=reason: {0: reason})  # type: ignore[misc]
        time.sleep(SLICE_S)


def _handshake_as_client(
    connection: Connection,
    rank: int,
    key: bytes,
    card: Callable[[socket.socket], Frame],
    limit: WaitLimit,
) -> Connection:
    check_user(connection.raw)
    handshake = Handshake(key, rank, 0)
    connection.send(_HELLO.pack(_MAGIC, rank, handshake.nonce), limit)
    answer = connection.receive(NONCE_BYTES + PROOF_BYTES, limit, "listens, but does not answer")
    handshake.meet(answer[:NONCE_BYTES])
    if not handshake.check(answer[NONCE_BYTES:]):
        raise JoinError("the server at this address does not know the token of this group")
    connection.seal_by(handshake, rank, 0)
    connection.send(handshake.proof(), limit)
    connection.send_frame(card(connection.raw), limit)
    while True:
        frame = connection.receive_frame()
        if frame is not None:
            break
        wait_for({connection.fileno(): select.POLLIN})
        limit.look(lambda: {0: "listens, but does not accept this rank"})
    if not frame.get("accepted"):
        raise JoinError(f"rank 0 rejected this rank: {frame.get('rejected')}")
    return connection


def _connect(where: Where, limit: WaitLimit) -> socket.socket | None:
    """Return a connection, or None if no process listens there (yet)."""
    raw = socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET)
    try:
        raw.setblocking(False)
        code = raw.connect_ex(where)
        until = time.monotonic() + _CONNECT_S
        while code in (errno.EINPROGRESS, errno.EALREADY) and time.monotonic() < until:
            if wait_for({raw.fileno(): select.POLLOUT}):
                code = raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                break
            limit.look(lambda: {0: f"cannot be reached at {where}"})
        # A port of this machine without a listener may connect to itself.
        if code == 0 and raw.getsockname() != raw.getpeername():
            return raw
    except CommError:
        raw.close()
        raise
    except OSError:
        pass
    except BaseException:
        raw.close()
        raise
    raw.close()
    return None


def check_user(raw: socket.socket) -> None:
    """Raise JoinError if the other end of a Unix socket is another user's."""
    if raw.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return
    credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    if user != os.geteuid():
        raise JoinError(f"the other end belongs to user {user}, not to this one")
