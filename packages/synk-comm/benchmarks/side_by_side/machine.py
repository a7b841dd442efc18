"""Where it was measured: what a reader needs to judge numbers, and nothing that names a host."""

from __future__ import annotations

import datetime as dt
import functools
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

_PACKAGES = ("synk-comm", "numpy", "pyzmq", "mpi4py", "torch")


def describe() -> dict[str, str]:
    """Machine, system and versions by name, in the order to show them."""
    return {
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": _cores(),
        "memory": _gigabytes(_meminfo("MemTotal")),
        "load before": _load(),
        "kernel": f"{platform.system()} {platform.release()}",
        "huge pages": _huge_pages(),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        **versions(),
    }


def versions() -> dict[str, str]:
    """Of the packages that take part, as far as they are installed."""
    found = {name: version for name in _PACKAGES if (version := _version(name))}
    if "mpi4py" in found and mpi_version():
        found["MPI"] = mpi_version()
    return found


def memory_free() -> int:
    """Bytes that can still be used; 0 if the system does not say."""
    return _meminfo("MemAvailable")


def mpiexec() -> str:
    """The program that starts MPI's ranks: the one that was installed beside this Python."""
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec") or ""


@functools.cache
def mpi_version() -> str:
    """What the library behind mpi4py calls itself: "MPICH 5.0.2"; empty if there is none."""
    program = (
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "print(MPI.Get_library_version())"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    first = done.stdout.partition("\n")[0]
    return " ".join(first.replace("Version:", "").split())


def mpi_files() -> list[str]:
    """The shared memory that MPICH has made for this process and its peers, by path."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in text.splitlines() if "/mpich_shm_" in line}
    return sorted(path for path in paths if not path.endswith(" (deleted)"))


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "unknown"
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return " ".join(value.split())
    return platform.machine()


def _cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{usable} of {os.cpu_count()}" if usable != os.cpu_count() else str(usable)


def _load() -> str:
    """How busy the machine was with other things: near 0 is a result to keep."""
    try:
        return f"{os.getloadavg()[0]:.2f}"
    except OSError:
        return "unknown"


def _meminfo(field: str) -> int:
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return 0
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0


def _huge_pages() -> str:
    """Which of the choices the kernel has taken, for private and for shared memory."""
    chosen = []
    for name, label in (("enabled", "private"), ("shmem_enabled", "shared")):
        try:
            path = Path("/sys/kernel/mm/transparent_hugepage") / name
            text = path.read_text(encoding="utf-8")
        except OSError:
            continue
        if "[" in text:
            chosen.append(f"{label} {text.split('[')[1].split(']')[0]}")
    return ", ".join(chosen) or "unknown"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.1f} GiB"
