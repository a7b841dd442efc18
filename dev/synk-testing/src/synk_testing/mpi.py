"""Jobs of MPI's launcher: ranks on several hosts, as MPI believes, all on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from typing import Any, List, Mapping, Optional, Sequence

from .program import Program, Source

HOSTS = ("hosta", "hostb", "hostc", "hostd")

_NODE = 'SYNKHRONOS_NODE=$PMI_HOSTNAME exec "$@"'
"""Runs a rank so that the packages, too, believe in the hosts."""


def why_no_mpi() -> str:
    """Return why this environment has no MPI to test with; "" if it has."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed; pip install mpi4py mpich"
    if _mpiexec() is None:
        return "this environment has no mpiexec of MPICH; pip install mpich"
    return ""


def _mpiexec() -> Optional[str]:
    return shutil.which("mpiexec.hydra", path=os.path.dirname(sys.executable))


def job_command(size: int, on_a_host: int, options: Sequence[str] = ()) -> List[str]:
    """Return the command that starts ranks, up to their program.

    Args:
        size: number of ranks.
        on_a_host: ranks on each host, before the next one gets some.
        options: of mpiexec.
    """
    hosts = ["-launcher", "fork", "-hosts", ",".join(HOSTS), "-ppn", str(on_a_host)]
    return [str(_mpiexec()), *options, *hosts, "-n", str(size), "sh", "-c", _NODE, "sh"]


def mpi_job(
    source: Source,
    *arguments: object,
    size: int,
    on_a_host: int = 1,
    options: Sequence[str] = (),
    environment: Optional[Mapping[str, Optional[str]]] = None,
    **how: Any,
) -> Program:
    """Return a program that runs on several ranks; see `Program` and `job_command`.

    The caller has asked `why_no_mpi`.
    """
    quiet = {"UCX_LOG_LEVEL": "error", **(environment or {})}
    prefix = job_command(size, on_a_host, options)
    return Program(source, *arguments, prefix=prefix, environment=quiet, **how)
