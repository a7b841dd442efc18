"""A function with work to share: all cores beside one."""

from __future__ import annotations

import warnings

import numpy as np
from synk_benchmarks.results import SPEED, Row, beside

from synk_core import LintWarning, Runtime

from .functions import PROBLEMS
from .partner import partners, threaded
from .plan import Plan
from .targets import ONE, THREADED
from .targets import PROBLEMS as TITLES

ROWS = {"products": 4000, "convolutions": 64}


def scaling(plan: Plan) -> list[Row]:
    """Measure each problem by all ranks beside one process with one thread, and one whose BLAS has
    a thread for each rank; and by hand."""
    return [row for name, title in zip(ROWS, TITLES) for row in _scaling(plan, name, title)]


def _scaling(plan: Plan, name: str, title: str) -> list[Row]:
    count = ROWS[name]
    count //= 4 if plan.quick else 1
    part = count // plan.ranks
    count = part * plan.ranks
    problem = PROBLEMS[name]()
    plain, values = problem.compiled(), problem.rows(count)
    # What the convolutions' ranks learn is compared with nothing.
    warnings.simplefilter("ignore", LintWarning)
    with (
        threaded(plan.ranks, name, count) as with_threads,
        Runtime(plan.ranks) as runtime,
        partners(plan.ranks, name, part) as by_hand,
    ):
        f = runtime.function(
            [problem.x], (problem.output, problem.op), updates=list(problem.updates)
        )
        data = runtime.data(values)
        if not problem.updates:
            np.testing.assert_allclose(f(data), plain(values), rtol=1e-3)
        samples = plan.seconds(
            ours=lambda: f(data),
            plain=lambda: plain(values),
            threads=with_threads,
            by_hand=by_hand,
        )
    rows = (
        (title, "ours", ONE, "plain"),
        (title, "ours", THREADED, "threads"),
        (f"  the same by hand: {title}", "by_hand", ONE, "plain"),
    )
    return [
        beside("scaling", what, samples[ours], name, samples[theirs], kind=SPEED, ranks=plan.ranks)
        for what, ours, name, theirs in rows
    ]
