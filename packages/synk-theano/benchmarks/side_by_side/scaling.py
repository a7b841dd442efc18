"""A function with work to share: all cores beside one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from synk_benchmarks.results import SPEED, Row, beside

from synk_core import Runtime

from .functions import PROBLEMS
from .partner import partners, threaded
from .plan import Plan
from .targets import ONE, THREADED
from .targets import PROBLEMS as TITLES

ROWS = {"products": 16_000, "convolutions": 256, "reading": 1 << 18}


def scaling(plan: Plan) -> list[Row]:
    """Measure each problem by all ranks beside one process with one thread, and one whose BLAS has
    a thread for each rank; and by hand."""
    # Cores that have slept through the turns of others are slow at first, those of virtual machines
    # above all: on 32 of them a call took 11 ms in turns of 50 ms, and 5 ms in a row.
    longer = replace(plan, budget_s=8 * plan.budget_s)
    return [row for name, title in zip(ROWS, TITLES) for row in _scaling(longer, name, title)]


def _scaling(plan: Plan, name: str, title: str) -> list[Row]:
    count = ROWS[name]
    count //= 16 if plan.quick else 1
    part = count // plan.ranks
    count = part * plan.ranks
    problem, reference = PROBLEMS[name](), PROBLEMS[name]()
    plain, values = reference.compiled(), problem.rows(count)
    with (
        threaded(plan.ranks, name, count) as with_threads,
        Runtime(plan.ranks) as runtime,
        partners(plan.ranks, name, part) as by_hand,
    ):
        f = runtime.function(
            [problem.x], (problem.output, problem.op), updates=list(problem.updates)
        )
        data = runtime.data(values)

        def ours() -> object:
            if not problem.updates:
                return f(data)
            # Parts are equally long, so this mean is a step along the gradient of all rows.
            average = runtime.delayed.all_reduce([w for w, _ in problem.updates])
            return runtime.step(f.delayed(data), average)[0]

        np.testing.assert_allclose(ours(), plain(values), rtol=1e-3)
        for (w, _), (expected, _) in zip(problem.updates, reference.updates):
            np.testing.assert_allclose(w.get_value(), expected.get_value(), rtol=1e-4)
        samples = plan.seconds(
            ours=ours,
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
