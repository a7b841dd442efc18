"""Where it was measured: what a reader needs to judge numbers, and nothing that names a host."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
from pathlib import Path

import theano
from theano.gof.cmodule import gcc_version_str

_PACKAGES = ("synk-theano", "synk-shm", "synk-comm", "theano", "numpy", "scipy")


def describe() -> dict[str, str]:
    """Machine, system and versions by name, in the order to show them."""
    return {
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": _cores(),
        "memory": _memory(),
        "load before": _load(),
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "compiler": f"g++ {gcc_version_str}",
        "BLAS": "linked" if theano.config.blas.ldflags else "through NumPy",
        **{name: version for name in _PACKAGES if (version := _version(name))},
    }


def _cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    all_of_them = f"{usable} of {os.cpu_count()}" if usable != os.cpu_count() else str(usable)
    try:
        siblings = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").read_text()
    except OSError:
        return all_of_them
    alone = siblings.strip().isdigit()
    return all_of_them if alone else f"{all_of_them}, some of them threads of the same core"


def _memory() -> str:
    found = _field("/proc/meminfo", "MemTotal")
    return f"{int(found.split()[0]) / (1 << 20):.1f} GiB" if found else "unknown"


def _load() -> str:
    """How busy the machine was with other things: near 0 is a result to keep."""
    try:
        return f"{os.getloadavg()[0]:.2f}"
    except OSError:
        return "unknown"


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


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
