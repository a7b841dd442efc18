"""synk-theano beside the plain ways, in turns: calls, inputs, scaling.

    python packages/synk-theano/benchmarks/run.py --quick
    python packages/synk-theano/benchmarks/run.py --only calls scaling --ranks 2 4
    python packages/synk-theano/benchmarks/run.py --markdown r.md

README.md in this folder tells what is measured and how to read it.
"""

from __future__ import annotations

import functools
import os
import sys

import side_by_side  # noqa: F401 - makes the harness importable
from synk_benchmarks import machine, program

# One thread for each process, in this one and in all that it starts: read when BLAS is loaded.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

ROUNDS, QUICK_ROUNDS = 11, 3
BUDGET_S, QUICK_BUDGET_S = 50e-3, 10e-3
PARTS = ("calls", "inputs", "scaling")
PACKAGES = ("synk-theano", "synk-core", "synk-shm", "synk-comm", "theano", "numpy", "scipy")


def main() -> int:
    """Measure what was asked for, and show it."""
    parser = program.parser(__doc__ or "", PARTS, "small sizes, three short rounds", ROUNDS)
    parser.add_argument(
        "--ranks",
        type=program.positive,
        nargs="+",
        default=[2],
        help="processes of a parallel function: 2",
    )
    options = parser.parse_args()
    # Theano comes to life only if something is measured.
    from side_by_side import measures
    from theano import config
    from theano.gof.cmodule import gcc_version_str

    blas = "linked" if config.blas.ldflags else "through NumPy"
    if kernels := os.environ.get("OPENBLAS_CORETYPE"):
        blas += f", kernels for {kernels}"
    facts = machine.describe(*PACKAGES, compiler=f"g++ {gcc_version_str}", BLAS=blas)
    plans = [
        measures.Plan(
            rounds=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
            budget_s=QUICK_BUDGET_S if options.quick else BUDGET_S,
            quick=options.quick,
            ranks=ranks,
        )
        for ranks in options.ranks
    ]
    parts = {
        f"{name}, {plan.ranks} ranks": functools.partial(getattr(measures, name), plan)
        for name in PARTS
        if name in options.only or not options.only
        for plan in plans
    }
    return program.run("synk-theano beside the plain ways", facts, parts, options)


if __name__ == "__main__":
    sys.exit(main())
