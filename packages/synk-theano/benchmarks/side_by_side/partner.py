"""The usual ways to use more cores: a process for each, with barriers that keep them together, or
one process of plain Theano whose BLAS has as many threads.

``python -m side_by_side.partner PROBLEM ROWS`` is the latter.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable

from synk_testing import Program

READY = "ready"
LIMIT_S = 120
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def partners(ranks: int) -> Iterator[Callable[[], None]]:
    """Start `ranks` - 1 processes; yield what waits for them at a barrier, and at another one."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(ranks)
    processes = [
        context.Process(target=_attend, args=(barrier,), daemon=True) for _ in range(ranks - 1)
    ]
    for process in processes:
        process.start()

    def together() -> None:
        barrier.wait(LIMIT_S)
        barrier.wait(LIMIT_S)

    try:
        together()
        yield together
    finally:
        barrier.abort()
        for process in processes:
            process.join(10)
            process.kill()
            process.join()
            process.close()


def _attend(barrier: Any) -> None:
    with contextlib.suppress(threading.BrokenBarrierError):
        while True:
            barrier.wait()


@contextmanager
def threaded(threads: int, problem: str, rows: int) -> Iterator[Callable[[], object]]:
    """Start a process of plain Theano whose BLAS has so many threads; yield what has it compute."""
    words = ["-m", "side_by_side.partner", problem, str(rows)]
    environment = dict.fromkeys(THREADS, str(threads))
    folder = Path(__file__).parent.parent
    with Program(words, environment=environment, folder=folder, limit_s=LIMIT_S) as process:

        def compute() -> None:
            process.send("compute")
            _await(process, "done")

        _await(process, READY)
        yield compute


def _await(process: Program, word: str) -> None:
    while process.line() != word:
        pass


def main(problem: str, rows: int) -> None:
    """Compute once for each line that is read."""
    from .functions import PROBLEMS

    chosen = PROBLEMS[problem]()
    compute, values = chosen.compiled(), chosen.rows(rows)
    compute(values)
    print(READY, flush=True)  # noqa: T201 - the process that measures reads it
    for _ in sys.stdin:
        compute(values)
        print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
