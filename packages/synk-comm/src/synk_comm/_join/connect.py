"""``connect``: enter the group that the arguments, or the environment, describe."""

from __future__ import annotations

import operator
import os
from typing import NamedTuple

from synk_comm._core.fabric import Watch
from synk_comm._core.guard import DEFAULT_TIMEOUT_S, deadline_after
from synk_comm._meeting.host import this_host
from synk_comm._meeting.link import WaitLimit
from synk_comm._meeting.meeting import alone
from synk_comm._system.auth import token_key
from synk_comm.abc import Communicator
from synk_comm.exceptions import JoinError

from .choice import REGISTRY, choose
from .groups import Ticket, enter
from .registry import AnyBackend
from .rendezvous import meet_at

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

    Without arguments the environment names it: ``SYNK_COMM_TICKET`` (then this is ``join``), or
    ``SYNK_COMM_RANK``, ``SYNK_COMM_SIZE``, ``SYNK_COMM_ADDRESS`` and ``SYNK_COMM_TOKEN``, each of
    which stands in for an argument that is not given. If there is nothing at all, the group is
    this process alone, so that a script for many ranks also runs by itself; ``comm.why`` says so.

    Args:
        rank, size: number of this process, and of all.
        address: the same on all ranks: ``ipc:///folder``, a folder of this user with mode 0700
            (rank 0 makes it if it is missing, and removes it again when all have joined), or
            ``tcp://host:port``, where rank 0 listens: ``127.0.0.1``, or the address of one
            interface of its host if ranks run on several.
        token: the same secret on all ranks, at least 16 characters, not to be guessed; pass it
            by environment or file, never on a command connection.
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
        ticket = Ticket.parse(os.environ["SYNK_COMM_TICKET"])
        return enter(ticket, timeout_s, watch, backend)
    who = _Who.of(rank, size, address, token)
    limit = WaitLimit(who.rank, deadline_after(timeout_s), watch)
    if backend != "auto":
        REGISTRY.find(backend)
    if who.size == 1:
        with alone(limit, timeout_s, this_host) as meeting:
            comm = choose(meeting, backend)
        if who.by_itself and backend == "auto":
            comm.why = "local: no variable SYNK_COMM_* is set, so this process is a group of one"
        return comm
    return meet_at(who.address, who.rank, who.size, who.key, backend, timeout_s, limit)


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
