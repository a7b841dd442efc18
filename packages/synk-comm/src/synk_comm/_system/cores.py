"""The cores that this process may use: in batch jobs and containers, fewer than exist."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
from pathlib import Path

_ROOT = Path("/")

_getcpu = getattr(ctypes.CDLL(None), "sched_getcpu", lambda: -1)


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
    no limit.

    See the kernel's Documentation/admin-guide/cgroup-v2.rst ("cpu.max"), and
    Documentation/scheduler/sched-bwc.rst for version 1.
    """
    least = sys.maxsize
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return least
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        top, files = root / "sys/fs/cgroup", ["cpu.max"]
        if controllers:
            top, files = top / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
            if "cpu" not in controllers.split(","):
                continue
        # Those around it count, too; inside of a container the top is its own.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for length in range(len(parts) + 1):
            folder = top.joinpath(*parts[:length])
            with contextlib.suppress(OSError, ValueError):  # no file; no limit is "max", or -1
                texts = [(folder / name).read_text("ascii") for name in files]
                quota, period = map(int, " ".join(texts).split())
                if quota > 0 and period > 0:
                    least = min(least, math.ceil(quota / period))
    return least


def threads_per_rank(size: int) -> int:
    """Return the threads for each of `size` ranks with which they use each core once."""
    return max(1, available_cores() // size)


def current_core() -> int:
    """Return the core that this thread runs on; -1 if the C library does not say."""
    return int(_getcpu())
