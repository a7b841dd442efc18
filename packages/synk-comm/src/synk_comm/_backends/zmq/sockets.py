"""Where the sockets between two ranks listen, and what they demand of who connects.

===================  ==========================  ===============================================
the two ranks are    sockets                     who may connect
===================  ==========================  ===============================================
met in a folder      of that folder              nobody else can enter the folder
on one machine, TCP  of the interface they met   who knows the pair's password (PLAIN): it follows
                     by                          from the token, and does not leave the machine
on two machines      of that interface           who has the other rank's key (CURVE, encrypted):
                                                 made for this run, told through the sealed desk
===================  ==========================  ===============================================

ZeroMQ asks a *door* about everyone who connects (its ZAP protocol), before a byte of theirs gets
to a socket. Afterwards both ends still prove that they know the token (``zmq.py``).
"""

from __future__ import annotations

import contextlib
import hmac
import os
from typing import Any, Dict, Sequence

import zmq
from zmq.utils import z85

from synk_comm._meeting.host import Host
from synk_comm._system.auth import derived
from synk_comm._system.folder import SocketFolder
from synk_comm.exceptions import JoinError

Card = Dict[str, Any]

_HANDSHAKE_MS = 3000
"""How long ZeroMQ listens to a connection that has not shown who it is."""
_HEARTBEAT_MS, _SILENCE_MS = 300, 1500
"""Between machines: how often life is shown, and which silence means that the link is cut.

Not on one machine, where the system tells of a death at once, and silence means that the other
process has been stopped: it is late, not lost.
"""


def has_come(socket: Any) -> bool:
    """Whether there is a message to take.

    To try, and be told that there is none, may cost a signal: where pyzmq is built for all versions
    of Python, what a handler raises while an exception of its own gets its traceback is lost.
    """
    return bool(socket.getsockopt(zmq.EVENTS) & zmq.POLLIN)


class Door:
    """Answers ZeroMQ when it asks whether somebody may connect."""

    def __init__(self, context: Any) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind("inproc://zeromq.zap.01")
        self._guests: dict[bytes, list[bytes]] = {}

    def expect(self, domain: bytes, mechanism: bytes, *credentials: bytes) -> None:
        """Let in who shows this."""
        self._guests[domain] = [mechanism, *credentials]

    def answer(self) -> None:
        """Answer all questions that have come."""
        with contextlib.suppress(zmq.Again):
            while has_come(self.socket):
                _, number, domain, _, _, *shown = self.socket.recv_multipart(zmq.NOBLOCK)
                expected = self._guests.get(domain)
                known = expected is not None and hmac.compare_digest(
                    b"|".join(expected), b"|".join(shown)
                )
                status = b"200" if known else b"400"
                self.socket.send_multipart([b"1.0", number, status, b"", b"", b""])


class Wires:
    """One rank's part in the wiring of a group.

    Args:
        folder: where sockets are put; None for TCP.
        to_remove: folders that nobody needs once all have met.
    """

    def __init__(
        self,
        rank: int,
        hosts: Sequence[Host],
        key: bytes,
        folder: SocketFolder | None,
        *,
        to_remove: Sequence[SocketFolder] = (),
    ) -> None:
        self.rank = rank
        self.hosts = list(hosts)
        self._key = key
        self._folder = folder
        self._to_remove = list(to_remove)
        self._paths: list[str] = []
        self._public = self._secret = b""
        if any(self._crypt(other) for other in range(len(hosts))):
            if not zmq.has("curve"):
                raise JoinError(
                    "this ZeroMQ cannot encrypt (it was built without CURVE), so it must not carry "
                    "messages between hosts; install pyzmq from a wheel: pip install pyzmq"
                )
            self._public, self._secret = zmq.curve_keypair()

    def _crypt(self, other: int) -> bool:
        return self._folder is None and not self._near(other)

    def _near(self, other: int) -> bool:
        return self.hosts[self.rank].near(self.hosts[other])

    def _domain(self, other: int) -> bytes:
        return f"{min(self.rank, other)}-{max(self.rank, other)}".encode()

    def _password(self, other: int) -> bytes:
        return derived(self._key, f"password {self._domain(other)!r}").hex().encode()

    def listen(self, socket: Any, other: int, door: Door) -> str:
        """Bind the socket for a higher rank; return where."""
        self._watch_over(socket, other)
        if self._folder is not None:
            path = self._folder.socket(self.rank, other)
            self._paths.append(path)
            endpoint = f"ipc://{path}"
        else:
            domain = self._domain(other)
            socket.setsockopt(zmq.ZAP_DOMAIN, domain)
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            if self._crypt(other):
                socket.setsockopt(zmq.CURVE_SERVER, 1)
                socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret)
            else:
                socket.setsockopt(zmq.PLAIN_SERVER, 1)
                door.expect(domain, b"PLAIN", b"synk-comm", self._password(other))
            endpoint = f"tcp://{self.hosts[self.rank].address}:*"
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as exc:
            raise JoinError(f"rank {self.rank} cannot listen at {endpoint}: {exc}") from exc
        actual: str = socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        return actual

    def card(self, endpoints: dict[int, str]) -> Card:
        """Return what the others must know to connect."""
        listens = {str(other): endpoint for other, endpoint in endpoints.items()}
        return {"listens": listens, "key": self._public.decode()}

    def await_caller(self, other: int, card: Card, door: Door) -> None:
        """Let a higher rank in."""
        if self._crypt(other):
            door.expect(self._domain(other), b"CURVE", z85.decode(card["key"].encode()))

    def connect(self, socket: Any, other: int, card: Card) -> None:
        """Reach out to a lower rank, which listens."""
        self._watch_over(socket, other)
        endpoint = str(card["listens"][str(self.rank)])
        place = self.hosts[other].address
        if not endpoint.startswith("ipc:///" if self._folder is not None else f"tcp://{place}:"):
            raise JoinError(f"rank {other} listens at {endpoint!r}, which is not where it runs")
        if self._crypt(other):
            socket.setsockopt(zmq.CURVE_SERVERKEY, card["key"].encode())
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret)
        elif self._folder is None:
            socket.setsockopt(zmq.PLAIN_USERNAME, b"synk-comm")
            socket.setsockopt(zmq.PLAIN_PASSWORD, self._password(other))
        else:
            SocketFolder(os.path.dirname(endpoint[len("ipc://") :])).check()
        socket.connect(endpoint)

    def _watch_over(self, socket: Any, other: int) -> None:
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        if self._folder is None and not self._near(other):
            socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)

    def hide(self) -> None:
        """Remove the sockets' files: all have met, or never will."""
        while self._paths:
            with contextlib.suppress(OSError):
                os.unlink(self._paths.pop())
        while self._to_remove:
            folder = self._to_remove.pop()
            folder.remove()
            folder.forget()

    def part(self, rank: int, ranks: Sequence[int], key: bytes) -> Wires:
        """Return the wiring of this rank in a smaller group of ``ranks``.

        Each rank that others call has a folder of its own, which the others remove too: it may be
        killed before.
        """
        hosts = [self.hosts[old] for old in ranks]
        if self._folder is None:
            return Wires(rank, hosts, key, None)
        folders = [SocketFolder.named(derived(key, f"folder {new}")) for new in range(len(ranks))]
        if rank < len(ranks) - 1:
            folders[rank].make()
        return Wires(rank, hosts, key, folders[rank], to_remove=folders)
