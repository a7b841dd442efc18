"""``connect``: enter the group that this process was started for."""

from __future__ import annotations

import os

from synk_comm._backends.local import local_group
from synk_comm._core.fabric import Watch
from synk_comm._core.guard import DEFAULT_TIMEOUT_S
from synk_comm.abc import Communicator
from synk_comm.exceptions import JoinError

from .groups import MPI, Ticket, create_group, enter

_HOW_TO_START = (
    "on one machine start ranks with `python -m synk_comm.run -n 4 script.py`, or give each a "
    "ticket of create_group(); on several start them with mpiexec or srun, and call "
    "connect(backend='mpi')"
)
_OF_RANKS = ("SYNK_COMM_RANK", "SYNK_COMM_SIZE")


def connect(
    *,
    backend: str = "auto",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    watch: Watch | None = None,
) -> Communicator:
    """Enter the group that this process was started for; return when all ranks have.

    The environment names it, by ``SYNK_COMM_TICKET`` (then this is ``join``). If there is nothing,
    the group is this process alone, so that a script for many ranks also runs by itself;
    ``comm.why`` says so.

    With ``backend="mpi"`` the ranks are those that ``mpiexec`` or ``srun`` has started, on any
    number of hosts: this is ``mpi`` then.

    Args:
        backend: ``"auto"``, what the group was made for, and never MPI (``comm.why`` says what and
            why); ``"nccl"``, to put that around it; or ``"mpi"``.
        timeout_s: bound of this wait, and default bound of every collective.
        watch: called at least every 20 ms while this rank waits, here and in every collective;
            what it raises ends the wait, and the group.

    Raises:
        ValueError: an unknown back-end.
        JoinError: there is no ticket, though other variables SYNK_COMM_* say that this is a rank;
            the group was made for another back-end, the back-end cannot work here, or as for
            ``join``.
        CommTimeout: some ranks did not come.
        PeerLost: a rank ended while the ranks were joining.
    """
    if "SYNK_COMM_TICKET" in os.environ:
        ticket = Ticket.parse(os.environ["SYNK_COMM_TICKET"])
        return enter(ticket, timeout_s, watch, backend)
    if backend == MPI:
        # Imported here: this loads mpi4py and starts MPI.
        from synk_comm._backends.mpi.start import mpi

        return mpi(timeout_s=timeout_s, watch=watch)
    for name in _OF_RANKS:
        if name in os.environ:
            raise JoinError(f"{name} is set, but not SYNK_COMM_TICKET; {_HOW_TO_START}")
    if backend == "auto":
        (comm,) = local_group(timeout_s=timeout_s)
        comm.why = "local: no variable SYNK_COMM_* is set, so this process is a group of one"
        return comm
    group = create_group(1, backend)
    try:
        return enter(Ticket.parse(group.ticket(0)), timeout_s, watch, backend)
    finally:
        group.discard()
