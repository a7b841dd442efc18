"""Run a program on ranks that an MPI launcher has started: what `synkhronos run` does.

``mpiexec -n 8 python train.py`` does without: `fork()` finds the launcher by itself. There all
ranks run the program up to `fork()`; here rank 0 alone runs it, and the others wait.
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import threading
from typing import Any, Dict, Optional

from ._text import shown
from ._wire import launcher
from ._wire.launcher import Launch
from ._wire.world import World
from ._workers import mpi_watchdog
from .exceptions import InputValueError, StartError

__all__ = ["join", "launched", "library", "serve"]

BACKENDS = ("shm", "zmq", "mpi")


def launched() -> Optional[Launch]:
    """Return the launcher that has started this process and others, or None; initialize nothing."""
    return launcher.detected()


def library() -> Dict[str, str]:
    """Return the MPI that mpi4py uses: its name and version, its file, and mpi4py's version.

    It initializes MPI for the rest of this process, as if no launcher had started it. So call it in
    a process that does nothing else.

    Raises:
        ImportError, RuntimeError: mpi4py is not installed, or finds no MPI.
    """
    for name in filter(launcher.belongs_to_launcher, tuple(os.environ)):
        del os.environ[name]
    import mpi4py
    from mpi4py import MPI

    named = MPI.Get_library_version().partition("\n")[0].partition(",")[0].strip("\0 ")
    with open("/proc/self/maps") as file:
        files = [line.split(maxsplit=5)[-1].strip() for line in file if "/libmpi" in line]
    return {
        "name": " ".join(word for word in named.split() if word != "Version:"),
        "file": files[0] if files else "",
        "mpi4py": mpi4py.__version__,
    }


@functools.cache
def join() -> Optional[World]:
    """Join the other ranks of this process's launcher; return None if there are none.

    The first call is a collective of all its ranks; later calls return the same world. At the end
    of its program rank 0 ends the others.

    Raises:
        StartError: MPI cannot be used, or does not fit the launcher.
    """
    launch = launcher.detected()
    if launch is None:
        return None
    fd = "" if "Open MPI" in launch.name else os.environ.get(launcher.CONNECTION, "")
    leaving = mpi_watchdog.start(int(fd), launch.rank) if fd.isdigit() else None
    handler = _outlive_others()
    world = World(launch)
    if leaving is not None and not (world.rank and "HYDI_CONTROL_FD" in os.environ):
        # MPICH's launcher closes the connection of a worker that leaves; others may not.
        world.leaving = leaving
    # MPI may have replaced it.
    _outlive_others(handler)
    atexit.register(world.end)
    return world


def _outlive_others(handler: Any = None) -> Any:
    """Ignore the signal by which MPICH's launcher reports the end of a rank, unless the program
    handles it: it would end this process, which is to report that itself.

    Install `handler`, or the program's own if None; return it.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    known = handler or signal.getsignal(signal.SIGUSR1)
    chosen = signal.SIG_IGN if known in (None, signal.SIG_DFL) else known
    signal.signal(signal.SIGUSR1, chosen)
    return chosen


def serve() -> None:
    """On a rank other than 0, perform the orders of rank 0; return when rank 0 has ended."""
    from ._workers.mpi_worker import serve_world

    world = join()
    if world is not None and world.rank:
        serve_world(world)


def world_for(backend: Optional[str]) -> Optional[World]:
    """Return the ranks to use for a back-end; None for processes that the master starts.

    Raises:
        InputValueError: there is no such back-end.
        StartError: it needs a launcher, or the launcher's ranks cannot be used.
    """
    if backend is not None and backend not in BACKENDS:
        expected = ", ".join(map(repr, BACKENDS))
        raise InputValueError(f"backend: got {shown(backend)}, expected one of {expected}, or None")
    world = join() if backend in (None, "mpi") else None
    if backend == "mpi" and world is None:
        raise StartError(
            "backend='mpi' needs an MPI launcher, which has started more than one process: "
            "mpiexec -n 4 python train.py, or srun -n 4 python train.py"
        )
    if world is not None and world.in_use:
        raise StartError(
            "all ranks of the launcher are in use by another runtime; close() it first, or use "
            "backend='shm' for processes of this host"
        )
    if world is not None and world.lost:
        raise StartError(
            f"{world.lost}, and its launcher cannot replace it; start the program again"
        )
    return world
