"""Measure the back-end mpi, with all its checks, beside the same calls of mpi4py without any.

    python mpi_bench.py [--rounds 31] [--out FILE.md] [--mpiexec "mpiexec -n 2 ..."]

Needs mpi4py and mpich. By itself it starts two ranks on one machine, of which MPI believes that it
is two hosts; messages go through shared memory then, where Python's own time shows most. With
``--mpiexec`` it measures between real hosts, or network namespaces.

Both contenders run in turns in the same processes, on the same arrays. A turn is a number of calls
back to back; its time is the slowest rank's. *Order* is what synk-core does for each call: a
broadcast of 256 bytes and a barrier. MPI's broadcast does not wait for the others; ours does.
*There and back* is an array sent to the other rank, and one received from there: for two ranks.
"""

# ruff: noqa: T201 - a command line tool prints

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Sequence

import numpy as np

import synk_comm

TARGETS = {
    "order": 2.0,
    "all_reduce 1 KB": 2.0,
    "all_reduce 1 MB": 1.3,
    "all_reduce 100 MB": 1.1,
    "broadcast 100 MB": 1.1,
}
"""Times mpi4py's, which ours may take."""
SIZES = {"1 KB": (1 << 10, 50), "1 MB": (1 << 20, 4), "100 MB": (100 << 20, 1)}
"""Bytes, and calls in a turn."""
_TWO_HOSTS = "-launcher fork -hosts hosta,hostb -ppn 1 -n 2"
_LIMIT_S = 1800.0
"""Seconds that the ranks may take."""
_SECONDS_LONG = 0.02
"""Of a call from which on a third of the rounds is enough."""


def measure(rounds: int) -> dict[str, Any]:
    """Measure on this rank; return the times of each case in seconds, ours and MPI's."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    bare = world.Dup()
    comm = synk_comm.connect(backend="mpi")

    def turn(call: Callable[[], Any], calls: int) -> float:
        world.Barrier()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        took = np.array((time.perf_counter() - began) / calls)
        world.Allreduce(MPI.IN_PLACE, took, op=MPI.MAX)
        return float(took)

    word = np.zeros(32, "i8")

    def order() -> None:
        comm.broadcast(word)
        comm.barrier()

    def bare_order() -> None:
        bare.Bcast(word)
        bare.Barrier()

    other = 1 - comm.rank

    def swap(send: Callable[..., Any], receive: Callable[[int], Any], x: Any) -> None:
        if comm.rank:
            receive(other)
            send(x, other)
        else:
            send(x, other)
            receive(other)

    cases: dict[str, tuple[Callable[[], Any], Callable[[], Any], int]] = {
        "order": (order, bare_order, 50),
        "barrier": (comm.barrier, bare.Barrier, 50),
    }
    for name, (nbytes, calls) in SIZES.items():
        x = np.ones(nbytes // 4, "f4")
        y = np.empty_like(x)
        cases[f"broadcast {name}"] = (
            lambda x=x: comm.broadcast(x),
            lambda x=x: bare.Bcast(x),
            calls,
        )
        cases[f"all_reduce {name}"] = (
            lambda x=x, y=y: comm.all_reduce(x, out=y),
            lambda x=x, y=y: bare.Allreduce(x, y),
            calls,
        )
        cases[f"there and back {name}"] = (
            lambda x=x, y=y: swap(comm.send, partial(comm.recv, out=y), x),
            lambda x=x, y=y: swap(bare.Send, partial(bare.Recv, y), x),
            calls,
        )
    times: dict[str, Any] = {}
    for name, (ours, theirs, calls) in cases.items():
        for call in (ours, theirs) * 3:
            call()
        long = turn(theirs, 1) > _SECONDS_LONG
        pairs = [
            [turn(call, calls) for call in ((ours, theirs) if which % 2 else (theirs, ours))]
            for which in range(max(rounds // 3, 3) if long else rounds)
        ]
        times[name] = [pair if which % 2 else pair[::-1] for which, pair in enumerate(pairs)]
    about = {"rank": comm.rank, "why": comm.why}
    comm.close()
    return {"times": times, **about}


def page(found: dict[str, Any], where: str) -> str:
    """Return the table in Markdown."""
    used = f"CPython {platform.python_version()}, NumPy {np.__version__}"
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, {used}; load before {found['load']:.1f}"
    )
    lines = [
        f"Two ranks, {where}. {found['why']}. {machine}.",
        "",
        "| us | synk-comm, median (min) | mpi4py, median (min) | ratio | of minima | target |",
        "|---|---|---|---|---|---|",
    ]
    for name, pairs in found["times"].items():
        ours, theirs = zip(*pairs)
        both = [f"{1e6 * statistics.median(t):.1f} ({1e6 * min(t):.1f})" for t in (ours, theirs)]
        ratio = statistics.median(a / b for a, b in pairs)
        target = f"{TARGETS[name]:g}" if name in TARGETS else ""
        lines.append(
            f"| {name} | {both[0]} | {both[1]} | {ratio:.2f} | {min(ours) / min(theirs):.2f} "
            f"| {target} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path, help="write the table there")
    parser.add_argument("--mpiexec", default="", help="what starts the ranks")
    parser.add_argument("--where", help="in words, where these are")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    if options.rank:
        found = measure(options.rounds)
        if found["rank"] == 0:  # all have the same times
            sys.stdout.write(json.dumps(found) + "\n")
        return 0
    mpiexec = shlex.quote(str(Path(sys.executable).with_name("mpiexec")))
    words = shlex.split(options.mpiexec or f"{mpiexec} {_TWO_HOSTS}")
    me = [sys.executable, __file__, "--rank", "--rounds", str(options.rounds)]
    quiet = {"UCX_LOG_LEVEL": "error", **os.environ}
    done = subprocess.run(
        [*words, *me], check=False, stdout=subprocess.PIPE, env=quiet, timeout=_LIMIT_S
    )
    if done.returncode:
        return done.returncode
    found = json.loads(done.stdout.splitlines()[0])
    where = options.where or "hosts that only MPI believes in: through shared memory"
    table = page({**found, "load": load}, where)
    print(table, end="")
    if options.out:
        options.out.write_text(table, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
