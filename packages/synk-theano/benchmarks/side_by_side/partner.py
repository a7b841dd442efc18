"""The usual way to use more processes: each has its part, and barriers keep them together."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

LIMIT_S = 120
NOTHING = ""


@contextmanager
def partners(ranks: int, problem: str = NOTHING, rows: int = 0) -> Iterator[Callable[[], None]]:
    """Have `ranks` - 1 processes that meet this one at a barrier, and at another one.

    Args:
        problem: of `functions.PROBLEMS`, what each of them computes in between; nothing if empty.
        rows: of its input.

    Yields:
        A function that waits at both barriers, in whose midst this process computes the same.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(ranks)
    processes = [
        context.Process(target=_attend, args=(barrier, problem, rows), daemon=True)
        for _ in range(ranks - 1)
    ]
    for process in processes:
        process.start()
    work = _work(problem, rows)

    def together() -> None:
        barrier.wait(LIMIT_S)
        work()
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


def _attend(barrier: Any, problem: str, rows: int) -> None:
    work = _work(problem, rows)
    with contextlib.suppress(threading.BrokenBarrierError):
        while True:
            barrier.wait()
            work()
            barrier.wait()


def _work(problem: str, rows: int) -> Callable[[], object]:
    if not problem:
        return lambda: None
    from .functions import PROBLEMS

    chosen = PROBLEMS[problem]()
    compute, values = chosen.compiled(), chosen.rows(rows)
    return lambda: compute(values)
