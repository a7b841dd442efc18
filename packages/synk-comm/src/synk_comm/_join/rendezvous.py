"""Groups of processes without a common parent: they meet at an address, and prove a token."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import operator
import os
import socket
import time
from typing import Iterator, NamedTuple

from synk_comm._core.fabric import SLICE_S, Watch
from synk_comm._core.guard import deadline_after
from synk_comm._meeting.host import this_host
from synk_comm._meeting.link import Goods, Line, Patience
from synk_comm._meeting.meeting import Meeting, alone
from synk_comm._meeting.server import Desk, Where, call_desk
from synk_comm._system.auth import token_key
from synk_comm._system.folder import SocketFolder
from synk_comm.abc import Communicator
from synk_comm.exceptions import JoinError

from .choice import REGISTRY, choose
from .groups import DEFAULT_TIMEOUT_S
from .registry import AnyBackend

_PORT_S = 0.25

HOW_TO_START = (
    "start ranks with `python -m synk_comm.run -n 4 script.py`, which sets the variables "
    "SYNK_COMM_*, or pass rank, size, address and token"
)


def connect(
    rank: int | None = None,
    size: int | None = None,
    address: str | None = None,
    *,
    token: str | bytes | None = None,
    backend: AnyBackend = "auto",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    watch: Watch | None = None,
) -> Communicator:
    """Enter the group that this process was started for; return when all ranks have.

    Without arguments the environment tells which: ``SYNK_COMM_TICKET`` (then this is ``join``), or
    ``SYNK_COMM_RANK``, ``SYNK_COMM_SIZE``, ``SYNK_COMM_ADDRESS`` and ``SYNK_COMM_TOKEN``, each of
    which stands in for an argument that is not given. If there is nothing at all, the group is
    this process alone, so that a script for many ranks also runs by itself; ``comm.why`` says so.

    Args:
        rank, size: who this is, of how many.
        address: the same on all ranks: ``ipc:///folder``, a folder of this user with mode 0700
            (rank 0 makes it if it is missing, and removes it again when all have joined), or
            ``tcp://host:port``, where rank 0 listens: ``127.0.0.1``, or the address of one
            interface of its host if ranks run on several.
        token: the same secret on all ranks, at least 16 characters that nobody can guess; pass it
            by environment or file, never on a command line.
        backend: a name, or an object (see ``Backend``). ``"auto"`` takes shared memory if all ranks
            are on one machine and can share it, else ZeroMQ; ``comm.why`` says which and why.
        timeout_s: bound of this wait, and default bound of every collective.
        watch: called at least every 20 ms while this rank waits, here and in every collective;
            what it raises ends the wait, and the group.

    Raises:
        ValueError: bad arguments, an unknown back-end, an address on all interfaces.
        JoinError: something is missing in the environment; the folder is not private, who listens
            does not know the token, sizes differ, a rank joined twice, the back-end cannot
            work here, or another rank failed to join.
        CommTimeout: some ranks did not come.
        PeerLost: a rank ended while the ranks were joining.
    """
    given = (rank, size, address)
    if given == (None, None, None) and "SYNK_COMM_TICKET" in os.environ:
        from .groups import Ticket, enter

        ticket = Ticket.parse(os.environ["SYNK_COMM_TICKET"])
        return enter(ticket, timeout_s, watch, backend)
    who = _Who.of(rank, size, address, token)
    patience = Patience(who.rank, deadline_after(timeout_s), watch)
    if backend != "auto":
        REGISTRY.find(backend)
    if who.size == 1:
        with alone(patience, timeout_s, this_host) as meeting:
            comm = choose(meeting, backend)
        if who.by_itself and backend == "auto":
            comm.why = "local: no variable SYNK_COMM_* is set, so this process is a group of one"
        return comm
    return meet_at(who.address, who.rank, who.size, who.key, backend, timeout_s, patience)


class _Who(NamedTuple):
    """A rank of a group, and where it meets the others."""

    rank: int
    size: int
    address: str
    key: bytes
    by_itself: bool = False

    @classmethod
    def of(
        cls,
        rank: int | None,
        size: int | None,
        address: str | None,
        token: str | bytes | None,
    ) -> _Who:
        """Complete the arguments by the environment, and check them."""
        env = os.environ
        given = (rank, size, address)
        names = ("SYNK_COMM_RANK", "SYNK_COMM_SIZE", "SYNK_COMM_ADDRESS")
        if given == (None, None, None) and not any(name in env for name in names):
            return cls(0, 1, "", b"", by_itself=True)
        rank = _number(names[0]) if rank is None else operator.index(rank)
        size = _number(names[1]) if size is None else operator.index(size)
        if not 0 <= rank < size:
            raise ValueError(f"rank must be 0 to size - 1, got rank {rank!r} of {size!r}")
        if size == 1:
            return cls(0, 1, "", b"")
        address = _text(names[2]) if address is None else address
        token = _text("SYNK_COMM_TOKEN") if token is None else token
        return cls(rank, size, address, token_key(token))


def _text(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise JoinError(
            f"{name} is not set, though other SYNK_COMM_* are; {HOW_TO_START}"
        ) from None


def _number(name: str) -> int:
    text = _text(name)
    try:
        return int(text)
    except ValueError:
        raise JoinError(f"{name} must be a number, got {text!r}; {HOW_TO_START}") from None


def meet_at(
    address: str,
    rank: int,
    size: int,
    key: bytes,
    backend: AnyBackend,
    timeout_s: float,
    patience: Patience,
) -> Communicator:
    """Meet the other ranks at an address, and open a communicator."""
    place = Place.parse(address)
    asked = backend if isinstance(backend, str) else backend.name
    with contextlib.ExitStack() as stack:
        folder = None
        where: Where = (place.host, place.port)
        if place.path:
            folder = stack.enter_context(_private_folder(rank, place.path, patience))
            where = folder.socket("desk")
        lines: dict[int, Line] = {}
        meeting = Meeting(rank, size, patience, timeout_s, key=key, lines=lines, folder=folder)
        stack.enter_context(meeting)

        def card(raw: socket.socket) -> Goods:
            own = raw.getsockname()[0] if place.port else ""
            return {"size": size, "backend": asked, "host": this_host(own)}

        cards: list[Goods] = []
        if rank:
            lines[0] = call_desk(where, rank, key, card, patience)
        else:
            with _listening(where, patience) as listener:
                desk = Desk(listener, size, key, patience, lines)
                desk.receive_all(meeting.look)
                desk.cards[0] = card(listener)
                cards = [desk.cards[other] for other in range(size)]
        meeting.begin(cards)
        return choose(meeting, backend)


class Place(NamedTuple):
    """An address, taken apart: a folder, or a numeric host and a port."""

    path: str
    host: str
    port: int

    @classmethod
    def parse(cls, address: str) -> Place:
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
def _listening(where: Where, patience: Patience) -> Iterator[socket.socket]:
    """Yield rank 0's socket, bound."""
    with socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET) as listener:
        try:
            if isinstance(where, str):
                _bind_path(listener, where)
            else:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                _bind_port(listener, where, patience)
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


def _bind_port(listener: socket.socket, where: tuple[str, int], patience: Patience) -> None:
    """Bind to a port, which may be taken for a moment: the kernel may have given it to a rank that
    calls before there is a listener, as its own end."""
    until = time.monotonic() + _PORT_S
    while True:
        try:
            return listener.bind(where)
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise
        patience.look(lambda: {0: f"cannot listen at {where} yet"})
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
def _private_folder(rank: int, path: str, patience: Patience) -> Iterator[SocketFolder]:
    """Yield the folder of an ipc address, made by rank 0 if it is missing."""
    folder = SocketFolder(path)
    made = False
    if rank == 0:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            made = True
    try:
        while not os.path.isdir(path):
            patience.look(lambda: {0: f"has not made {path}"})
            time.sleep(SLICE_S)
        folder.check()
        yield folder
    finally:
        if made:
            folder.remove()
