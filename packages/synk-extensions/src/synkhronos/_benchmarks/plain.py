"""Plain functions in their own processes, as without Synkhronos.

A process with a runtime limits its BLAS to its share of the cores. Here, one process has BLAS's
default number of threads, or that of the environment, and one has a single thread.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from time import perf_counter
from typing import Any, Callable, Dict, List

import numpy as np
from threadpoolctl import threadpool_info

from synk_core.engine import TITLE, T, library

FUNCTIONS: Dict[str, Callable[[Any, Any, Any], Any]] = {
    "entry by entry": lambda m, x, _: m.tanh(x) * m.exp(-x * x) + m.log1p(x * x),
    "a matrix product": lambda m, x, w: m.tanh(m.dot(x, w)),
}
"""Measured functions of NumPy or the engine: of x, a row for each example, and a matrix."""

_COLUMNS = 256
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def values(rows: int) -> Any:
    """Return the values of x and of the matrix."""
    random = np.random.RandomState(0)
    shapes = ((rows, _COLUMNS), (_COLUMNS, _COLUMNS))
    return [random.standard_normal(shape).astype("float32") / 4 for shape in shapes]


class PlainProcesses:
    """Processes that compute one of the functions on request; a context manager.

    Args:
        what: A name of `FUNCTIONS`.
        rows: Number of rows.

    Attributes:
        measures: Functions that return the seconds of a call; their names contain the threads.
    """

    def __init__(self, what: str, rows: int) -> None:
        self._processes: List[subprocess.Popen[str]] = []
        self.measures: Dict[str, Callable[[], float]] = {}
        for settings in ({}, _ONE_THREAD):
            process = subprocess.Popen(
                [sys.executable, __file__, what, str(rows)],
                env={**os.environ, **settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._processes.append(process)
            threads = _answer(process)
            name = f"plain {TITLE}, {threads} thread{'' if threads == '1' else 's'}"
            self.measures.setdefault(name, functools.partial(_seconds, process))

    def __enter__(self) -> PlainProcesses:  # noqa: PYI034 - typing.Self is not there on Python 3.9
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.communicate()


def _seconds(process: subprocess.Popen[str]) -> float:
    return float(_answer(process, "\n"))


def _answer(process: subprocess.Popen[str], said: str = "") -> str:
    if process.stdin is not None and process.stdout is not None:
        process.stdin.write(said)
        process.stdin.flush()
        line = process.stdout.readline().strip()
        if line:
            return line
    raise RuntimeError(f"plain {TITLE} ended with status {process.wait()}")


def _say(value: float) -> None:
    sys.stdout.write(f"{value!r}\n")
    sys.stdout.flush()


def _main(what: str, rows: int) -> None:
    """Print the number of threads; then make a call for each line read, and print its seconds."""
    array, matrix = values(rows)
    x = T.fmatrix("x")
    f = library.function([x], FUNCTIONS[what](T, x, library.shared(matrix)).mean())
    f(array)
    _say(max(pool["num_threads"] for pool in threadpool_info()))
    for _ in sys.stdin:
        begin = perf_counter()
        f(array)
        _say(perf_counter() - begin)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
