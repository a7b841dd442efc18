"""Orders and collectives between two hosts, beside plain mpi4py in the same processes.

    python integration/benchmarks/hosts.py --quick
    python integration/benchmarks/hosts.py --markdown r.md

hosts.md in this folder explains it. The hosts are simulated, which needs root; without (or with
--plain) two ranks only believe to be on two hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.append(str(ROOT / "packages/synk-comm/benchmarks"))

from hostbench import network  # noqa: E402 - beside this file; makes the harness importable
from side_by_side import cases, job  # noqa: E402 - synk-comm's
from side_by_side.contender import OVER_MPI  # noqa: E402
from side_by_side.peers import MPICH  # noqa: E402
from synk_benchmarks import machine, process, program  # noqa: E402
from synk_benchmarks.results import MB, Row, read_rows  # noqa: E402

from synk_testing.mpi import job_command, why_no_mpi  # noqa: E402

ROUNDS, QUICK_ROUNDS = 9, 3
BUDGET_S, QUICK_BUDGET_S = 0.1, 0.02
LIMIT_S = 900
FLAGS = "device=cpu,linker=py,optimizer=fast_compile"
PACKAGES = ("synkhronos", "numpy", "mpi4py", "mpich")


def main() -> int:
    parts = {"orders": _orders, "collectives": _collectives}
    parser = program.parser(__doc__ or "", parts, "3 short rounds, up to 1 MB", ROUNDS)
    parser.add_argument("--plain", action="store_true", help="no namespaces")
    options = parser.parse_args()
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    if problem := why_no_mpi():
        sys.exit(problem)
    problem = "--plain" if options.plain else network.missing()
    where = "two ranks that believe to be on two hosts" if problem else "two network namespaces"
    facts = machine.describe(*PACKAGES, hosts=where, rounds=str(options.rounds))
    with contextlib.ExitStack() as ends:
        if problem:
            launcher = job_command(2, 1)
        else:
            mpiexec = Path(sys.executable).with_name("mpiexec.hydra")
            launcher = ends.enter_context(network.hosts(2)).command(str(mpiexec))
        chosen = {
            name: functools.partial(measure, options, launcher)
            for name, measure in parts.items()
            if name in options.only or not options.only
        }
        left_out = {"simulated hosts": problem} if problem else {}
        return program.run("Two hosts beside mpi4py", facts, chosen, options, left_out)


def _orders(options: argparse.Namespace, launcher: Sequence[str]) -> Iterator[Row]:
    """Yield rows of synkhronos: whole calls, from the master's order to its end on all ranks."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(FOLDER)]))
    environment = {**os.environ, "PYTHONPATH": path, "THEANO_FLAGS": FLAGS}
    environment.setdefault("UCX_LOG_LEVEL", "error")
    how = {
        "rounds": options.rounds,
        "budget_s": QUICK_BUDGET_S if options.quick else BUDGET_S,
        "largest": MB if options.quick else 100 * MB,
    }
    with tempfile.TemporaryDirectory(prefix="synk-bench-") as folder:
        rows = Path(folder, "rows")
        ours = [sys.executable, "-m", "hostbench.orders", str(rows), json.dumps(how)]
        try:
            process.ask([*launcher, *ours], LIMIT_S, environment)
        finally:
            yield from read_rows(rows)


def _collectives(options: argparse.Namespace, launcher: Sequence[str]) -> Iterator[Row]:
    """Yield rows of synk-comm alone, without an order around it."""
    sizes = cases.MPI_SIZES[: 2 if options.quick else 3]
    order = {
        "ranks": 2,
        "contenders": [OVER_MPI, MPICH],
        "rounds": options.rounds,
        "budget_s": QUICK_BUDGET_S if options.quick else BUDGET_S,
        "metrics": [(n, [0] if n in cases.WITHOUT_SIZE else sizes) for n in cases.OVER_MPI],
    }
    return job.measure(order, launcher)


if __name__ == "__main__":
    sys.exit(main())
