"""Count the cores that this process may use: in batch jobs and containers, fewer than exist."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Iterator

_ROOT = Path("/")


def available_cores(root: Path = _ROOT) -> int:
    """Return the number of cores that this process may use, rounded up.

    Affinity limits them (taskset, batch systems), and the quotas of control groups (``docker run
    --cpus``, Kubernetes limits).

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    return min(len(os.sched_getaffinity(0)), core_quota(root))


def core_quota(root: Path = _ROOT) -> int:
    """Return the number of cores, rounded up, that control groups allow; `sys.maxsize` if they set
    no limit."""
    return min((math.ceil(quota) for quota in _quotas(root)), default=sys.maxsize)


def threads_per_rank(size: int) -> int:
    """Return the threads for each of `size` ranks with which they use each core once."""
    return max(1, available_cores() // size)


def _quotas(root: Path) -> Iterator[float]:
    """The quotas, in cores, of this process's control groups and those around them.

    See the kernel's Documentation/admin-guide/cgroup-v2.rst ("cpu.max"), and
    Documentation/scheduler/sched-bwc.rst for version 1.
    """
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "", "/")
        if not controllers:
            for folder in _upwards(groups, path):
                yield from _quota(folder / "cpu.max")
        elif "cpu" in controllers.split(","):
            for folder in _upwards(groups / "cpu", path):
                yield from _quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")


def _upwards(top: Path, path: str) -> Iterator[Path]:
    """The folder of a group, and of those around it; inside of a container the top is its own."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for length in range(len(parts), -1, -1):
        yield top.joinpath(*parts[:length])


def _quota(*files: Path) -> Iterator[float]:
    """Quota by period, the numbers in these files; nothing if there is no limit ("max", or -1)."""
    try:
        quota, period = (int(word) for file in files for word in file.read_text("ascii").split())
    except (OSError, ValueError):
        return
    if quota > 0 and period > 0:
        yield quota / period
