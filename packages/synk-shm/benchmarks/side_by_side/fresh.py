"""Count the arrays that killed processes leave; ``python -m side_by_side.fresh`` is such a one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from synk_benchmarks.results import COUNT, Row, row_of

from .contender import SHARED_MEMORY
from .contenders import CONTENDERS
from .metrics import Bench

FOLDER = Path(__file__).resolve().parent.parent
LIMIT_S = 60
ARRAY = (1 << 20) + (3 << 12)
"""Bytes of the array of a process to be killed: a length that no other program's array has."""
SETTLE_S = 2.0
"""Seconds for helpers of a killed process to clean up."""


def left(bench: Bench) -> Iterator[Row]:
    """Count the arrays that are left after kill -9, and after the next process has started."""
    for how in ("creator", "group"):
        counts = {
            contender.name: _left(contender.name, how)
            for contender in bench.contenders
            if contender.can_leak
        }
        for place, label in enumerate((f"kill -9 of the {how}", "after the next start")):
            samples = {name: [found[place]] for name, found in counts.items()}
            yield row_of(f"arrays left, {how} killed", label, samples, unit=COUNT)


def _left(name: str, how: str) -> tuple[int, int]:
    before = _arrays()
    command = [sys.executable, "-m", "side_by_side.fresh", name]
    victim = subprocess.Popen(
        [*command, "wait"], stdout=subprocess.PIPE, cwd=FOLDER, start_new_session=True
    )
    try:
        if victim.stdout is None or not victim.stdout.readline():
            raise RuntimeError(f"{name} made no array")
        (os.kill if how == "creator" else os.killpg)(victim.pid, signal.SIGKILL)
        victim.wait(LIMIT_S)
        time.sleep(SETTLE_S)
        at_once = len(_arrays() - before)
        subprocess.run([*command, "exit"], cwd=FOLDER, timeout=LIMIT_S, check=True)
        return at_once, len(_arrays() - before)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(victim.pid, signal.SIGKILL)
        victim.wait()
        if victim.stdout:
            victim.stdout.close()
        for path in _arrays() - before:
            path.unlink()
        for path in Path(SHARED_MEMORY).glob(f"*[-_]{victim.pid}[-_]*"):  # joblib's
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _arrays() -> set[Path]:
    found = set()
    for path in Path(SHARED_MEMORY).rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if ARRAY <= path.stat().st_size < ARRAY + (1 << 12):
                found.add(path)
    return found


def main(name: str, what: str) -> None:
    """Make an array, say so, and wait until this process is killed; or make one and exit."""
    signal.alarm(LIMIT_S)
    os.environ["JOBLIB_TEMP_FOLDER"] = SHARED_MEMORY
    contender = CONTENDERS[name]()
    if what == "wait":
        contender.hold(ARRAY // 8, _wait)
    array, keep = contender.create(1)
    del array
    contender.destroy(keep)
    contender.close()


def _wait(_array: Any) -> None:
    os.write(1, b"ready\n")
    time.sleep(LIMIT_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
