"""Where it was measured: what a reader needs to judge numbers, and nothing that names a host."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from pathlib import Path


def describe() -> dict[str, str]:
    """Machine and system by name, in the order to show them."""
    return {
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "GPUs": gpus(),
        "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": _memory(),
        "load before": f"{os.getloadavg()[0]:.2f}",
        "kernel": f"{platform.system()} {platform.release()}",
    }


def gpus() -> str:
    """Names and driver, as nvidia-smi tells them; "none" where it tells nothing."""
    lines = _gpu_lines()
    kinds = [f"{lines.count(line)} x {line}" for line in dict.fromkeys(lines)]
    return "; ".join(kinds).replace(", ", ", driver ") or "none"


def gpu_count() -> int:
    """How many there are."""
    return len(_gpu_lines())


def _gpu_lines() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in said.stdout.splitlines() if line.strip()]


def _memory() -> str:
    found = _field("/proc/meminfo", "MemTotal")
    return f"{int(found.split()[0]) / (1 << 20):.1f} GiB" if found else "unknown"


def _field(path: str, field: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return " ".join(value.split())
    return ""
