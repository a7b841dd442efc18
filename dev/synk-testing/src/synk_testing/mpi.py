"""Jobs of MPI's launcher: ranks on several hosts, as MPI believes, all on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set

from .leaks import shared_memory
from .processes import descriptors, everyone
from .program import Program, Source

HOSTS = ("hosta", "hostb", "hostc", "hostd")

LIMIT_S = 240.0
"""Seconds for a job: more ranks than cores wait for each other, on a machine that may be busy."""

_SPEC = importlib.util.find_spec("mpi4py")
_PLACE = Path(_SPEC.origin).parents[4] if _SPEC and _SPEC.origin else Path()

SETTINGS: Dict[str, Optional[str]] = {
    "UCX_LOG_LEVEL": "error",
    # The interpreter may be of an environment that only leads to that of mpi4py.
    "LD_LIBRARY_PATH": str(_PLACE / "lib"),
}
"""Environment of a process that uses the MPI that is installed beside mpi4py."""

_NODE = 'SYNKHRONOS_NODE=$PMI_HOSTNAME exec "$@"'
"""Runs a rank so that the packages, too, believe in the hosts."""

_SEGMENTS = "mpich_"

_OUTLIVED = 'trap "" USR1; SYNKHRONOS_NODE=$PMI_HOSTNAME "$@"'
"""The same, as a child: hydra, for which the shell is the rank, sees none that is killed."""


def why_no_mpi() -> str:
    """Return why this environment has no MPI to test with; "" if it has."""
    if _SPEC is None:
        return "mpi4py is not installed; pip install mpi4py mpich"
    if not (_PLACE / "bin/mpiexec.hydra").exists():
        return "there is no mpiexec of MPICH beside mpi4py; pip install mpich"
    return ""


def job_command(
    size: int, on_a_host: int, options: Sequence[str] = (), outlives: bool = False
) -> List[str]:
    """Return the command that starts so many ranks, `on_a_host` each, up to their program.

    With `outlives` a shell stands between hydra and each rank: hydra ends all ranks of a host,
    without a word to the others, if one of them is killed.
    """
    hosts = ["-launcher", "fork", "-hosts", ",".join(HOSTS), "-ppn", str(on_a_host)]
    shell = ["sh", "-c", _OUTLIVED if outlives else _NODE, "sh"]
    return [str(_PLACE / "bin/mpiexec.hydra"), *options, *hosts, "-n", str(size), *shell]


def mpi_job(
    source: Source,
    *arguments: object,
    size: int,
    on_a_host: int = 1,
    options: Sequence[str] = (),
    outlives: bool = False,
    environment: Optional[Mapping[str, Optional[str]]] = None,
    **how: Any,
) -> Program:
    """Return a program on several ranks, if `why_no_mpi` found nothing; see `Program`."""
    prefix = job_command(size, on_a_host, options, outlives)
    settings = {**SETTINGS, **(environment or {})}
    limits = {"limit_s": LIMIT_S, **how}
    return _Job(source, *arguments, prefix=prefix, environment=settings, **limits)


class _Job(Program):
    """A program of MPICH, which leaves up to 2 MB in shared memory for each rank that is killed."""

    def __init__(self, *arguments: Any, **how: Any) -> None:
        self._before = set(shared_memory(_SEGMENTS))
        super().__init__(*arguments, **how)

    def close(self) -> None:
        """Kill what still runs, and remove what MPICH has left; see `Program.close`."""
        super().close()
        left = set(shared_memory(_SEGMENTS)) - self._before
        for name in left - _in_use(left):
            path = Path("/dev/shm", name)
            with contextlib.suppress(OSError):  # it is gone already
                if path.stat().st_uid == os.getuid():
                    path.unlink()


def _in_use(names: Set[str]) -> Set[str]:
    """Return those segments that a living process has open or mapped: another program's."""
    found = set()
    for process in everyone() if names else ():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            # In this order: a segment is open from its first moment until it is mapped.
            text = "\n".join(descriptors(process.pid).values())
            text += Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace")
            found |= {name for name in names if f"/dev/shm/{name}" in text}
    return found
