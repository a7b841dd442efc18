"""What needs fresh processes: imports, and Python's own barrier."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from .metrics import OURS, REFERENCE, key_of
from .results import Cell, Row

_PROGRAM = (
    "import sys, time; begin = time.perf_counter(); import {modules}; "
    "sys.stdout.write(repr(time.perf_counter() - begin))"
)
_IMPORTED = {OURS: "synk_comm", REFERENCE: "numpy, zmq"}
BARRIER_CALLS = 50
LIMIT_S = 120


def imports(rounds: int) -> Row:
    """Importing synk_comm, and the two packages that it needs, in turns."""
    variables = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="synk-bench-") as folder:
        if variables.pop("PYTHONDONTWRITEBYTECODE", ""):
            # Installed packages are compiled; let the round that does not count do it for all.
            variables["PYTHONPYCACHEPREFIX"] = folder
        samples: dict[str, list[float]] = {name: [] for name in _IMPORTED}
        notes: dict[str, str] = {}
        for number in range(-1, rounds):
            for name, modules in _IMPORTED.items():
                if name in notes:
                    continue
                try:
                    seconds = _import(modules, variables)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    notes[name] = f"failed: {error}"
                    samples[name].clear()
                else:
                    if number >= 0:
                        samples[name].append(seconds)
    cells = {name: Cell(tuple(taken), notes.get(name, "")) for name, taken in samples.items()}
    return Row(key_of("import", 0, 0), "import", 0, 0, cells)


def _import(modules: str, variables: dict[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(modules=modules)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(" / ".join(done.stderr.strip().splitlines()[-2:])[-300:])
    return float(done.stdout)


def python_barrier(ranks: int, rounds: int) -> Cell:
    """multiprocessing.Barrier between processes that were made for it, as it demands."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(ranks, timeout=LIMIT_S)
    receiver, sender = context.Pipe(duplex=False)
    processes = [
        context.Process(target=_wait, args=(barrier, sender, rounds), daemon=True)
        for _ in range(ranks)
    ]
    try:
        for process in processes:
            process.start()
        taken = [_received(receiver) for _ in processes]
    except (OSError, EOFError, TimeoutError) as error:
        return Cell(note=f"failed: {type(error).__name__}: {error}")
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
            process.close()
        receiver.close()
        sender.close()
    return Cell(tuple(map(max, zip(*taken))), "measured before the others, by other processes")


def _received(receiver: Any) -> list[float]:
    if not receiver.poll(LIMIT_S):
        raise TimeoutError(f"not done after {LIMIT_S} s")
    samples: list[float] = receiver.recv()
    return samples


def _wait(barrier: Any, sender: Any, rounds: int) -> None:
    samples = []
    for _ in range(rounds):
        barrier.wait()
        begin = time.perf_counter()
        for _ in range(BARRIER_CALLS):
            barrier.wait()
        samples.append((time.perf_counter() - begin) / BARRIER_CALLS)
    sender.send(samples)
