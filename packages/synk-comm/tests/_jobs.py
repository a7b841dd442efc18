"""Jobs of MPI's launcher: ranks on two hosts, as MPI believes, all of which are on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

import pytest

from synk_testing import Program

LIMIT_S = 120.0
_NODE = 'SYNKHRONOS_NODE=$PMI_HOSTNAME exec "$@"'
"""Runs a rank so that this package, too, believes in the hosts."""


def launcher():
    """Return the mpiexec of this environment; skip the test if it has no MPI."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed; pip install mpi4py mpich")
    found = shutil.which("mpiexec", path=os.path.dirname(sys.executable))
    if found is None:
        pytest.skip("this environment has no mpiexec; pip install mpich")
    return found


def job(source, *arguments, size, on_a_host=1, options=(), environment=None, **how):
    """Return a program that MPI's launcher runs on ``size`` ranks of the hosts hosta and hostb.

    Args:
        on_a_host: how many ranks are on each, before the next one gets some.
        options: of mpiexec.
    """
    hosts = ("-launcher", "fork", "-hosts", "hosta,hostb", "-ppn", on_a_host, "-n", size)
    prefix = (launcher(), *options, *map(str, hosts), "sh", "-c", _NODE, "sh")
    quiet = {"UCX_LOG_LEVEL": "error", **(environment or {})}
    limits = {"limit_s": LIMIT_S, **how}
    return Program(source, *arguments, prefix=prefix, environment=quiet, **limits)
