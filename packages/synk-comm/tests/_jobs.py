"""Jobs of MPI's launcher: ranks on two hosts, as MPI believes, all of which are on this machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from synk_testing import Program

FOLDER = Path(__file__).parent
LIMIT_S = 240.0
_NODE = 'SYNKHRONOS_NODE=$PMI_HOSTNAME exec "$@"'
"""Runs a rank so that this package, too, believes in the hosts."""
_OUTLIVED = 'trap "" USR1; SYNKHRONOS_NODE=$PMI_HOSTNAME "$@"'
"""The same, as a child: hydra, for which the shell is the rank, sees none that is killed."""


_SPEC = importlib.util.find_spec("mpi4py")
_PLACE = Path(_SPEC.origin).parents[4] if _SPEC else Path()
# The interpreter may be of an environment that only leads to that of mpi4py.
SETTINGS = {"UCX_LOG_LEVEL": "error", "LD_LIBRARY_PATH": str(_PLACE / "lib")}


def launcher():
    """Return the mpiexec that is installed beside mpi4py; skip the test if there is no MPI."""
    if _SPEC is None:
        pytest.skip("mpi4py is not installed; pip install mpi4py mpich")
    found = _PLACE / "bin/mpiexec"
    if not found.exists():
        pytest.skip("there is no mpiexec beside mpi4py; pip install mpich")
    return str(found)


def job(source, *arguments, size, on_a_host=1, options=(), environment=None, outlives=False, **how):
    """Return a program that MPI's launcher runs on ``size`` ranks of the hosts hosta and hostb.

    Args:
        on_a_host: how many ranks are on each, before the next one gets some.
        options: of mpiexec.
        outlives: whether a shell stands between hydra and each rank: hydra ends all ranks of a
            host, without a word to the others, where one of them is killed.
    """
    hosts = ("-launcher", "fork", "-hosts", "hosta,hostb", "-ppn", on_a_host, "-n", size)
    shell = _OUTLIVED if outlives else _NODE
    prefix = (launcher(), *options, *map(str, hosts), "sh", "-c", shell, "sh")
    settings = {**SETTINGS, **(environment or {})}
    limits = {"limit_s": LIMIT_S, **how}
    return Program(source, *arguments, prefix=prefix, environment=settings, **limits)
