"""A function with work to share: all cores beside one."""

from __future__ import annotations

import numpy as np

from synk_theano import Runtime

from .functions import PROBLEMS
from .partner import partners
from .results import SPEED, Row, Target
from .rounds import Rounds

OF_LINEAR = 0.95
ROWS = {"products": 4000, "convolutions": 64}
TITLES = {"products": "six matrix products", "convolutions": "a step of two convolutions"}


def scaling(rounds: Rounds) -> list[Row]:
    """Each problem by all ranks beside one process with one thread; and by hand."""
    return [row for name, count in ROWS.items() for row in _scaling(rounds, name, count)]


def _scaling(rounds: Rounds, name: str, count: int) -> list[Row]:
    count //= 4 if rounds.quick else 1
    part = count // rounds.ranks
    count = part * rounds.ranks
    problem = PROBLEMS[name]()
    plain, values = problem.compiled(), problem.rows(count)
    with Runtime(rounds.ranks) as runtime, partners(rounds.ranks, name, part) as by_hand:
        f = runtime.function(
            [problem.x], (problem.output, problem.op), updates=list(problem.updates)
        )
        data = runtime.data(values)
        if not problem.updates:
            np.testing.assert_allclose(f(data), plain(values), rtol=1e-3)
        samples = rounds.seconds(ours=lambda: f(data), plain=lambda: plain(values), by_hand=by_hand)
    target = Target(SPEED, OF_LINEAR * rounds.ranks)
    one = samples["plain"]
    return [
        Row("scaling", TITLES[name], samples["ours"], "one process", one, SPEED, target),
        Row("scaling", "  the same by hand", samples["by_hand"], "one process", one, SPEED),
    ]
