"""Ways into a group: tickets from the process that starts its ranks, or the environment."""

from __future__ import annotations

import contextlib
import operator
import os
import secrets
import weakref
from typing import Callable, NamedTuple

from ._backends.local import local_group
from ._backends.shm.block import create as create_block
from ._backends.shm.fabric import ShmFabric
from ._collectives.communicator import meet
from ._core.fabric import Fabric, Watch
from ._core.guard import DEFAULT_TIMEOUT_S, deadline_after
from ._system.folder import SocketFolder
from .abc import Communicator
from .exceptions import JoinError

_BACKENDS = ("auto", "shm", "zmq", "nccl", "mpi")


class Ticket(NamedTuple):
    """A rank's way into a group, which travels as one line of text."""

    backend: str
    rank: int
    size: int
    group_id: str  # hex; names the group's memory, and marks its messages
    place: str  # path of the memory, a descriptor of its maker, or of the folder of sockets

    def __str__(self) -> str:
        return "|".join(["synk-comm-3", *map(str, self)])

    @classmethod
    def parse(cls, text: str) -> Ticket:
        version, *fields = text.strip().split("|")
        if len(fields) != 5 or version != "synk-comm-3":
            raise ValueError("this is not a ticket; expected the text of group.ticket(rank)")
        backend, rank, size, group_id, place = fields
        return cls(backend, int(rank), int(size), group_id, place)


class Group:
    """A group in the making, held by the process that starts its ranks.

    Give each rank its ``ticket`` and let it inherit ``fds``; then ``close``. The parent may join
    with a ticket too. If another program starts the ranks, one of them makes the group, sends the
    others their tickets, and closes it when it has joined.

    Attributes:
        size: number of ranks.
        backend: its name.
        fds: descriptors that the ranks' processes must inherit, under the same numbers
            (``subprocess.Popen(..., pass_fds=group.fds)``); empty if they meet in a folder.
    """

    def __init__(self, size: int, backend: str, *, memory: bool) -> None:
        group_id = secrets.token_bytes(16)
        self.size = size
        self.backend = backend
        self.fds: tuple[int, ...] = ()
        self._folder: SocketFolder | None = None
        self._release: Callable[[], object] = lambda: None
        if memory:
            fd = create_block(size, group_id)
            self.fds = (fd,)
            self._release = weakref.finalize(self, _close_in_maker, os.getpid(), fd)
            place = f"/proc/{os.getpid()}/fd/{fd}"
        else:
            self._folder = SocketFolder.named(secrets.token_bytes(8)).make()
            place = self._folder.path
        self._ticket = Ticket(backend, 0, size, group_id.hex(), place)
        self._open = True

    def __repr__(self) -> str:
        return f"<Group of {self.size}, {self.backend}, {'open' if self._open else 'closed'}>"

    @property
    def folder(self) -> str | None:
        """The folder of sockets in which the ranks meet, None if they need none.

        It is removed when all have joined, or when this process exits; not if it is killed before.
        """
        return None if self._folder is None else self._folder.path

    def ticket(self, rank: int) -> str:
        """Return one line of text, which a rank's process passes to ``join``.

        Without shared memory it is secret: pass it by environment or pipe, never on a command line,
        which other users can read.
        """
        if not 0 <= rank < self.size:
            raise ValueError(f"rank must be 0 to {self.size - 1}, got {rank!r}")
        return str(self._ticket._replace(rank=rank))

    def close(self) -> None:
        """Drop this process's handles, but not the ``folder``, once the ranks have been started."""
        self._open = False
        self._release()

    def discard(self) -> None:
        """Close, and remove the folder."""
        if self._folder is not None:
            self._folder.remove()
        self.close()

    def __enter__(self) -> Group:  # noqa: PYI034 - typing.Self is newer than 3.9
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def create_group(size: int, backend: str = "shm") -> Group:
    """Make a group of ``size`` ranks that this process is going to start.

    Args:
        size: at least 1.
        backend: ``"shm"`` (shared memory, the fast one), ``"zmq"`` (ZeroMQ over sockets of a folder
            that only this user may enter), ``"auto"`` (shm if there is memory to share, else zmq),
            or ``"nccl"`` (NCCL for arrays on GPUs, beside that of auto).

    Raises:
        MemoryError: shared memory cannot hold the group's slots (about 1 MB a rank).
    """
    if operator.index(size) < 1:
        raise ValueError(f"size must be at least 1, got {size!r}")
    if backend == "local":
        raise ValueError("'local' is a group of one: use local_group")
    if backend == "mpi":
        raise ValueError(
            "the ranks of 'mpi' are started by mpiexec or srun, not by this process; call "
            "connect(backend='mpi') on each of them"
        )
    _check_backend(backend)
    if backend == "shm":
        return Group(size, backend, memory=True)
    if backend != "zmq" and os.environ.get("SYNK_COMM_SHM", "1") != "0":
        with contextlib.suppress(MemoryError):
            return Group(size, "shm" if backend == "auto" else backend, memory=True)
    return Group(size, "zmq" if backend == "auto" else backend, memory=False)


def _check_backend(backend: str) -> None:
    if backend not in _BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; expected one of {_BACKENDS}")


