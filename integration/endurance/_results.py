"""What the runs here write: one JSON file each, which says on what it was measured."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

FOLDER = Path(__file__).resolve().parent / "results"

_PACKAGES = ("synkhronos", "synk-theano", "synk-shm", "synk-comm", "Theano", "numpy")


def described(kind: str, **content: Any) -> dict[str, Any]:
    """`content`, with what it was measured on."""
    return {
        "kind": kind,
        "when": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "system": f"{platform.system()} {platform.release()}",
        },
        "versions": {
            "Python": platform.python_version(),
            **{name: version(name) for name in _PACKAGES},
        },
        **content,
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Write it, one line for each item of its lists: so that files of it can be compared."""
    parts = [f"{json.dumps(name)}: {_lines(value)}" for name, value in content.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _lines(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]"
    return json.dumps(value)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.machine()
