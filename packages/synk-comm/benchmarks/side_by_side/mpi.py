"""Which MPI there is, how its ranks are started, and the files that it leaves."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from pathlib import Path

from synk_benchmarks.process import Failed, ask


def mpiexec() -> str:
    """Return the program that starts MPI's ranks: preferably the one installed beside Python."""
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec") or ""


@functools.cache
def mpi_version() -> str:
    """Return what the library behind mpi4py calls itself: "MPICH 5.0.2"; empty if there is none."""
    program = (
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "print(MPI.Get_library_version())"
    )
    try:
        said = ask([sys.executable, "-c", program], 60, os.environ)
    except (OSError, Failed):
        return ""
    return " ".join(said.partition("\n")[0].replace("Version:", "").split())


def mpi_files() -> list[str]:
    """Return the shared memory that MPICH has made for this process and its peers, by path."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in text.splitlines() if "/mpich_shm_" in line}
    return sorted(path for path in paths if not path.endswith(" (deleted)"))
