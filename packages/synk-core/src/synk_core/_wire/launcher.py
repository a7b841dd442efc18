"""Find the MPI launcher that has started this process, from the environment alone: importing mpi4py
initializes MPI, which a program without launcher must not do."""

from __future__ import annotations

import os
from typing import Mapping, NamedTuple, Optional

_LAUNCHERS = (
    ("mpiexec of Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("mpiexec of MVAPICH", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("mpiexec", "PMI_SIZE", "PMI_RANK"),
    ("mpiexec of PALS", "PALS_SIZE", "PALS_RANKID"),
    # Last: an mpiexec within a job of Slurm has srun start its own helpers.
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)

CONNECTION = "PMI_FD"
"""Number of the descriptor that connects a process to MPICH's launcher."""

_PREFIXES = ("PMI_", "PMIX_", "OMPI_", "MPI_LOCAL", "HYDI_", "MV2_COMM_", "PALS_", "PRTE_")
"""Beginnings of the names of variables by which MPI finds its launcher."""


class Launch(NamedTuple):
    """A launcher that has started more than one process; `name` as in "mpiexec of Open MPI"."""

    name: str
    size: int
    rank: int


def detected(environment: Mapping[str, str] = os.environ) -> Optional[Launch]:
    """Return the launcher; None if there is none, or if it has started a single process."""
    descriptor = environment.get(CONNECTION, "")
    try:
        if descriptor.isdigit():
            os.fstat(int(descriptor))
    except OSError:  # a child of a launcher's process inherits the name alone
        return None
    for name, size, rank in _LAUNCHERS:
        numbers = environment.get(size, ""), environment.get(rank, "")
        if all(text.isdigit() for text in numbers):
            launch = Launch(name, int(numbers[0]), int(numbers[1]))
            return launch if launch.size > 1 else None
    return None


def belongs_to_launcher(variable: str) -> bool:
    """Return whether a process that the launcher has not started must not inherit a variable."""
    return variable.startswith(_PREFIXES)
