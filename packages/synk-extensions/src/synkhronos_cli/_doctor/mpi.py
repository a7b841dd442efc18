"""mpi4py, its MPI, and the launchers: what programs on several hosts need, and no others."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec

from synkhronos_cli._probe import Answer, ask, output_of

from .items import GOOD, MISSING, WARNING, Item

LAUNCHED_TIMEOUT_S = 60.0
LIBRARY_TIMEOUT_S = 60.0
VERSION_TIMEOUT_S = 20.0

OPEN_MPI, MPICH = "Open MPI", "MPICH"
"""The families of MPI: a launcher of one starts no ranks of the other."""

_NETMOD = "MPIR_CVAR_CH4_NETMOD"
_INSTALL = "pip install 'synkhronos[mpi]'"
_LOAD = "load the MPI of this cluster (module load ...), or pip install mpich"
_MARKS = {
    OPEN_MPI: ("Open MPI", "OpenRTE", "PRRTE", "prterun"),
    MPICH: ("MPICH", "HYDRA", "Intel", "MVAPICH", "PALS", "CRAY"),
}

_LAUNCHED = """
from synk_core import mpi
launch = mpi.launched()
answer(**(launch._asdict() if launch else {}))
"""
_LIBRARY = """
from synk_core import mpi
answer(**mpi.library())
"""


def examine_mpi() -> list[Item]:
    """Return the items about several hosts; a single one where nothing is there for them."""
    launch = ask(_LAUNCHED, LAUNCHED_TIMEOUT_S)
    wanted = bool(launch.get("size")) or os.environ.get("SYNKHRONOS_BACKEND") == "mpi"
    if find_spec("mpi4py") is None:
        found = "not installed; only programs on several hosts need it"
        items = [Item("mpi4py", MISSING if wanted else GOOD, found, _INSTALL)]
        return [*items, _launcher(launch)] if wanted else items
    library = ask(_LIBRARY, LIBRARY_TIMEOUT_S)
    items = [_mpi4py(library, wanted), _launcher(launch)]
    if library.problem:
        return items
    name = str(library.get("name"))
    srun = shutil.which("srun")
    mpiexec = shutil.which("mpiexec")
    if mpiexec or not srun:
        items.append(_mpiexec(mpiexec, name))
    if srun:
        items.append(_srun(srun, name, str(library.get("file"))))
    return items


def _mpi4py(library: Answer, wanted: bool) -> Item:
    if library.problem:
        found = f"cannot be used: {library.problem}"
        return Item("mpi4py", MISSING if wanted else WARNING, found, _LOAD)
    version, name, file = (library.get(key) for key in ("mpi4py", "name", "file"))
    return Item("mpi4py", GOOD, f"{version}, with {name}, {file}")


def _launcher(launch: Answer) -> Item:
    if launch.problem:
        return Item("launcher", WARNING, f"could not be examined: {launch.problem}")
    name, size, rank = (launch.get(key) for key in ("name", "size", "rank"))
    if not size:
        return Item("launcher", GOOD, "none has started this process")
    return Item("launcher", GOOD, f"{name} has started {size} processes; this is rank {rank}")


def _mpiexec(path: str | None, library: str) -> Item:
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    own = family(library)
    cure = f"start with the mpiexec of {library}"
    if os.access(beside, os.X_OK) and family_of(beside)[0] == own:
        cure = f"export PATH={os.path.dirname(beside)}:$PATH"
    if path is None:
        return Item("mpiexec", WARNING, "none on PATH", cure)
    found, version = family_of(path)
    if not found:
        return Item("mpiexec", WARNING, f"{path}: {version}", cure)
    if own and found != own:
        fit = f"{path} is of {found}, but mpi4py uses {library}: its ranks would not meet"
        return Item("mpiexec", WARNING, fit, cure)
    return Item("mpiexec", GOOD, f"{path}, of {found} ({version})")


def _srun(path: str, library: str, file: str) -> Item:
    text, problem = output_of([path, "--mpi=list"], VERSION_TIMEOUT_S)
    if problem:
        return Item("srun", WARNING, f"{path} --mpi=list: {problem}")
    words = [word.strip(",:") for word in text.split()]
    known = {word for word in words if word in ("none", "pmi2", "cray_shasta") or "pmix" in word}
    offered = f"{path}, --mpi={', '.join(sorted(known)) or 'nothing'}"
    suits = {word for word in known - {"none"} if "pmix" in word or family(library) != OPEN_MPI}
    if family(library) == MPICH and file.startswith(sys.prefix) and _NETMOD not in os.environ:
        # Its addresses by UCX may be longer than a line that Slurm reads: ranks hang.
        found = f"{offered}; Slurm may not read the addresses of pip's MPICH"
        return Item("srun", WARNING, found, f"export {_NETMOD}=ofi")
    if suits:
        return Item("srun", GOOD, offered)
    return Item("srun", WARNING, f"{offered}: nothing for {library}", "start with mpiexec in a job")


def family(text: str) -> str:
    """Return which MPI is meant: OPEN_MPI, MPICH for all that take its programs, or ""."""
    return next((name for name, marks in _MARKS.items() if any(m in text for m in marks)), "")


def family_of(mpiexec: str) -> tuple[str, str]:
    """Return the family of an mpiexec, and the version that it prints, or why there is none."""
    text, problem = output_of([mpiexec, "--version"], VERSION_TIMEOUT_S)
    if problem:
        return "", f"--version: {problem}"
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    numbered = [line for line in lines if any(letter.isdigit() for letter in line)]
    return family(text), (numbered or lines or ["prints nothing"])[0]
