"""The ranks that an MPI launcher has started, on one or more hosts; rank 0 is the master.

Nothing waits inside of MPI: messages are polled, so that every wait has an end.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.metadata
import os
import platform
import socket
import sys
import time
from functools import cached_property
from itertools import chain, cycle
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

import synk_comm
from synk_comm import cuda
from synk_comm.processes import WatchedProcess, core_quota
from synk_core._adapters import installed
from synk_core.exceptions import StartError

from . import launcher
from .channel import ChannelClosed

INSTALL = "pip install 'synkhronos[mpi]'"

MEET_TIMEOUT_S = 300.0
"""Seconds to wait for all ranks: their hosts may be busy, or read Python from a slow disk."""

END_TIMEOUT_S = 10.0
"""Seconds to wait for the workers' answer at the end of the program."""

NODE_VARIABLE = "SYNKHRONOS_NODE"
"""Environment variable with another name for this host, for tests."""

_CONTROL_TAG, _FIRST_TAG, _LAST_TAG = 1, 2, 30000
_PINGS = 20
_NAP_S, _LONG_NAP_S, _LONG_S = 2e-4, 2e-3, 1.0
_DISTRIBUTIONS = ("numpy", "synk-shm", "synk-comm", "synk-core", "synkhronos")


class RankInfo(NamedTuple):
    """A rank, as the others know it.

    Attributes:
        memory: equal for ranks that share memory and process ids.
        cores: ids of the cores that it may use.
        host_cores: number of its host's cores.
        quota: number of cores that its control groups allow.
        gpus: uuids of the GPUs that it sees.
        versions: of Python and of packages, by name.
    """

    host: str
    memory: str
    pid: int
    cores: Tuple[int, ...]
    host_cores: int
    quota: int
    gpus: Tuple[str, ...]
    versions: Dict[str, str]


