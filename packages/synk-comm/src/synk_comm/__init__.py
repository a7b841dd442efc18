"""Collectives on NumPy arrays between the processes of one machine, without MPI.

A parent makes a group and starts its ranks; each rank joins with its ticket::

    group = synk_comm.create_group(2)                            # in the parent
    comm = synk_comm.join(ticket)                                # in each rank
    mean = comm.all_reduce(x, "avg")

``synk_comm.abc`` holds the contract, ``synk_comm.testing`` a test suite for it.
"""

from __future__ import annotations

# Ways into a group.
from ._groups import Group, create_group, join, local_group

# The noun, and how values become one.
from ._ops import ReduceOp
from ._rendezvous import connect

# What can go wrong.
from .abc import Communicator
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
)

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
    "ReduceOp",
    "connect",
    "create_group",
    "join",
    "local_group",
]
