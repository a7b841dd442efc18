"""Measure calls, inputs, and functions with work to share, beside the plain ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Callable

import numpy as np
from synk_benchmarks.results import Row, row_of
from synk_benchmarks.rounds import time_in_turns

from synk_core import Runtime

from .functions import PROBLEMS, ROW, reading, trivial
from .partner import partners, threaded

OURS, PLAIN, BARRIERS = "ours", "plain Theano", "two Barrier waits"
THREADED = "plain, BLAS with a thread for each rank"
CALL_ROWS = 64
NBYTES, QUICK_NBYTES = 256 << 20, 16 << 20
ROWS = {"products": 16_000, "convolutions": 256, "reading": 1 << 18}
TITLES = {
    "products": "six matrix products",
    "convolutions": "a step of two convolutions",
    "reading": "the sum of an array",
}


@dataclass(frozen=True)
class Plan:
    """How much is measured; back-to-back calls of one turn take `budget_s` together."""

    rounds: int
    budget_s: float
    quick: bool
    ranks: int

    def row(self, part: str, label: str, ways: dict[str, Callable[[], object]]) -> Row:
        """Time every way in every round."""
        samples = time_in_turns(ways, self.rounds, self.budget_s)
        return row_of(f"{part}, {self.ranks} ranks", label, samples, ranks=self.ranks)


def calls(plan: Plan) -> Iterator[Row]:
    """Measure calls of every kind: a function that computes next to nothing."""
    problem = trivial()
    values = problem.rows(CALL_ROWS)
    index = np.random.RandomState(0).permutation(CALL_ROWS)[: CALL_ROWS // 2]
    half = slice(8, 8 + CALL_ROWS // 2)
    plain = problem.compiled()
    with Runtime(plan.ranks) as runtime, partners(plan.ranks) as two_barriers:
        f = runtime.function([problem.x], (problem.output, problem.op))
        nothing = runtime.function([], [])
        data = runtime.data(values)
        pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "Data": (lambda: f(data), lambda: plain(values)),
            "ndarray": (lambda: f(values), lambda: plain(values)),
            "Data, batch=slice": (lambda: f(data, batch=half), lambda: plain(values[half])),
            "Data, batch=index": (lambda: f(data, batch=index), lambda: plain(values[index])),
            "ndarray, batch=index": (lambda: f(values, batch=index), lambda: plain(values[index])),
        }
        for label, (ours, theirs) in pairs.items():
            np.testing.assert_allclose(ours(), theirs(), rtol=1e-4)
            ways = {OURS: ours, PLAIN: theirs, BARRIERS: two_barriers}
            yield plan.row("calls", label, ways)
        ways = {OURS: nothing, BARRIERS: two_barriers}
        yield plan.row("calls", "no input, no output", ways)


def inputs(plan: Plan) -> Iterator[Row]:
    """Measure rows of 4 kB, read once, by slices and shuffled, beside one process."""
    problem = reading()
    count = (QUICK_NBYTES if plan.quick else NBYTES) // (4 * ROW)
    plain = problem.compiled()
    with Runtime(plan.ranks) as runtime:
        f = runtime.function([problem.x], (problem.output, problem.op))
        data = runtime.data(problem.rows(count))
        values = data.data
        order = np.random.RandomState(0).permutation(count)
        half = slice(count // 4, count // 4 + count // 2)
        for label, ours, theirs in (
            ("all rows, summed", lambda: f(data), lambda: plain(values)),
            ("a slice of half the rows", lambda: f(data, batch=half), lambda: plain(values[half])),
            ("all rows, shuffled", lambda: f(data, batch=order), lambda: plain(values[order])),
        ):
            np.testing.assert_allclose(ours(), theirs(), rtol=1e-3, atol=10)
            yield plan.row("inputs", label, {OURS: ours, PLAIN: theirs})


def scaling(plan: Plan) -> Iterator[Row]:
    """Measure each problem by all ranks beside one process, with one thread and with as many."""
    # Cores that have slept through the turns of others are slow at first, those of virtual machines
    # above all: on 32 of them a call took 11 ms in turns of 50 ms, and 5 ms in a row.
    longer = replace(plan, budget_s=8 * plan.budget_s)
    for name, count in ROWS.items():
        yield _scaling(longer, name, count // 16 if plan.quick else count)


def _scaling(plan: Plan, name: str, count: int) -> Row:
    count -= count % plan.ranks
    problem, reference = PROBLEMS[name](), PROBLEMS[name]()
    plain, values = reference.compiled(), problem.rows(count)
    with threaded(plan.ranks, name, count) as with_threads, Runtime(plan.ranks) as runtime:
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
        ways = {OURS: ours, PLAIN: lambda: plain(values), THREADED: with_threads}
        return plan.row("scaling", TITLES[name], ways)