class World:
    """All ranks of the launcher, as one of them sees them. Every rank makes one: a collective.

    Attributes:
        lost: why no runtime can be started any more; "" as long as one can.
        gone: ranks that have ended. Nothing may be sent to them: some MPIs would hang or crash.
        in_use: whether a runtime has the workers, or this rank is one.
        status: the program's exit status, for `abort`.
        sending: requests that may be under way, with their buffers, which MPI reads until then.
        side: MPI's communicator of the channels.
        leaving: called when this rank leaves the others in order.
        next_tag: returns a tag for the messages of a new runtime.

    Raises:
        StartError: MPI cannot be used, does not fit the launcher, or the ranks do not fit together.
    """

    def __init__(self, launch: launcher.Launch) -> None:
        # Inside MPI's own start nothing else bounds the wait for a rank that has ended.
        faulthandler.dump_traceback_later(MEET_TIMEOUT_S, exit=True)
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # no package, or no library
            raise StartError(
                f"{launch.name} has started {launch.size} processes, but mpi4py cannot be used "
                f"({error}); install it in the environment of {sys.executable}: {INSTALL}, or "
                f"start one process alone"
            ) from error
        finally:
            faulthandler.cancel_dump_traceback_later()
        everyone = MPI.COMM_WORLD
        if everyone.size != launch.size:
            library = " ".join(MPI.Get_library_version().partition("\n")[0].strip("\0").split())
            raise StartError(
                f"{launch.name} has started {launch.size} processes, but MPI sees "
                f"{everyone.size}: mpi4py uses another MPI ({library}) than the launcher. Start "
                f"with the mpiexec of that MPI; with srun, choose one of `srun --mpi=list`, such "
                f"as --mpi=pmi2 or --mpi=pmix"
            )
        self.mpi: Any = MPI
        self._everyone: Any = everyone
        self.rank, self.size = everyone.rank, everyone.size
        self.lost = ""
        self.gone: Set[int] = set()
        self.in_use = self._ended = False
        self.status = 0
        self.leaving: Callable[[], None] = lambda: None
        self.sending: List[Tuple[Any, bytes]] = []
        self._processes: Dict[int, Optional[WatchedProcess]] = {}
        self.next_tag = cycle(range(_FIRST_TAG, _LAST_TAG)).__next__
        try:
            with self.communicator(MEET_TIMEOUT_S) as comm:
                self.members: List[RankInfo] = comm.all_gather_object(_own_info())
                self.side: Any = everyone.Dup()  # all have come
                self.side.Set_errhandler(MPI.ERRORS_RETURN)
                self._offsets = self._measured(comm)
        except synk_comm.CommError as error:
            raise StartError(
                f"the ranks have not met: {error}. Every rank has to call fork(), or use "
                f"`synkhronos run`, which runs the program on rank 0 alone"
            ) from error
        _require_equal(self.members)

    def communicator(
        self, timeout_s: float, watch: Optional[Callable[[], None]] = None
    ) -> synk_comm.Communicator:
        """Return a new communicator of all ranks. A collective."""
        return synk_comm.mpi(self._everyone, timeout_s=timeout_s, watch=watch)

    @cached_property
    def nodes(self) -> Tuple[int, ...]:
        """The number of each rank's node; the master's is 0."""
        seen: Dict[str, int] = {}
        return tuple(seen.setdefault(member.memory, len(seen)) for member in self.members)

    @cached_property
    def hosts(self) -> Tuple[str, ...]:
        """The names of the nodes."""
        names = dict(zip(self.nodes, self.members))
        return tuple(names[node].host for node in range(len(names)))

    def local_ranks(self, rank: int) -> List[int]:
        """Return the ranks on the node of a rank."""
        return [other for other, node in enumerate(self.nodes) if node == self.nodes[rank]]

    def is_near(self, rank: int) -> bool:
        """Return whether a rank shares memory with the master."""
        return self.nodes[rank] == 0

    def threads(self, rank: int) -> int:
        """Return a rank's threads, so that each core of its node is used once: its cores, divided
        among the ranks that may use them."""
        own = self.members[rank]
        sharing = [
            other
            for other in self.local_ranks(rank)
            if not set(own.cores).isdisjoint(self.members[other].cores)
        ]
        return max(1, min(len(own.cores), own.quota) // len(sharing))

    def offset_s(self, rank: int) -> float:
        """Return the seconds to add to a rank's `time.perf_counter` to get the master's."""
        return self._offsets[self.nodes[rank]]

    def _measured(self, comm: synk_comm.Communicator) -> List[float]:
        """Return the seconds to add to each node's clock to get the master's: as if the quickest of
        several answers had been sent halfway between question and arrival."""
        offsets = [0.0] * len(self.hosts)
        for node in range(1, len(offsets)):
            leader = self.nodes.index(node)
            if self.rank == leader:
                for _ in range(_PINGS):
                    comm.recv_object(0)
                    comm.send_object(time.perf_counter(), 0)
            elif self.rank == 0:
                trips = []
                for _ in range(_PINGS):
                    began = time.perf_counter()
                    comm.send_object(None, leader)
                    theirs = comm.recv_object(leader)
                    ended = time.perf_counter()
                    trips.append((ended - began, (began + ended) / 2 - theirs))
                offsets[node] = min(trips)[1]
        found: List[float] = comm.broadcast_object(offsets)
        return found

    def channel(self, peer: int, tag: int = _CONTROL_TAG) -> MpiChannel:
        """Return this rank's end of the channel to another rank."""
        return MpiChannel(self, peer, tag)

    def drop_messages(self) -> None:
        """Receive the messages of closed runtimes, before MPI ends."""
        self.leaving()
        with contextlib.suppress(self.mpi.Exception):
            while self.receive(self.mpi.ANY_SOURCE, self.mpi.ANY_TAG) is not None:
                pass

    def receive(self, peer: int, tag: int) -> Optional[bytes]:
        """Return a message that has arrived; None if there is none."""
        status = self.mpi.Status()
        message = self.side.Improbe(peer, tag, status)
        if message is None:
            return None
        buffer = bytearray(status.Get_count(self.mpi.BYTE))
        message.Recv([buffer, self.mpi.BYTE])
        return bytes(buffer)

    def prune(self) -> None:
        """Forget the requests that are done."""
        self.sending = [pair for pair in self.sending if not pair[0].Test()]

    def process(self, rank: int) -> Optional[WatchedProcess]:
        """Return the process of another rank; None on another node, or without pidfds."""
        if rank not in self._processes:
            self._processes[rank] = None
            if self.nodes[rank] == self.nodes[self.rank]:
                try:
                    self._processes[rank] = WatchedProcess(self.members[rank].pid)
                except ProcessLookupError:
                    self.gone.add(rank)
                except OSError:
                    pass
        return self._processes[rank]

    def look_at(self, rank: int) -> None:
        """Note whether the process of a rank on this one's node has ended."""
        process = self.process(rank)
        if process is not None and process.is_gone():
            self.gone.add(rank)

    def failed_ranks(self) -> Sequence[int]:
        """Return the ranks that MPI reports as failed, after it has raised an error; all of them
        without fault tolerance."""
        side = self.side
        try:
            side.Ack_failed()
            failed = side.Get_failed()
        except (AttributeError, NotImplementedError, self.mpi.Exception):
            return range(self.size)
        ranks = self.mpi.Group.Translate_ranks(failed, None, side.Get_group())
        return [int(rank) for rank in ranks]

    def end(self) -> None:
        """In the master, let all ranks end, or abort them if some do not answer. Idempotent."""
        # A forked child must not touch MPI.
        if self._ended or self.rank or os.getpid() != self.members[0].pid:
            return
        self._ended = True
        channels = [self.channel(rank) for rank in range(1, self.size)]
        for channel in channels:
            channel.close()
        until = time.monotonic() + END_TIMEOUT_S
        if self.lost or self.gone or not all(each.wait_for_end(until) for each in channels):
            self.abort(self.status or 1)
        self.drop_messages()

    def abort(self, status: int) -> None:
        """End the processes of all ranks at once, with this status."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # closed, its reader gone, or a user's own
                stream.flush()
        self._everyone.Abort(status)


class MpiChannel:
    """As `Channel`, to another rank of the world. A message without bytes is the end; the tag
    distinguishes messages from those of an earlier runtime."""

    def __init__(self, world: World, peer: int, tag: int) -> None:
        self.peer = peer
        self._world = world
        self._tag = tag
        self._received: List[bytes] = []
        self._ended = self._closed = False

    def send(self, payload: bytes) -> None:
        """Begin to send one message."""
        self._look()
        gone = f"rank {self.peer} on host {self._world.members[self.peer].host} is gone"
        if self._closed or self._ended or not self._post(payload):
            raise ChannelClosed(gone)

    def _post(self, payload: bytes) -> bool:
        """Begin to send; return whether MPI takes it."""
        mpi = self._world.mpi
        try:
            request = self._world.side.Isend([payload, mpi.BYTE], self.peer, self._tag)
            self._world.sending.append((request, payload))
            self._world.prune()
        except mpi.Exception:
            self._fail()
            return False
        return True

    def _look(self) -> None:
        """Receive all messages that have arrived."""
        if self.peer == 0:  # a worker that ends in order may be gone before its message is here
            self._world.look_at(0)
        self._ended = self._ended or self.peer in self._world.gone
        try:
            while not self._ended:
                message = self._world.receive(self.peer, self._tag)
                if message is None:
                    return
                if message:
                    self._received.append(message)
                self._ended = not message
        except self._world.mpi.Exception:
            self._fail()

    def _fail(self) -> None:
        """Take the channel for ended if MPI's error is about its peer."""
        self._world.gone.update(self._world.failed_ranks())
        self._ended = self._ended or self.peer in self._world.gone

    def recv(self, timeout_s: Optional[float] = None) -> bytes:
        """Receive one message; TimeoutError if there is none in `timeout_s` seconds."""
        began = time.monotonic()
        while not self.pending():
            waited = time.monotonic() - began
            if timeout_s is not None and waited >= timeout_s:
                raise TimeoutError("no answer in time")
            time.sleep(_NAP_S if waited < _LONG_S else _LONG_NAP_S)
        if not self._received:
            raise ChannelClosed("end of messages")
        return self._received.pop(0)

    def take_all(self) -> List[bytes]:
        """Return the messages that have arrived."""
        self._look()
        taken, self._received = self._received, []
        return taken

    def pending(self) -> bool:
        """Return whether `recv` would return (or raise ChannelClosed) without waiting."""
        if not self._received:
            self._look()
        return bool(self._received) or self._ended

    def at_end(self) -> bool:
        """Return whether the other side is gone and nothing is left to read."""
        return self.pending() and not self._received

    def wait_for_end(self, until: float) -> bool:
        """Drop messages until the other side closes its end; return whether it did by `until`."""
        try:
            while True:
                self.recv(max(until - time.monotonic(), 0.0))
        except ChannelClosed:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        """Close this end. Idempotent."""
        if self._closed:
            return
        if self.peer not in self._world.gone and (not self._ended or self._tag == _CONTROL_TAG):
            self._post(b"")
        self._closed = True
        until = time.monotonic() + 0.5
        with contextlib.suppress(self._world.mpi.Exception):
            while self._world.sending and time.monotonic() < until:
                self._world.prune()
                time.sleep(_NAP_S)


def _own_info() -> RankInfo:
    host = os.environ.get(NODE_VARIABLE) or socket.gethostname()
    return RankInfo(
        host=host,
        memory=f"{host} {_shared_memory()}",
        pid=os.getpid(),
        cores=tuple(sorted(os.sched_getaffinity(0))),
        host_cores=os.cpu_count() or 1,
        quota=core_quota(),
        gpus=_visible_gpus(),
        versions=_versions(),
    )


def _shared_memory() -> str:
    """Return a text that differs between machines, containers and mounts that share no memory."""
    parts = []
    for path in ("/dev/shm", "/proc/self/ns/pid"):  # noqa: S108 - to be named only
        try:
            parts.append(f"{os.stat(path).st_dev}.{os.stat(path).st_ino}")
        except OSError:
            parts.append("")
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        parts.append(file.read().strip())
    return " ".join(parts)


def _visible_gpus() -> Tuple[str, ...]:
    try:
        driver = cuda.Driver()
        return tuple(driver.uuid(device) for device in range(driver.device_count()))
    except cuda.CudaError:
        return ()


def _versions() -> Dict[str, str]:
    found = {"Python": platform.python_version(), "byte order": sys.byteorder}
    engines = [(adapter.engine, adapter.distribution) for adapter in installed()]
    for name in (*_DISTRIBUTIONS, *chain.from_iterable(engines)):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    found["numpy"] = np.__version__  # the one that is imported
    return found


def _require_equal(members: Sequence[RankInfo]) -> None:
    first = members[0]
    for rank, member in enumerate(members):
        for name, version in first.versions.items():
            theirs = member.versions.get(name, "not installed")
            if theirs != version:
                raise StartError(
                    f"rank {rank} on host {member.host} has {name} {theirs}, "
                    f"but rank 0 on host {first.host} has {version}; all ranks need the same "
                    f"versions: use one environment for all hosts"
                )
