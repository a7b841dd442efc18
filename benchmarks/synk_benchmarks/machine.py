"""Describe where it was measured: what readers need to judge numbers, nothing that names a host."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path


def describe(*packages: str, **more: str) -> dict[str, str]:
    """Return facts by name, in the order to show them; call it before anything is measured."""
    return {
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": processor(),
        "cores": _cores(),
        "memory": _memory(),
        "load before": _load(),
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        **more,
        **{name: version for name in packages if (version := _version(name))},
    }


def processor() -> str:
    """Return the processor's name; its kind, if the system does not tell the name."""
    return _field("/proc/cpuinfo", "model name") or platform.machine() or "unknown"


def gpus() -> str:
    """Return the GPUs' names and driver, as nvidia-smi tells them; "none" without it."""
    lines = _gpu_lines()
    kinds = [f"{lines.count(line)} x {line}" for line in dict.fromkeys(lines)]
    return "; ".join(kinds).replace(", ", ", driver ") or "none"


def gpu_count() -> int:
    """Return how many GPUs there are."""
    return len(_gpu_lines())


def _gpu_lines() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in said.stdout.splitlines() if line.strip()]


def _cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = f"{usable} of {os.cpu_count()}" if usable != os.cpu_count() else str(usable)
    siblings = _text("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").strip()
    alone = not siblings or siblings.isdigit()
    return cores if alone else f"{cores}, some of them threads of the same core"


def _load() -> str:
    """Return how busy the machine was with other things: near 0 is a result to keep."""
    try:
        return f"{os.getloadavg()[0]:.2f}"
    except OSError:
        return "unknown"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # may be on the path without being installed
        return str(getattr(sys.modules.get(name.replace("-", "_")), "__version__", ""))


def _memory() -> str:
    found = _field("/proc/meminfo", "MemTotal")
    return f"{int(found.split()[0]) / (1 << 20):.1f} GiB" if found else "unknown"


def _field(path: str, field: str) -> str:
    for line in _text(path).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return " ".join(value.split())
    return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
