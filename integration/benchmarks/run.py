"""What a call costs, and what it gains, beside the plain ways, measured in one run.

    python integration/benchmarks/run.py [--processes 2] [--seconds 1.0]

Every number is the best of several rounds that alternate with what it is compared to, so that a
busy machine slows both. The last column is the ratio that matters.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import threading
import time
from typing import Any, Callable

import numpy as np
import theano
import theano.tensor as T
from rich.console import Console
from rich.table import Table

import synkhronos as synk

ROUNDS = 7


def seconds_per_call(function: Callable[[], object], seconds: float) -> float:
    """The mean time of one call over about `seconds`."""
    count = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        function()
        count += 1
    return (time.perf_counter() - begin) / count


def side_by_side(seconds: float, *functions: Callable[[], object]) -> list[float]:
    """The best time of each function, measured in turns."""
    for function in functions:
        function()  # what is built at a first call is not what is measured
    rounds = [[seconds_per_call(f, seconds / ROUNDS) for f in functions] for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds)]


def wait_for_ever(barrier: Any) -> None:
    """The other side of the barrier: one round for each of the measuring process."""
    with contextlib.suppress(threading.BrokenBarrierError):
        while True:
            barrier.wait()


def show(seconds: float) -> str:
    """A time in the unit that suits it."""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def trivial_call(table: Table, seconds: float) -> None:
    """A function that computes next to nothing: what is left is the cost of a call."""
    x = T.vector("x")
    f = synk.function([x], outputs=x.sum())
    f_theano = theano.function([x], x.sum())
    values = np.zeros(8, dtype=x.dtype)
    shared = synk.data(values)
    plain, parallel, staged = side_by_side(
        seconds, lambda: f_theano(values), lambda: f(shared), lambda: f(values)
    )
    table.add_row("trivial call, Data", show(parallel), f"plain Theano {show(plain)}", "")
    table.add_row("  added by the call", show(parallel - plain), "", "")
    table.add_row("trivial call, ndarray", show(staged), f"plain Theano {show(plain)}", "")


def two_barriers(table: Table, seconds: float, processes: int) -> None:
    """Two waits at a multiprocessing.Barrier: what guarding a call costs in the usual way."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    others = [
        context.Process(target=wait_for_ever, args=(barrier,), daemon=True)
        for _ in range(processes - 1)
    ]
    for other in others:
        other.start()

    def twice() -> None:
        barrier.wait(60)
        barrier.wait(60)

    (both,) = side_by_side(seconds, twice)
    barrier.abort()
    for other in others:
        other.join(10)
    table.add_row("two multiprocessing barriers", show(both), "", "")


def compute_bound(table: Table, seconds: float, processes: int) -> None:
    """A function with work to share."""
    x = T.matrix("x")
    w = theano.shared(np.random.RandomState(0).randn(400, 400).astype(x.dtype), name="w")
    y = x
    for _ in range(6):
        y = T.tanh(T.dot(y, w) * 0.05)
    f = synk.function([x], outputs=y.mean())
    f_theano = theano.function([x], y.mean())
    values = np.random.RandomState(1).randn(2000, 400).astype(x.dtype)
    shared = synk.data(values)
    plain, parallel = side_by_side(seconds, lambda: f_theano(values), lambda: f(shared))
    np.testing.assert_allclose(f(shared), f_theano(values), rtol=1e-9)
    table.add_row(
        "six matrix products",
        show(parallel),
        f"plain Theano, one thread {show(plain)}",
        f"{plain / parallel:.2f} x of {processes}",
    )


def collectives(table: Table, seconds: float) -> None:
    """all_reduce of shared variables."""
    for length in (10, 10_000, 1_000_000):
        s = theano.shared(np.zeros(length, dtype="float32"), name=f"s{length}")

        def reduce(s: Any = s) -> None:
            synk.all_reduce(s)

        x, y = np.zeros(length, "float32"), np.zeros(length, "float32")

        def add(x: Any = x, y: Any = y) -> None:
            np.add(x, y, out=x)

        time_of, plain = side_by_side(seconds, reduce, add)
        table.add_row(
            f"all_reduce of {length * 4:,} bytes", show(time_of), f"numpy.add {show(plain)}", ""
        )


def main() -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each thing measured")
    options = parser.parse_args()
    table = Table("what", "time", "beside", "speed", title=f"{options.processes} processes")
    synk.fork(n_parallel=options.processes, verbose=False)
    try:
        trivial_call(table, options.seconds)
        collectives(table, options.seconds)
        compute_bound(table, options.seconds, options.processes)
    finally:
        synk.close()
    two_barriers(table, options.seconds, options.processes)
    Console().print(table)


if __name__ == "__main__":
    main()
