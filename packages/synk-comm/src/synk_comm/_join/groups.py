"""Groups of ranks that a common parent starts: made here, entered with a ticket."""

from __future__ import annotations

import contextlib
import operator
import os
import secrets
import weakref
from typing import Callable, NamedTuple

from synk_comm._backends.shm.block import create as create_block
from synk_comm._backends.shm.fabric import ShmFabric
from synk_comm._collectives.rounds import meet
from synk_comm._core.fabric import Watch
from synk_comm._core.guard import DEFAULT_TIMEOUT_S, deadline_after
from synk_comm._meeting.link import WaitLimit
from synk_comm._system.auth import token_key
from synk_comm._system.folder import SocketFolder
from synk_comm._system.liveness import identity
from synk_comm.abc import Communicator
from synk_comm.exceptions import JoinError

from .choice import REGISTRY, NcclBackend
from .registry import AnyBackend
from .rendezvous import meet_at


class Ticket(NamedTuple):
    """What a rank must know to join; travels as one connection of text.

    Attributes:
        backend: name of the back-end.
        rank, size: as in ``Communicator``.
        group_id: hex; names the group's memory.
        maker: the process that made the group, and still owns its descriptors.
        place: shm: number of the inherited descriptor; else: folder where the ranks meet.
        token: hex, the shared secret of the members; shm: "".
    """

    backend: str
    rank: int
    size: int
    group_id: str
    maker: str
    place: str
    token: str

    def __str__(self) -> str:
        return "|".join(["synk-comm-1", *map(str, self)])

    @classmethod
    def parse(cls, text: str) -> Ticket:
        """Read a ticket back; ValueError if the text is none."""
        fields = text.strip().split("|")
        if len(fields) != 8 or fields[0] != "synk-comm-1":
            raise ValueError("this is not a ticket; expected the text of group.ticket(rank)")
        _, backend, rank, size, group_id, maker, place, token = fields
        return cls(backend, int(rank), int(size), group_id, maker, place, token)


def _this_process() -> str:
    """Name this process so that a child, or a recycled pid, is not taken for it."""
    me = identity()
    return f"{me.pid}.{me.started}.{me.namespace}"


class Group:
    """A group in the making, held by the process that starts its ranks.

    Give each rank its ``ticket`` and let it inherit ``fds``; then ``close``. The parent may be a
    rank itself: it joins with a ticket like the others.

    Attributes:
        size: how many ranks there will be.
        backend: name of the back-end.
        fds: descriptors that the ranks' processes must inherit, under the same numbers
            (``subprocess.Popen(..., pass_fds=group.fds)``); empty but for shm.
    """

    def __init__(self, size: int, backend: str) -> None:
        group_id = secrets.token_bytes(16)
        self.size = size
        self.backend = backend
        self.fds: tuple[int, ...] = ()
        self._folder: SocketFolder | None = None
        place = token = ""
        if backend == "shm":
            fd = create_block(size, group_id)
            self.fds = (fd,)
            self._release: Callable[[], object] = weakref.finalize(
                self, _close_in_maker, os.getpid(), fd
            )
            place = str(fd)
        else:
            self._folder = SocketFolder.create()
            self._release = self._folder.forget
            place = self._folder.path
            token = secrets.token_hex(32)
        self._ticket = Ticket(backend, 0, size, group_id.hex(), _this_process(), place, token)
        self._open = True

    def __repr__(self) -> str:
        return f"<Group of {self.size}, {self.backend}, {'open' if self._open else 'closed'}>"

    @property
    def folder(self) -> str | None:
        """The folder of sockets in which the ranks meet, None if they need none.

        It is removed when all have joined, and at the latest when this process exits. If this
        process is killed before, it stays: another one has to remove it.
        """
        return None if self._folder is None else self._folder.path

    def ticket(self, rank: int) -> str:
        """Return what a rank's process must pass to ``join``: one connection of text.

        A shm ticket holds no secret. Any other ticket holds the group's token: pass it by
        environment or pipe, never on a command connection, which other users can read.
        """
        if not 0 <= rank < self.size:
            raise ValueError(f"rank must be 0 to {self.size - 1}, got {rank!r}")
        return str(self._ticket._replace(rank=rank))

    def close(self) -> None:
        """Drop this process's handles; to be called once the ranks have been started.

        The folder where ranks meet is needed until all have joined: rank 0 removes it then, or
        else this process does when it exits.
        """
        self._open = False
        self._release()

    def discard(self) -> None:
        """Close, and remove what ranks that never joined would have removed."""
        if self._folder is not None:
            self._folder.remove()
        self.close()

    def __enter__(self) -> Group:  # noqa: PYI034 - typing.Self is newer than 3.9
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def create_group(size: int, backend: AnyBackend = "shm") -> Group:
    """Make a group of ``size`` ranks that this process is going to start.

    Args:
        size: number of ranks, at least 1.
        backend: ``"shm"`` (shared memory, the fast one), ``"auto"`` (the same if there is memory to
            share, else the next), ``"zmq"`` (ZeroMQ over sockets of a folder that only this user
            may enter), or the name of another back-end, which every rank must know.

    Raises:
        MemoryError: shared memory cannot hold the group's slots (about 1 MB a rank).
    """
    if operator.index(size) < 1:
        raise ValueError(f"size must be at least 1, got {size!r}")
    if backend == "local":
        raise ValueError("'local' is for threads of one process: use local_group")
    if backend == "auto":
        if os.environ.get("SYNK_COMM_SHM", "1") != "0":
            with contextlib.suppress(MemoryError):
                return Group(size, "shm")
        return Group(size, "zmq")
    return Group(size, REGISTRY.find(backend).name)


