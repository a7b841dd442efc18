"""MPI that Theano's ops of messages use: initialized when one of them runs, not by the import."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from . import stand_ins


class _LaterWorld:
    """In place of ``MPI.COMM_WORLD`` until one of its methods is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("mpi4py.MPI").COMM_WORLD, name)


class _LaterMpi:
    """In place of ``mpi4py.MPI``, whose import initializes MPI.

    Without a launcher that starts threads and takes a tenth of a second in each process; with one
    of another MPI it ends the process.
    """

    COMM_WORLD = _LaterWorld()

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("mpi4py.MPI"), name)


def insert_mpi4py() -> str:
    """Have ``from mpi4py import MPI`` initialize nothing."""
    if importlib.util.find_spec("mpi4py") is None:
        return "not needed"
    later = _LaterMpi()
    return stand_ins.insert("mpi4py", stand_ins.stand_in("mpi4py", {"MPI": later}.__getitem__))


def remove_mpi4py() -> str:
    """Undo `insert_mpi4py`."""
    return stand_ins.remove("mpi4py")
