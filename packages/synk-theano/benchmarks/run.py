"""synk-theano beside the plain ways, in turns: calls, inputs, scaling, distribution.

    python packages/synk-theano/benchmarks/run.py --quick
    python packages/synk-theano/benchmarks/run.py --only calls scaling
    python packages/synk-theano/benchmarks/run.py --json r.json --markdown r.md

README.md in this folder tells what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Callable

from side_by_side import targets
from synk_benchmarks import machine, program
from synk_benchmarks.results import Result, Row, Run

if TYPE_CHECKING:
    from side_by_side.plan import Plan

# One thread for each process, in this one and in all that it starts: read when BLAS is loaded.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

ROUNDS, QUICK_ROUNDS = 11, 3
BUDGET_S, QUICK_BUDGET_S = 50e-3, 10e-3
PARTS = ("calls", "inputs", "scaling", "distribution")
PACKAGES = ("synk-theano", "synk-core", "synk-shm", "synk-comm", "theano", "numpy", "scipy")


def main() -> int:
    """Measure (or read a file), then show and write what was asked for."""
    options = _options()
    return program.run(options, functools.partial(_measure, options), targets.page)


def _options() -> argparse.Namespace:
    parser = program.parser(__doc__ or "", PARTS, "small sizes, three short rounds")
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[2], help="processes of a parallel function: 2"
    )
    parser.add_argument(
        "--rounds", type=int, metavar="N", help=f"{ROUNDS} by default, with --quick {QUICK_ROUNDS}"
    )
    options = parser.parse_args()
    if min(options.ranks) < 2 or (options.rounds is not None and options.rounds < 1):
        parser.error("--ranks takes numbers from 2 on, --rounds one from 1 on")
    return options


def _measure(options: argparse.Namespace, progress: program.Progress) -> Result:
    # Theano comes to life only if something is measured.
    from side_by_side import calls, distribution, inputs, scaling
    from side_by_side.plan import Plan
    from theano import config
    from theano.gof.cmodule import gcc_version_str

    parts: dict[str, Callable[[Plan], list[Row]]] = {
        "calls": calls.calls,
        "inputs": inputs.inputs,
        "scaling": scaling.scaling,
        "distribution": distribution.distribution,
    }
    plans = [
        Plan(
            rounds=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
            budget_s=QUICK_BUDGET_S if options.quick else BUDGET_S,
            quick=options.quick,
            ranks=ranks,
            report=progress.line,
        )
        for ranks in options.ranks
    ]
    blas = "linked" if config.blas.ldflags else "through NumPy"
    if kernels := os.environ.get("OPENBLAS_CORETYPE"):
        blas += f", kernels for {kernels}"
    # Before anything else: the load is what others did.
    described = machine.describe(*PACKAGES, compiler=f"g++ {gcc_version_str}", BLAS=blas)
    settings = {
        "rounds": f"quick, {plans[0].rounds}" if options.quick else str(plans[0].rounds),
        "ranks": ", ".join(map(str, options.ranks)),
    }
    left_out: dict[str, str] = {}
    begin = time.monotonic()
    chosen = {
        _at(name, plan, plans): functools.partial(_measured, part, plan, plans)
        for name, part in parts.items()
        if name in options.only or not options.only
        for plan in plans
    }
    rows = program.measure_parts(chosen, left_out, progress)
    settings["took"] = f"{time.monotonic() - begin:.0f} s"
    return Result([Run(described, settings, left_out)], rows)


def _measured(part: Callable[[Plan], list[Row]], plan: Plan, plans: list[Plan]) -> list[Row]:
    return [
        replace(row, key=_at(row.key, plan, plans), label=_at(row.label, plan, plans))
        for row in part(plan)
    ]


def _at(name: str, plan: Plan, plans: list[Plan]) -> str:
    """Return the name of what is measured; it says on how many ranks where that differs."""
    return name if len(plans) == 1 else f"{name}, {plan.ranks} ranks"


if __name__ == "__main__":
    sys.exit(main())
