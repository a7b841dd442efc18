"""Shared memory, limits and cores."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import NamedTuple

from synkhronos_cli._terminal import in_units

from .items import GOOD, MISSING, WARNING, Item

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - nothing is written there
_LEAST_SHARED = 1 << 30


class _Limit(NamedTuple):
    name: str
    kind: int
    least: int
    cure: str
    of: str = ""


_NCCL_LOCKS = "NCCL may need more: ulimit -l unlimited, or docker run --ulimit memlock=-1"
_OF_USER = " processes and threads of this user"
_LIMITS = (
    _Limit("open files", resource.RLIMIT_NOFILE, 1024, "ulimit -n 4096"),
    _Limit("locked memory", resource.RLIMIT_MEMLOCK, 64 << 20, _NCCL_LOCKS),
    _Limit("processes", resource.RLIMIT_NPROC, 1024, "ulimit -u 4096", _OF_USER),
)


def examine_machine(has_gpu: bool) -> list[Item]:
    """Return the items about the memory, limits and cores that this process may use."""
    limits = [_limited(limit, has_gpu) for limit in _LIMITS]
    return [_shared_memory(), *limits, _core_files(), _cores()]


def _shared_memory() -> Item:
    name = "shared memory"
    try:
        state = os.statvfs(_SHARED_MEMORY)
    except OSError as error:
        cure = f"mkdir -p {_SHARED_MEMORY} && mount -t tmpfs -o size=8g tmpfs {_SHARED_MEMORY}"
        return Item(name, MISSING, str(error), cure)
    size, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    found = f"{_SHARED_MEMORY}: {in_units(free)} free of {in_units(size)}"
    if not os.access(_SHARED_MEMORY, os.W_OK | os.X_OK):
        cure = f"chmod 1777 {_SHARED_MEMORY} (as root)"
        return Item(name, MISSING, f"{found}, and not writable", cure)
    if free < _LEAST_SHARED:
        found += ", which is little for NCCL; data that do not fit are kept elsewhere"
        if _in_container():
            cure = "docker run --shm-size=8g (the default is 64 MB)"
        else:
            cure = f"mount -o remount,size=8g {_SHARED_MEMORY} (as root)"
        return Item(name, WARNING, found, cure)
    return Item(name, GOOD, found)


def _in_container() -> bool:
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return True
    try:
        groups = Path("/proc/1/cgroup").read_text(errors="replace")
    except OSError:
        return False
    return any(word in groups for word in ("docker", "kubepods", "containerd", "libpod"))


def _limit(kind: int) -> int:
    soft, _hard = resource.getrlimit(kind)
    return soft


def _limited(limit: _Limit, has_gpu: bool) -> Item:
    number, is_memory = _limit(limit.kind), limit.kind == resource.RLIMIT_MEMLOCK
    if number == resource.RLIM_INFINITY:
        return Item(limit.name, GOOD, "no limit")
    found = f"at most {in_units(number) if is_memory else number}{limit.of}"
    if number < limit.least and (has_gpu or not is_memory):
        return Item(limit.name, WARNING, found, limit.cure)
    return Item(limit.name, GOOD, found)


def _core_files() -> Item:
    limit = _limit(resource.RLIMIT_CORE)
    if limit == 0:
        return Item("core files", GOOD, "none: a crash leaves none (ulimit -c unlimited for some)")
    size = "of any size" if limit == resource.RLIM_INFINITY else f"of at most {in_units(limit)}"
    return Item("core files", GOOD, f"{size}: a crash of a worker leaves one")


def _cores() -> Item:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    found = f"{usable} of {present}"
    quota = cpu_quota(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    if quota is None or quota >= usable:
        return Item("cores", GOOD, found)
    found += f", and the time of {quota:.3g} of them (limit of this container or service)"
    if quota >= 2:
        cure = f"export SYNKHRONOS_N_PARALLEL={int(quota)}"
        return Item("cores", WARNING, f"{found}: more processes would only wait", cure)
    return Item("cores", WARNING, found, "docker run --cpus=4 (or more: each process needs a core)")


def cpu_quota(mount: Path, groups: Path) -> float | None:
    """Return the number of cores whose time this process may use; None without a limit.

    Args:
        mount: Mount point of the control groups, of version 1 or 2.
        groups: The file that lists the groups of this process.
    """
    quotas = [_quota_of_v1(mount / "cpu")]
    try:
        lines = groups.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        number, _, path = line.partition(":")
        controllers, _, path = path.partition(":")
        inner = path.strip("/")
        # The limits of all enclosing groups also apply.
        for depth in range(len(inner.split("/")) + 1 if inner else 1):
            parts = inner.split("/")[:depth]
            if number == "0":
                quotas.append(_quota_of_v2(mount.joinpath(*parts)))
            elif "cpu" in controllers.split(","):
                quotas.append(_quota_of_v1(mount.joinpath("cpu", *parts)))
    quotas.append(_quota_of_v2(mount))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_of_v2(group: Path) -> float | None:
    try:
        allowed, period = (group / "cpu.max").read_text().split()
        return None if allowed == "max" else int(allowed) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_of_v1(group: Path) -> float | None:
    try:
        allowed = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
        return allowed / period if allowed > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
