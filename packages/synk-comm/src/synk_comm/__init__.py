"""MPI-like collectives between Python processes, on NumPy and GPU arrays, with or without MPI.

A script that runs on every rank, started by ``python -m synk_comm.run -n 4 script.py``::

    with synk_comm.connect() as comm:
        mean = comm.all_reduce(x, "avg")

Or a function, from a program: ``synk_comm.launch(4, function, *args)``, which calls
``function(comm, *args)`` on every rank.

``synk_comm.abc`` holds the contract, ``synk_comm.testing`` a test suite for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._backends.local import local_group
from ._core.ops import ReduceOp
from ._join import Group, connect, create_group, join
from ._processes.launch import launch
from .abc import Communicator, Request
from .exceptions import (
    AbortedError,
    ClosedError,
    CommError,
    CommTimeout,
    JoinError,
    MismatchError,
    MisuseError,
    PeerDeclined,
    PeerLost,
    RankDied,
    RankFailed,
)

if TYPE_CHECKING:
    from ._backends.mpi.start import mpi
    from ._backends.nccl.communicator import nccl, why_no_nccl

# Imported when first used: they take time.
_LATER = {"mpi": "mpi.start", "nccl": "nccl.communicator", "why_no_nccl": "nccl.communicator"}
__version__ = "0.1.0"

__all__ = [
    "AbortedError",
    "ClosedError",
    "CommError",
    "CommTimeout",
    "Communicator",
    "Group",
    "JoinError",
    "MismatchError",
    "MisuseError",
    "PeerDeclined",
    "PeerLost",
    "RankDied",
    "RankFailed",
    "ReduceOp",
    "Request",
    "connect",
    "create_group",
    "join",
    "launch",
    "local_group",
    "mpi",
    "nccl",
    "why_no_nccl",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"{__name__}._backends.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "abc", "cuda", "exceptions"])
