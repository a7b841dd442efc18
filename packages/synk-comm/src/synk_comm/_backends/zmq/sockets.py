"""Where the sockets between two ranks listen, and which peers they accept.

===================  ==========================  ===============================================
the two ranks are    sockets                     who may connect
===================  ==========================  ===============================================
met in a folder      of that folder              only this user can enter it
on one machine, TCP  of the interface they met   who knows the pair's password (PLAIN): it follows
                     by                          from the token, and does not leave the machine
on two machines      of that interface           who has the other rank's key (CURVE, encrypted):
                                                 made for this run, sent in a sealed frame
===================  ==========================  ===============================================

ZeroMQ asks an *authenticator* about every peer that connects (its ZAP protocol), before a byte of
it gets to a socket. Afterwards both ends still prove that they know the token (``fabric.py``).
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
"""Milliseconds until ZeroMQ drops a connection that is not authenticated."""
_HEARTBEAT_MS, _SILENCE_MS = 300, 1500
"""Between machines: milliseconds between heartbeats, and until a silent link counts as cut.

Not on one machine, where the system reports a death at once, and a silent process has been
stopped: it is late, not lost.
"""


def has_come(socket: Any) -> bool:
    """Return whether a message has arrived.

    To receive without one may cost a signal: if pyzmq is built for all versions
    of Python, what a handler raises while an exception of its own gets its traceback is lost.
    """
    return bool(socket.getsockopt(zmq.EVENTS) & zmq.POLLIN)


class Authenticator:
    """ZeroMQ's authentication service (ZAP): decides who may connect."""

    def __init__(self, context: Any) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind("inproc://zeromq.zap.01")
        self._allowed: dict[bytes, list[bytes]] = {}

    def allow(self, domain: bytes, mechanism: bytes, *credentials: bytes) -> None:
        """Accept peers that present these credentials."""
        self._allowed[domain] = [mechanism, *credentials]

    def answer(self) -> None:
        """Answer all requests that have arrived."""
        with contextlib.suppress(zmq.Again):
            while has_come(self.socket):
                _, number, domain, _, _, *shown = self.socket.recv_multipart(zmq.NOBLOCK)
                expected = self._allowed.get(domain)
                known = expected is not None and hmac.compare_digest(
                    b"|".join(expected), b"|".join(shown)
                )
                status = b"200" if known else b"400"
                self.socket.send_multipart([b"1.0", number, status, b"", b"", b""])


class Wiring:
    """One rank's part in the wiring of a group.

    Args:
        folder: where sockets are put; None for TCP.
        to_remove: folders that are not needed once all have met.
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

    def listen(self, socket: Any, other: int, authenticator: Authenticator) -> str:
        """Bind the socket for a higher rank; return where."""
        self._set_timeouts(socket, other)
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
                authenticator.allow(domain, b"PLAIN", b"synk-comm", self._password(other))
            endpoint = f"tcp://{self.hosts[self.rank].address}:*"
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as exc:
            raise JoinError(f"rank {self.rank} cannot listen at {endpoint}: {exc}") from exc
        actual: str = socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        return actual

    def card(self, endpoints: dict[int, str]) -> Card:
        """Return this rank's endpoints and key, for the others."""
        listens = {str(other): endpoint for other, endpoint in endpoints.items()}
        return {"listens": listens, "key": self._public.decode()}

    def allow_peer(self, other: int, card: Card, authenticator: Authenticator) -> None:
        """Accept a higher rank."""
        if self._crypt(other):
            authenticator.allow(self._domain(other), b"CURVE", z85.decode(card["key"].encode()))

    def connect(self, socket: Any, other: int, card: Card) -> None:
        """Connect to a lower rank, which listens."""
        self._set_timeouts(socket, other)
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

    def _set_timeouts(self, socket: Any, other: int) -> None:
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        if self._folder is None and not self._near(other):
            socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)

    def remove_files(self) -> None:
        """Remove the sockets' files: all ranks are connected, or never will be."""
        while self._paths:
            with contextlib.suppress(OSError):
                os.unlink(self._paths.pop())
        while self._to_remove:
            folder = self._to_remove.pop()
            folder.remove()
            folder.forget()

    def split(self, rank: int, ranks: Sequence[int], key: bytes) -> Wiring:
        """Return the wiring of this rank in a smaller group of ``ranks``.

        Each rank that listens has a folder of its own. The others remove it too: the rank may be
        killed before.
        """
        hosts = [self.hosts[old] for old in ranks]
        if self._folder is None:
            return Wiring(rank, hosts, key, None)
        folders = [SocketFolder.named(derived(key, f"folder {new}")) for new in range(len(ranks))]
        if rank < len(ranks) - 1:
            folders[rank].make()
        return Wiring(rank, hosts, key, folders[rank], to_remove=folders)