def join(
    ticket: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, watch: Watch | None = None
) -> Communicator:
    """Enter a group; return when all ranks have.

    Args:
        ticket: the text of ``group.ticket(rank)``. For shm, the inherited descriptor is used up:
            it is closed, except in the process that made the group.
        timeout_s: bound of this wait, and default bound of every collective.
        watch: called at least every 20 ms while this rank waits, here and in every collective;
            what it raises ends the wait, and the group.

    Raises:
        JoinError: the descriptor was not inherited, the ticket was used before, or the
            server does not know the token.
        CommTimeout: some ranks did not come.
        PeerLost: a rank ended while the ranks were joining.
    """
    return enter(Ticket.parse(ticket), timeout_s, watch)


def enter(
    entry: Ticket, timeout_s: float, watch: Watch | None, backend: AnyBackend = "auto"
) -> Communicator:
    """Make the fabric that a ticket describes, and meet the other ranks.

    Args:
        backend: what the user asked for: ``"auto"``, the ticket's back-end, or ``"nccl"``, which
            can be put around any other.
    """
    asked = backend if isinstance(backend, str) else backend.name
    if asked == "nccl" != entry.backend:
        return NcclBackend().around(lambda: enter(entry, timeout_s, watch))
    if asked not in ("auto", entry.backend):
        raise JoinError(
            f"this rank asked for backend {asked!r}, but its group was made for {entry.backend!r}"
        )
    deadline = deadline_after(timeout_s)
    if entry.backend != "shm":
        return _enter_folder(
            entry, timeout_s, watch, entry.backend if isinstance(backend, str) else backend
        )
    fd = int(entry.place)
    try:
        fabric = ShmFabric(
            entry.rank, entry.size, watch, fd=fd, group_id=bytes.fromhex(entry.group_id)
        )
    finally:
        if entry.maker != _this_process():
            _close_quietly(fd)
    why = "shm: the ranks inherited the group's memory from who made the group"
    return meet(fabric, deadline, timeout_s, why)


def _enter_folder(
    entry: Ticket, timeout_s: float, watch: Watch | None, backend: AnyBackend
) -> Communicator:
    """Meet the other ranks in the folder of a ticket."""
    REGISTRY.find(backend)
    folder = SocketFolder(entry.place)
    folder.check()
    key = token_key(entry.token + entry.group_id)
    limit = WaitLimit(entry.rank, deadline_after(timeout_s), watch)
    try:
        return meet_at(
            f"ipc://{entry.place}", entry.rank, entry.size, key, backend, timeout_s, limit
        )
    finally:
        if entry.rank == 0:  # all are connected, or never will be
            folder.remove()


def _close_in_maker(pid: int, fd: int) -> None:
    # In a forked child the number may belong to something else by now.
    if os.getpid() == pid:
        os.close(fd)


def _close_quietly(fd: int) -> None:
    with contextlib.suppress(OSError):  # it was never inherited, which has been reported already
        os.close(fd)
