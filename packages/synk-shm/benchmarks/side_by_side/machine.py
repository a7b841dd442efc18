"""Where it was measured: what a reader needs to judge numbers, and nothing that names a host."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import sys
from pathlib import Path

from .contender import SHARED_MEMORY

_PACKAGES = ("synk-shm", "numpy", "posix_ipc", "SharedArray", "joblib")


def describe() -> dict[str, str]:
    """Machine, system and versions by name, in the order to show them."""
    return {
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": _cores(),
        "memory": _gigabytes(_meminfo("MemTotal")),
        "load before": _load(),
        "kernel": f"{platform.system()} {platform.release()}",
        SHARED_MEMORY: _file_system(),
        "huge pages": _huge_pages(),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        **versions(),
    }


def versions() -> dict[str, str]:
    """Of the packages that take part, as far as they are installed."""
    return {name: version for name in _PACKAGES if (version := _version(name))}


def memory_free() -> int:
    """Bytes that can still be used, for arrays in /dev/shm and for private ones alike."""
    try:
        status = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0
    free = status.f_frsize * status.f_bavail
    available = _meminfo("MemAvailable")
    return min(free, available) if available else free


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


def _file_system() -> str:
    """Type, options that matter, and size of what holds shared memory."""
    try:
        text = Path("/proc/mounts").read_text(encoding="utf-8")
        status = os.statvfs(SHARED_MEMORY)
    except OSError:
        return "none"
    kinds = [line.split() for line in text.splitlines() if line.split()[1] == SHARED_MEMORY]
    size = _gigabytes(status.f_frsize * status.f_blocks)
    if not kinds:
        return f"not mounted by itself, {size}"
    _device, _where, kind, options = kinds[-1][:4]
    huge = [option for option in options.split(",") if option.startswith("huge=")]
    return ", ".join([kind, size, *huge])


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
    if name == "synk-shm":  # may be on the path without being installed
        module = sys.modules.get("synk_shm")
        return str(getattr(module, "__version__", ""))
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.1f} GiB"