def join(
    ticket: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, watch: Watch | None = None
) -> Communicator:
    """Enter a group; return when all ranks have.

    Args:
        ticket: the text of ``group.ticket(rank)``. An inherited descriptor of shared memory is
            closed. A process that has not inherited it takes the memory from the process that made
            the group, while ``group`` is open there.
        timeout_s: bound of this wait, and default bound of every collective.
        watch: called at least every 20 ms while this rank waits, here and in every collective; an
            exception that it raises ends the wait, and the group.

    Raises:
        JoinError: the memory was not inherited, and the group is closed; the folder is not private,
            or the ticket was used before.
        CommTimeout: some ranks did not come.
        PeerLost: a rank ended while the ranks were joining.
    """
    return _enter(ticket, timeout_s, watch)


def connect(
    *, backend: str = "auto", timeout_s: float = DEFAULT_TIMEOUT_S, watch: Watch | None = None
) -> Communicator:
    """Enter the group that this process was started for; return when all ranks have.

    The environment names it, by ``SYNK_COMM_TICKET``; then this is ``join``. Else the group is this
    process alone, so that a script for many ranks also runs by itself; ``comm.why`` says so.

    Args:
        backend: ``"auto"``, that of the group, never MPI; ``"nccl"``, to put NCCL around it; or
            ``"mpi"``: then this is ``mpi``, for ranks that ``mpiexec`` or ``srun`` has started, on
            any number of hosts.
        timeout_s, watch: as for ``join``.

    Raises:
        ValueError: an unknown back-end.
        JoinError: there is no ticket, but another variable SYNK_COMM_* of a rank; the group was
            made for another back-end, or the back-end cannot work here.
        CommTimeout, PeerLost: as from ``join``.
    """
    if "SYNK_COMM_TICKET" in os.environ:
        return _enter(os.environ["SYNK_COMM_TICKET"], timeout_s, watch, backend)
    if backend == "mpi":
        from ._backends.mpi.start import mpi  # here: this loads mpi4py and starts MPI

        return mpi(timeout_s=timeout_s, watch=watch)
    for name in ("SYNK_COMM_RANK", "SYNK_COMM_SIZE"):
        if name in os.environ:
            raise JoinError(
                f"{name} is set, but not SYNK_COMM_TICKET; on one machine start ranks with `python "
                "-m synk_comm.run -n 4 script.py`, or give each a ticket of create_group(); on "
                "several start them with mpiexec or srun, and call connect(backend='mpi')"
            )
    if backend == "auto":
        (comm,) = local_group(timeout_s=timeout_s)
        comm.why = "local: no variable SYNK_COMM_* is set, so this process is a group of one"
        return comm
    group = create_group(1, backend)
    try:
        return _enter(group.ticket(0), timeout_s, watch, backend)
    finally:
        group.discard()


def _enter(
    ticket: str, timeout_s: float, watch: Watch | None, backend: str = "auto"
) -> Communicator:
    """Make the fabric of a ticket, and meet the other ranks; NCCL can be put around any other."""
    entry = Ticket.parse(ticket)
    _check_backend(backend)
    if backend not in ("auto", "nccl", entry.backend):
        raise JoinError(
            f"this rank asked for backend {backend!r}, but its group was made for {entry.backend!r}"
        )
    deadline = deadline_after(timeout_s)
    group_id = bytes.fromhex(entry.group_id)
    fabric: Fabric
    if entry.place.startswith("/proc/"):
        why = "shm: the ranks have the group's memory from its maker"
        fd = _memory(entry.place)
        fabric = ShmFabric(entry.rank, entry.size, watch, fd=fd, group_id=group_id)
    else:
        from ._backends.zmq.fabric import ZmqFabric  # here: this loads pyzmq

        why = "zmq: the group was made without shared memory"
        folder = SocketFolder(entry.place)
        folder.claim(entry.rank)
        fabric = ZmqFabric(entry.rank, entry.size, watch, group_id, folder)
    comm = meet(fabric, deadline, timeout_s, why)
    if "nccl" not in (backend, entry.backend):
        return comm
    try:
        from ._backends.nccl.communicator import nccl  # here: it takes time to load

        return nccl(comm)
    except BaseException as exc:
        comm.abort(f"{type(exc).__name__} while NCCL was set up: {exc}")
        comm.close()
        raise


def _memory(place: str) -> int:
    """Return a descriptor of the group's memory, to be closed: the inherited, or the maker's.

    Only processes of the same user can open that of the maker.
    """
    fd, own = int(os.path.basename(place)), f"/proc/self/fd/{os.path.basename(place)}"
    is_makers = place == f"/proc/{os.getpid()}/fd/{fd}"
    for path in (own, place):
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith("/memfd:synk-comm"):
                is_inherited = path == own and not is_makers
                return fd if is_inherited else os.open(path, os.O_RDWR | os.O_CLOEXEC)
    raise JoinError(
        f"descriptor {fd} of the group was not inherited, and its maker has none; start ranks with "
        "subprocess.Popen(..., pass_fds=group.fds), or keep the group open until all have joined"
    )


def _close_in_maker(pid: int, fd: int) -> None:
    # In a forked child the number may belong to something else by now.
    if os.getpid() == pid:
        os.close(fd)
