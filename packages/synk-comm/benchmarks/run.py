"""synk-comm beside its peers: every collective in one run, in turns, as times and ratios.

    python packages/synk-comm/benchmarks/run.py --quick
    python packages/synk-comm/benchmarks/run.py --only all_reduce barrier --sizes 4 64K 1M
    python packages/synk-comm/benchmarks/run.py --ranks 2 4 --markdown r.md
    python packages/synk-comm/benchmarks/run.py --mpi            # over MPI, beside mpi4py

README.md in this folder tells what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import functools
import shlex
import sys
from collections.abc import Sequence

from side_by_side import cases, job
from side_by_side.cases import METRICS, WITHOUT_SIZE
from side_by_side.contender import OURS, OVER_MPI
from side_by_side.peers import CONTENDERS, GLOO, MPICH, mpi_version, mpiexec
from synk_benchmarks import machine, program
from synk_benchmarks.results import KB, MB

ROUNDS, QUICK_ROUNDS = 11, 3
BUDGET_S, QUICK_BUDGET_S = 10e-3, 3e-3
QUICK_SIZES = (4, 64 * KB, MB, 16 * MB)
PACKAGES = ("synk-comm", "numpy", "pyzmq", "mpi4py", "torch")
TWO_HOSTS = "-launcher fork -hosts hosta,hostb -ppn 1 -n 2"


def main() -> int:
    """Measure what was asked for, and show it."""
    options = _options()
    ours = OVER_MPI if options.mpi else OURS
    usual = (OVER_MPI, MPICH) if options.mpi else (OURS, MPICH, GLOO)
    contenders, left_out = program.chosen(
        {name: CONTENDERS[name] for name in usual}, options.only, ours
    )
    alone = [name for name in METRICS if name != "order"]
    measured = cases.OVER_MPI if options.mpi else alone
    metrics = [name for name in measured if name in options.only] or list(measured)
    mpi = {"MPI": mpi_version()} if MPICH in contenders else {}
    facts = machine.describe(*PACKAGES, **mpi)
    order = {
        "contenders": contenders,
        "rounds": options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
        "budget_s": QUICK_BUDGET_S if options.quick else BUDGET_S,
        "metrics": [(name, [0] if name in WITHOUT_SIZE else options.sizes) for name in metrics],
    }
    parts = {
        f"{ranks} ranks": functools.partial(
            job.measure, {**order, "ranks": ranks}, _launcher(options)
        )
        for ranks in options.ranks
    }
    return program.run(f"{ours} beside its peers", facts, parts, options, left_out)


def _launcher(options: argparse.Namespace) -> Sequence[str]:
    if options.mpiexec:
        return shlex.split(options.mpiexec)
    return [mpiexec(), *TWO_HOSTS.split()] if options.mpi else []


def _options() -> argparse.Namespace:
    names = [*METRICS, *CONTENDERS]
    parser = program.parser(__doc__ or "", names, "3 short rounds, and four sizes", ROUNDS)
    add = parser.add_argument
    add("--ranks", nargs="+", type=int, metavar="N", help="2 4 by default; over MPI 2")
    add("--sizes", nargs="+", type=_size, metavar="SIZE", help="4 64K 1M ...; 4 to 64M by default")
    add("--mpi", action="store_true", help="over MPI, beside mpi4py; two hosts in MPI's eyes")
    add("--mpiexec", default="", metavar="COMMAND", help="what starts the ranks of --mpi")
    options = parser.parse_args()
    options.ranks = options.ranks or ([2] if options.mpi else cases.RANKS)
    if min(options.ranks) < 2:
        parser.error("--ranks takes numbers from 2 on")
    usual = cases.MPI_SIZES if options.mpi else cases.SIZES
    quick = usual[:2] if options.mpi else QUICK_SIZES
    options.sizes = sorted(set(options.sizes or (quick if options.quick else usual)))
    return options


def _size(text: str) -> int:
    try:
        return cases.parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
