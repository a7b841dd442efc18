"""What a call costs: a function that computes next to nothing, beside plain Theano and barriers."""

from __future__ import annotations

from typing import Callable

import numpy as np

from synk_theano import Runtime

from .functions import trivial
from .partner import partners
from .results import ADDED, RATIO, Row, Target
from .rounds import Rounds

ROWS = 64
AT_MOST_S = 40e-6
OF_BARRIERS = 0.25


def calls(rounds: Rounds) -> list[Row]:
    """Calls of every kind beside the same call of plain Theano, and two of them beside barriers."""
    problem = trivial()
    values = problem.rows(ROWS)
    index = np.random.RandomState(0).permutation(ROWS)[: ROWS // 2]
    half = slice(8, 8 + ROWS // 2)
    plain = problem.compiled()
    with Runtime(rounds.ranks) as runtime, partners(rounds.ranks) as two_barriers:
        f = runtime.function([problem.x], (problem.output, problem.op))
        nothing = runtime.function([], [])
        data = runtime.data(values)
        ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "Data": (lambda: f(data), lambda: plain(values)),
            "ndarray": (lambda: f(values), lambda: plain(values)),
            "Data, batch=slice": (lambda: f(data, batch=half), lambda: plain(values[half])),
            "Data, batch=index": (lambda: f(data, batch=index), lambda: plain(values[index])),
            "ndarray, batch=index": (lambda: f(values, batch=index), lambda: plain(values[index])),
        }
        for ours, theirs in ways.values():
            np.testing.assert_allclose(ours(), theirs(), rtol=1e-4)
        named = {f"ours: {name}": ours for name, (ours, _) in ways.items()}
        named.update({f"theirs: {name}": theirs for name, (_, theirs) in ways.items()})
        named.update(nothing=nothing, barriers=two_barriers)
        stats = getattr(runtime, "stats", None)
        if stats is not None:
            named["stats"] = stats
        samples = rounds.seconds(**named)
    rows = []
    for name in ways:
        ours, theirs = samples[f"ours: {name}"], samples[f"theirs: {name}"]
        target = Target(ADDED, AT_MOST_S)
        rows.append(Row("calls", name, ours, "plain Theano", theirs, ADDED, target))
    for name in ("Data", "ndarray"):
        ours, theirs = samples[f"ours: {name}"], samples["barriers"]
        target = Target(RATIO, OF_BARRIERS)
        rows.append(Row("calls", name, ours, "two Barrier waits", theirs, RATIO, target))
    rows.append(
        Row("calls", "no input, no output", samples["nothing"], "two Barrier waits", theirs)
    )
    if "stats" in samples:
        rows.append(
            Row("calls", "reading stats()", samples["stats"], "a call", samples["ours: Data"])
        )
    return rows
