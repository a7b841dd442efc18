"""How quickly rows get to where they are computed: slices, and rows in any order."""

from __future__ import annotations

import numpy as np
from synk_benchmarks.results import SPEED, Row, beside

from synk_core import Runtime

from .functions import ROW, reading
from .plan import Plan
from .targets import PLAIN

NBYTES, QUICK_NBYTES = 256 << 20, 16 << 20


def inputs(plan: Plan) -> list[Row]:
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
        np.testing.assert_allclose(f(data, batch=half), plain(values[half]), rtol=1e-3, atol=10)
        np.testing.assert_allclose(f(data, batch=order), plain(values[order]), rtol=1e-3, atol=10)
        samples = plan.seconds(
            all=lambda: f(data),
            all_plain=lambda: plain(values),
            slice=lambda: f(data, batch=half),
            slice_plain=lambda: plain(values[half]),
            shuffled=lambda: f(data, batch=order),
            shuffled_plain=lambda: plain(values[order]),
            rows_only=lambda: values[order],
        )
    nbytes = values.nbytes

    def row(what: str, ours: str, name: str, theirs: str, used: int) -> Row:
        times = samples[ours], name, samples[theirs]
        return beside("inputs", what, *times, kind=SPEED, nbytes=used)

    return [
        row("all rows, summed", "all", PLAIN, "all_plain", nbytes),
        row("a slice of half the rows", "slice", "plain f(x[a:b])", "slice_plain", nbytes // 2),
        row("all rows, shuffled", "shuffled", "plain f(x[index])", "shuffled_plain", nbytes),
        row("all rows, shuffled", "shuffled", "x[index] alone", "rows_only", nbytes),
    ]
