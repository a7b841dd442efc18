"""How quickly rows get to where they are computed: slices, and rows in any order."""

from __future__ import annotations

import numpy as np

from synk_theano import Runtime

from .functions import ROW, reading
from .results import SPEED, Row
from .rounds import Rounds

NBYTES, QUICK_NBYTES = 256 << 20, 16 << 20


def inputs(rounds: Rounds) -> list[Row]:
    """Rows of 4 kB, read once: by slices, and shuffled; beside one process that does the same."""
    problem = reading()
    count = (QUICK_NBYTES if rounds.quick else NBYTES) // (4 * ROW)
    plain = problem.compiled()
    with Runtime(rounds.ranks) as runtime:
        f = runtime.function([problem.x], (problem.output, problem.op))
        data = runtime.data(problem.rows(count))
        values = data.data
        order = np.random.RandomState(0).permutation(count)
        half = slice(count // 4, count // 4 + count // 2)
        np.testing.assert_allclose(f(data, batch=half), plain(values[half]), rtol=1e-3, atol=10)
        np.testing.assert_allclose(f(data, batch=order), plain(values[order]), rtol=1e-3, atol=10)
        samples = rounds.seconds(
            all=lambda: f(data),
            all_plain=lambda: plain(values),
            slice=lambda: f(data, batch=half),
            slice_plain=lambda: plain(values[half]),
            shuffled=lambda: f(data, batch=order),
            shuffled_plain=lambda: plain(values[order]),
            rows_only=lambda: values[order],
        )
    nbytes = values.nbytes

    def row(what: str, ours: str, beside: str, theirs: str, used: int) -> Row:
        return Row("inputs", what, samples[ours], beside, samples[theirs], SPEED, nbytes=used)

    return [
        row("all rows, summed", "all", "plain Theano", "all_plain", nbytes),
        row("a slice of half the rows", "slice", "plain f(x[a:b])", "slice_plain", nbytes // 2),
        row("all rows, shuffled", "shuffled", "plain f(x[index])", "shuffled_plain", nbytes),
        row("all rows, shuffled", "shuffled", "x[index] alone", "rows_only", nbytes),
    ]
