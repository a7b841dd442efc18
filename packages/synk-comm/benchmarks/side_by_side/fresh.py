"""What needs fresh processes: imports, and Python's own barrier."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import Any

from synk_benchmarks.contender import FAILED, failure
from synk_benchmarks.process import Failed, ask, environment_for_imports
from synk_benchmarks.results import Cell, Row

from .metrics import OURS, REFERENCE, row_of

_PROGRAM = (
    "import sys, time; begin = time.perf_counter(); import {modules}; "
    "sys.stdout.write(repr(time.perf_counter() - begin))"
)
_IMPORTED = {OURS: "synk_comm", REFERENCE: "numpy, zmq"}
BARRIER_CALLS = 50
LIMIT_S = 120


def imports(rounds: int) -> Row:
    """Measure imports of synk_comm and of the two packages that it needs, in turns."""
    samples: dict[str, list[float]] = {name: [] for name in _IMPORTED}
    notes: dict[str, str] = {}
    with environment_for_imports(os.environ) as variables:
        for number in range(-1, rounds):
            for name, modules in _IMPORTED.items():
                if name in notes:
                    continue
                program = _PROGRAM.format(modules=modules)
                try:
                    seconds = float(ask([sys.executable, "-c", program], LIMIT_S, variables))
                except Failed as error:
                    notes[name] = f"{FAILED}{error}"
                    samples[name].clear()
                else:
                    if number >= 0:
                        samples[name].append(seconds)
    cells = {name: Cell(tuple(taken), notes.get(name, "")) for name, taken in samples.items()}
    return row_of("import", 0, 0, cells)


def python_barrier(ranks: int, rounds: int) -> Cell:
    """Measure multiprocessing.Barrier, between processes of its own, as it demands."""
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
        return Cell(note=failure(error))
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
