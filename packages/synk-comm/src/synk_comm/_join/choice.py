"""The built-in back-ends for processes, and how one is chosen."""

from __future__ import annotations

import importlib
import os
import secrets
from typing import Callable, Sequence

from synk_comm._backends.local import local_group
from synk_comm._backends.shm.block import create as create_block
from synk_comm._backends.shm.fabric import ShmFabric
from synk_comm._collectives.rounds import meet
from synk_comm._core.guard import deadline_after
from synk_comm._meeting.host import Host, apart
from synk_comm._meeting.meeting import Meeting, Unusable
from synk_comm.abc import Communicator
from synk_comm.exceptions import JoinError

from .registry import AnyBackend, Backend, Registry, missing


class ShmBackend(Backend):
    """Shared memory: the fast one, for processes of one user on one machine."""

    name = "shm"

    def usable(self, hosts: Sequence[Host]) -> str:
        """Return why these hosts cannot share memory."""
        return apart(hosts)

    def open(self, meeting: Meeting) -> Communicator:
        """Make the block on rank 0, and hand it to all."""
        group_id = bytes.fromhex(meeting.exchange(secrets.token_hex(16))[0])
        made, problem = -1, ""
        if meeting.rank == 0:
            try:
                made = create_block(meeting.size, group_id)
            except (MemoryError, OSError) as exc:
                problem = str(exc)
        try:
            meeting.agree(problem)
            fd = meeting.hand_over(made)
        finally:
            if made >= 0:
                os.close(made)
        fabric = None
        try:
            fabric = ShmFabric(meeting.rank, meeting.size, meeting.watch, fd=fd, group_id=group_id)
        except (JoinError, OSError) as exc:
            problem = str(exc)
        finally:
            os.close(fd)
        try:
            meeting.agree(problem)
        except BaseException:
            if fabric is not None:
                fabric.drop()
            raise
        assert fabric is not None  # noqa: S101 - else all ranks have raised
        fabric.also = meeting.hear
        comm = meet(fabric, meeting.deadline, meeting.timeout_s)
        fabric.also = None
        return comm


class ZmqBackend(Backend):
    """ZeroMQ: between hosts, or where memory cannot be shared."""

    name = "zmq"

    def open(self, meeting: Meeting) -> Communicator:
        """Bind and connect the sockets between every two ranks."""
        # Its own file: pyzmq is only loaded by who uses it.
        from synk_comm._backends.zmq.fabric import ZmqFabric

        fabric = ZmqFabric.open(meeting)
        fabric.also = meeting.hear
        comm = meet(fabric, meeting.deadline, meeting.timeout_s)
        fabric.also = None
        return comm


class NcclBackend(Backend):
    """NCCL for arrays in GPU memory, beside ``shm`` or ``zmq`` for all else."""

    name = "nccl"

    def open(self, meeting: Meeting) -> Communicator:
        """Open what suits the hosts, and put NCCL around it."""
        return self.around(lambda: choose(meeting, "auto"))

    def around(self, make: Callable[[], Communicator]) -> Communicator:
        """Put NCCL around the communicator that ``make`` returns; give it up if that fails."""
        try:
            module = importlib.import_module("synk_comm._backends.nccl.communicator")
        except ImportError as exc:
            raise missing("nccl", "synk-comm", ["nccl"], exc) from exc
        comm = make()
        try:
            wrapped: Communicator = module.nccl(comm)
        except BaseException as exc:
            comm.abort(f"{type(exc).__name__} while NCCL was set up: {exc}")
            comm.close()
            raise
        return wrapped


def choose(meeting: Meeting, backend: AnyBackend) -> Communicator:
    """Open the communicator of a meeting by a back-end of choice, and say why in ``comm.why``."""
    if not isinstance(backend, str) or backend != "auto":
        found = REGISTRY.find(backend)
        reason = found.usable(meeting.hosts)
        if reason:
            raise JoinError(f"backend {found.name!r} cannot carry this group: {reason}")
        comm = found.open(meeting)
        if not getattr(comm, "why", ""):
            comm.why = f"{found.name}: asked for"
        return comm
    why = ""
    if meeting.size > 1:
        shm = ShmBackend()
        why = shm.usable(meeting.hosts)
        if not why:
            try:
                comm = shm.open(meeting)
            except Unusable as exc:
                why = f"no shared memory, {exc}"
            else:
                comm.why = f"shm: all {meeting.size} ranks are on this machine"
                return comm
        comm = ZmqBackend().open(meeting)
        comm.why = f"zmq: {why}"
        return comm
    deadline_after(meeting.timeout_s)
    comm = local_group(1, timeout_s=meeting.timeout_s)[0]
    comm.why = "local: a group of one needs no others"
    return comm


REGISTRY = Registry()
"""The one place where back-ends are found by name; other packages add to it as they are used."""

for _backend in (ShmBackend(), ZmqBackend(), NcclBackend()):
    REGISTRY.register(_backend.name, _backend)


def register_backend(name: str, backend: Backend) -> None:
    """Give a back-end a name, so that ``connect(backend=name)`` finds it.

    Every rank must do so. Packages announce theirs by an entry point in the group
    ``synk_comm.backends`` instead; see ``Backend``.

    Raises:
        ValueError: another back-end has this name.
    """
    REGISTRY.register(name, backend)
