"""Measure orders of synkhronos beside plain mpi4py: ``mpiexec ... python -m hostbench.orders ...``.

Between two orders the ranks are in synkhronos's loop: an op has them compute mpi4py's calls.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np
import theano
import theano.tensor as T
from synk_benchmarks.results import KB, MB, row_of, write_row
from synk_benchmarks.rounds import calls_for, timed, turns
from synk_benchmarks.tables import size_name
from theano.compile.ops import as_op

import hostbench  # noqa: F401 - makes the harness importable
import synkhronos as synk

OURS, THEIRS = "synkhronos", "mpi4py"
ORDER_NBYTES = 128
ORDER, ALL_REDUCE, BROADCAST = range(3)


@functools.cache
def _bare(kind: int, nbytes: int) -> Callable[[], None]:
    from mpi4py import MPI

    comm = _communicator()
    source = np.ones(max(nbytes, ORDER_NBYTES) // 4, np.float32)
    target = np.empty_like(source)

    def order() -> None:
        comm.Bcast(source, 0)
        comm.Barrier()

    return {
        ORDER: order,
        ALL_REDUCE: lambda: comm.Allreduce(source, target, MPI.SUM),
        BROADCAST: lambda: comm.Bcast(source, 0),
    }[kind]


@functools.cache
def _communicator() -> Any:
    from mpi4py import MPI

    return MPI.COMM_WORLD.Dup()


@as_op(itypes=[T.lscalar, T.lscalar, T.lscalar], otypes=[T.dscalar])
def seconds_of(kind: np.ndarray, nbytes: np.ndarray, calls: np.ndarray) -> np.ndarray:
    """Return the seconds of one call of mpi4py on this rank."""
    call = _bare(int(kind), int(nbytes))
    _communicator().Barrier()
    began = time.perf_counter()
    for _ in range(int(calls)):
        call()
    return np.array((time.perf_counter() - began) / int(calls))


def main(path: Path, rounds: int, budget_s: float, largest: int) -> None:
    synk.fork(backend="mpi", use_gpu=False, verbose=False)
    given = [T.lscalar(name) for name in ("kind", "nbytes", "calls")]
    bare = synk.function([], bcast_inputs=given, outputs=(seconds_of(*given), "max"))
    nothing = synk.function([], [])
    cases: list[tuple[int, int, str, Callable[[], object]]] = [(ORDER, 0, "an order", nothing)]
    for nbytes in (KB, MB, 100 * MB):
        if nbytes <= largest:
            s = theano.shared(np.ones(nbytes // 4, np.float32), name=f"s{nbytes}")
            synk.function([], s[0])  # a shared variable that all ranks have
            for kind, what, call in (
                (ALL_REDUCE, "all_reduce", synk.all_reduce),
                (BROADCAST, "broadcast", synk.broadcast),
            ):
                title = f"{what} of {size_name(nbytes)}"
                cases.append((kind, nbytes, title, functools.partial(call, s)))
    synk.distribute()
    for kind, nbytes, title, call in cases:
        ways: dict[str, Callable[[int], float]] = {
            OURS: functools.partial(timed, call),
            THEIRS: functools.partial(_seconds, bare, kind, nbytes),
        }
        calls = {name: calls_for(budget_s, way, 5 * budget_s) for name, way in ways.items()}
        samples: dict[str, list[float]] = {name: [] for name in ways}
        for _, name in turns(list(ways), rounds):
            samples[name].append(ways[name](calls[name]))
        write_row(path, row_of("orders", title, samples))
    synk.close()


def _seconds(bare: Callable[..., Any], kind: int, nbytes: int, calls: int) -> float:
    return float(bare(kind, nbytes, calls))


if __name__ == "__main__":
    # The op is of a module that workers can import.
    importlib.import_module("hostbench.orders").main(Path(sys.argv[1]), **json.loads(sys.argv[2]))
