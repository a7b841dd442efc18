"""What a call costs: a function that computes next to nothing, beside plain Theano and barriers."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
from synk_benchmarks.results import ADDED, Row, beside

from synk_core import Runtime

from .functions import trivial
from .partner import partners
from .plan import Plan
from .targets import BARRIERS, CALLS, PLAIN

ROWS = 64


def calls(plan: Plan) -> list[Row]:
    """Measure calls of every kind beside plain Theano, and two of them beside barriers."""
    problem = trivial()
    values = problem.rows(ROWS)
    index = np.random.RandomState(0).permutation(ROWS)[: ROWS // 2]
    half = slice(8, 8 + ROWS // 2)
    plain = problem.compiled()
    with Runtime(plan.ranks) as runtime, partners(plan.ranks) as two_barriers:
        f = runtime.function([problem.x], (problem.output, problem.op))
        nothing = runtime.function([], [])
        data = runtime.data(values)
        pairs: tuple[tuple[Callable[[], object], Callable[[], object]], ...] = (
            (lambda: f(data), lambda: plain(values)),
            (lambda: f(values), lambda: plain(values)),
            (lambda: f(data, batch=half), lambda: plain(values[half])),
            (lambda: f(data, batch=index), lambda: plain(values[index])),
            (lambda: f(values, batch=index), lambda: plain(values[index])),
        )
        ways = dict(zip(CALLS, pairs))
        for ours, theirs in ways.values():
            np.testing.assert_allclose(ours(), theirs(), rtol=1e-4)
        named = {f"ours: {name}": ours for name, (ours, _) in ways.items()}
        named.update({f"theirs: {name}": theirs for name, (_, theirs) in ways.items()})
        named.update(nothing=nothing, barriers=two_barriers, stats=runtime.stats)
        samples = plan.seconds(**named)

    def row(what: str, ours: str, name: str, theirs: str, **more: Any) -> Row:
        return beside("calls", what, samples[ours], name, samples[theirs], **more)

    return [
        *(row(way, f"ours: {way}", PLAIN, f"theirs: {way}", kind=ADDED) for way in ways),
        *(row(way, f"ours: {way}", BARRIERS, "barriers") for way in CALLS[:2]),
        row("no input, no output", "nothing", BARRIERS, "barriers"),
        row("reading stats()", "stats", "a call", "ours: Data"),
    ]
