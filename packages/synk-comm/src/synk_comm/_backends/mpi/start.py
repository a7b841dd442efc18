"""Ways into a group whose ranks MPI has started."""

from __future__ import annotations

import os
import time
from typing import Any

from synk_comm._collectives.communicator import meet
from synk_comm._core.fabric import SLICE_S, Watch
from synk_comm._core.guard import DEFAULT_TIMEOUT_S, deadline_after
from synk_comm.abc import Communicator
from synk_comm.exceptions import CommTimeout, JoinError

from .fabric import MpiFabric
from .messages import reported

_LAUNCHERS = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "MV2_COMM_WORLD_SIZE"]
"""Variables in which launchers put the number of the ranks that they have started."""
_INSTALL = (
    'install it with: pip install "synk-comm[mpi]", and an MPI library if this machine has none: '
    "pip install mpich"
)


def mpi(
    comm: Any = None, *, timeout_s: float = DEFAULT_TIMEOUT_S, watch: Watch | None = None
) -> Communicator:
    """Return a communicator for the ranks of an MPI communicator; each of them calls it.

    MPI has started these processes: by ``mpiexec``, ``srun`` or another launcher.

    Args:
        comm: an intracommunicator of mpi4py; None for all ranks that MPI has started. It is
            duplicated, so that messages of its own never meet those of this group.
        timeout_s: bound of this wait, and default bound of every collective.
        watch: called at least every 20 ms while this rank waits, here and in every collective;
            an exception of it ends the wait, and the group.

    Raises:
        JoinError: mpi4py is not installed or finds no MPI library, MPI was started for one thread
            only, or has not started as many ranks as the launcher says.
        CommTimeout: some ranks did not come.
        PeerLost: a rank ended while the ranks were joining.
    """
    deadline = deadline_after(timeout_s)
    module = _module()
    if comm is None:
        comm = module.COMM_WORLD
        _check_world(comm.Get_size())
    if module.Query_thread() < module.THREAD_SERIALIZED:
        raise JoinError(
            "MPI was started for one thread only, but abort and close come from any thread; "
            'before mpi4py.MPI is imported set mpi4py.rc.thread_level = "multiple", which is '
            "its default"
        )
    try:
        own = _duplicate(comm, deadline, watch)
    except module.Exception as exc:
        raise reported(module, comm, exc) from exc
    fabric = MpiFabric(module, own, watch)
    made = meet(fabric, deadline, timeout_s)
    version = str(module.Get_library_version()).partition("\n")[0].partition(",")[0]
    library = " ".join(word for word in version.split() if word != "Version:")
    made.why = f"mpi: {fabric.size} rank(s) on {fabric.nodes} machine(s), by {library}"
    return made


def _module() -> Any:
    """Import mpi4py's module, which starts MPI."""
    try:
        from mpi4py import MPI
    except ImportError as exc:
        raise JoinError(f"the backend 'mpi' needs mpi4py ({exc}); {_INSTALL}") from exc
    except RuntimeError as exc:  # no library of MPI
        raise JoinError(f"mpi4py cannot be used here: {exc}; {_INSTALL}") from exc
    if MPI.Is_finalized():
        raise JoinError("MPI has been finalized in this process, and cannot be started again")
    return MPI


def _check_world(size: int) -> None:
    """Raise if the launcher has started other ranks than those of this MPI."""
    for name in _LAUNCHERS:
        text = os.environ.get(name, "")
        if text.isdigit() and int(text) != size:
            raise JoinError(
                f"{name} is {text}, but MPI has started {size} rank(s): the launcher is of another "
                "MPI than mpi4py's library. Start with the mpiexec of that library (as pip install "
                "mpich puts it into the environment), under Slurm with srun --mpi=pmi2 or pmix "
                "(srun --mpi=list shows what there is)"
            )


def _duplicate(comm: Any, deadline: float, watch: Watch | None) -> Any:
    """Duplicate an MPI communicator, which waits for all ranks; not for ever, as Dup would."""
    made, request = comm.Idup()
    began = looked = time.monotonic()
    while not request.Test():
        now = time.monotonic()
        if now >= deadline:
            size, rank = comm.Get_size(), comm.Get_rank()
            seen = {r: "may not have joined yet" for r in range(size) if r != rank}
            raise CommTimeout(
                f"rank {rank} waited {now - began:.3g} s in join: not all of the {size} ranks have "
                "called connect(backend='mpi'), or mpi(comm); MPI does not report which",
                missing=seen,
            )
        if watch is not None and now - looked >= SLICE_S:
            looked = now
            watch()
        time.sleep(5e-5)
    return made
