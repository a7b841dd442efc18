"""Groups of processes without a common parent: they meet at an address, and prove a token."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import time
from typing import Iterator, NamedTuple

from synk_comm._core.fabric import SLICE_S
from synk_comm._meeting.host import this_host
from synk_comm._meeting.link import Connection, Frame, WaitLimit
from synk_comm._meeting.meeting import Meeting
from synk_comm._meeting.server import Server, Where, connect_to_server
from synk_comm._system.folder import SocketFolder
from synk_comm.abc import Communicator
from synk_comm.exceptions import JoinError

from .choice import choose
from .registry import AnyBackend

_PORT_S = 0.25


def meet_at(
    address: str,
    rank: int,
    size: int,
    key: bytes,
    backend: AnyBackend,
    timeout_s: float,
    limit: WaitLimit,
) -> Communicator:
    """Meet the other ranks at an address, and open a communicator."""
    endpoint = Endpoint.parse(address)
    asked = backend if isinstance(backend, str) else backend.name
    with contextlib.ExitStack() as stack:
        folder = None
        where: Where = (endpoint.host, endpoint.port)
        if endpoint.path:
            folder = stack.enter_context(_private_folder(rank, endpoint.path, limit))
            where = folder.socket("server")
        connections: dict[int, Connection] = {}
        meeting = Meeting(
            rank, size, limit, timeout_s, key=key, connections=connections, folder=folder
        )
        stack.enter_context(meeting)

        def card(raw: socket.socket) -> Frame:
            own = raw.getsockname()[0] if endpoint.port else ""
            return {"size": size, "backend": asked, "host": this_host(own)}

        cards: list[Frame] = []
        if rank:
            connections[0] = connect_to_server(where, rank, key, card, limit)
        else:
            with _listening(where, limit) as listener:
                server = Server(listener, size, key, limit, connections)
                server.accept_all(meeting.look)
                server.cards[0] = card(listener)
                cards = [server.cards[other] for other in range(size)]
        meeting.begin(cards)
        return choose(meeting, backend)


class Endpoint(NamedTuple):
    """An address, taken apart: a folder, or a numeric host and a port."""

    path: str
    host: str
    port: int

    @classmethod
    def parse(cls, address: str) -> Endpoint:
        """Read an address; ValueError if it is none, or would listen on all interfaces."""
        scheme, separator, rest = address.partition("://")
        if separator and scheme == "ipc" and os.path.isabs(rest):
            return cls(rest.rstrip("/"), "", 0)
        host, _, port = rest.rpartition(":")
        if not (separator and scheme == "tcp" and host and port.isdigit() and int(port) > 0):
            raise ValueError(
                f"cannot read address {address!r}; expected ipc:///absolute/folder or "
                "tcp://host:port"
            )
        return cls("", _numeric(host, address), int(port))


def _numeric(host: str, address: str) -> str:
    """Return the IPv4 address of a host."""
    if host == "localhost":
        return "127.0.0.1"
    cure = "name one interface: tcp://127.0.0.1:port, or the address of rank 0's host"
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
        number = ipaddress.IPv4Address(found)
    except (OSError, ValueError) as exc:
        raise ValueError(f"cannot find an IPv4 address for {address!r} ({exc}); {cure}") from exc
    if number.is_unspecified or number.is_multicast or int(number) == 0xFFFFFFFF:
        raise ValueError(f"address {address!r} is no interface of one host; {cure}")
    return str(number)


@contextlib.contextmanager
def _listening(where: Where, limit: WaitLimit) -> Iterator[socket.socket]:
    """Yield rank 0's socket, bound."""
    with socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET) as listener:
        try:
            if isinstance(where, str):
                _bind_path(listener, where)
            else:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                _bind_port(listener, where, limit)
        except OSError as exc:
            cures = {
                errno.EADDRINUSE: "is there another rank 0, or another program? "
                "Take another port or folder",
                errno.EADDRNOTAVAIL: "it must be an address of the host that runs rank 0",
            }
            cure = cures.get(exc.errno or 0, "take another one")
            raise JoinError(f"rank 0 cannot listen at {where}: {exc}; {cure}") from exc
        try:
            yield listener
        finally:
            if isinstance(where, str):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(where)


def _bind_port(listener: socket.socket, where: tuple[str, int], limit: WaitLimit) -> None:
    """Bind to a port, which may be taken for a moment: the kernel may have given it to a rank that
    calls before there is a listener, as its own end."""
    until = time.monotonic() + _PORT_S
    while True:
        try:
            return listener.bind(where)
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise
        limit.look(lambda: {0: f"cannot listen at {where} yet"})
        time.sleep(SLICE_S)


def _bind_path(listener: socket.socket, path: str) -> None:
    try:
        listener.bind(path)
    except OSError as exc:
        if exc.errno != errno.EADDRINUSE:
            raise
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            if probe.connect_ex(path) != errno.ECONNREFUSED:
                raise
        os.unlink(path)  # left by a rank 0 that was killed
        listener.bind(path)


@contextlib.contextmanager
def _private_folder(rank: int, path: str, limit: WaitLimit) -> Iterator[SocketFolder]:
    """Yield the folder of an ipc address, made by rank 0 if it is missing."""
    folder = SocketFolder(path)
    made = False
    if rank == 0:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            made = True
    try:
        while not os.path.isdir(path):
            limit.look(lambda: {0: f"has not made {path}"})
            time.sleep(SLICE_S)
        folder.check()
        yield folder
    finally:
        if made:
            folder.remove()
