"""What the programs here share: their options, and the JSON file that each of them writes."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import random
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from synk_benchmarks.machine import processor

FOLDER = Path(__file__).resolve().parent / "results"

_PACKAGES = ("synkhronos", "synk-theano", "synk-core", "synk-shm", "synk-comm", "Theano", "numpy")


def begin(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line, with `--seed` and `--json` besides; print the seed.

    From here on SIGTERM raises, so that a program ends what it has started and writes what it has.
    """
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--json", type=Path, default=None, help="write the results there")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(2**31)
    print(f"seed {options.seed}", flush=True)
    return options


def described(kind: str, **content: Any) -> dict[str, Any]:
    """Return `content`, with what it was measured on."""
    return {
        "kind": kind,
        "when": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "processor": processor(),
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
    """Write a result, one line for each item of its lists: so that files can be compared."""
    parts = [f"{json.dumps(name)}: {_lines(value)}" for name, value in content.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _lines(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]"
    return json.dumps(value)
