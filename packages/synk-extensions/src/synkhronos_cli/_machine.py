"""Shared memory, limits and cores."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from ._items import GOOD, MISSING, WARNING, Item

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - looked at, not written to
_LEAST_SHARED = 1 << 30
_LEAST_FILES = 1024
_LEAST_LOCKED = 64 << 20
_UNITS = (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10))


def look_at_machine(has_gpu: bool) -> list[Item]:
    """Return what this process may use of the machine."""
    return [_shared_memory(), _open_files(), _locked_memory(has_gpu), _cores()]


def in_units(size: float) -> str:
    """Return a number of bytes as people write it."""
    for unit, bits in _UNITS:
        if size >= 1 << bits:
            return f"{size / (1 << bits):.3g} {unit}"
    return f"{size:.0f} bytes"


def _shared_memory() -> Item:
    name = "shared memory"
    try:
        state = os.statvfs(_SHARED_MEMORY)
    except OSError as error:
        cure = "mount a tmpfs there: mount -t tmpfs -o size=8g tmpfs /dev/shm"
        return Item(name, MISSING, str(error), cure, needed=True)
    size, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    found = f"{_SHARED_MEMORY}: {in_units(free)} free of {in_units(size)}"
    if free < _LEAST_SHARED:
        cure = "more room for data: docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm"
        return Item(name, WARNING, found, cure)
    return Item(name, GOOD, found)


def _limit(kind: int) -> int:
    soft, _hard = resource.getrlimit(kind)
    return soft


def _open_files() -> Item:
    limit = _limit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return Item("open files", GOOD, "no limit")
    few = limit < _LEAST_FILES
    cure = f"ulimit -n {4 * _LEAST_FILES}" if few else ""
    return Item("open files", WARNING if few else GOOD, f"at most {limit}", cure)


def _locked_memory(has_gpu: bool) -> Item:
    limit = _limit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return Item("locked memory", GOOD, "no limit")
    found = f"at most {in_units(limit)}"
    if has_gpu and limit < _LEAST_LOCKED:
        cure = "NCCL may need more: ulimit -l unlimited, or docker run --ulimit memlock=-1"
        return Item("locked memory", WARNING, found, cure)
    return Item("locked memory", GOOD, found)


def _cores() -> Item:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    found = f"{usable} of {present}"
    quota = _quota()
    if quota is not None and quota < usable:
        found += f", and the time of {quota:g} of them (a container's limit)"
    return Item("cores", GOOD, found)


def _quota() -> float | None:
    try:
        allowed, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if allowed == "max" else int(allowed) / int(period)
    except (OSError, ValueError):
        return None
