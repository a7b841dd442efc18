"""From fork() to the first result: what a short program waits for."""

from __future__ import annotations

import time

from .job import Report, Settings
from .tables import OURS

TIMES = 3


def main(settings: Settings, report: Report) -> None:
    """Measure the first start of this process, and later ones."""
    report.ready()
    began = time.perf_counter()
    import numpy as np
    import theano.tensor as T

    import synkhronos as synk

    report.row("fork", "import synkhronos, and Theano", OURS, time.perf_counter() - began)
    rows = np.arange(64, dtype="float32")
    forks, totals = [], []
    for _ in range(TIMES):
        began = time.perf_counter()
        synk.fork(**settings.devices(), verbose=False)
        forks.append(time.perf_counter() - began)
        x = T.fvector("x")
        f = synk.function([x], outputs=(2 * x).mean())
        result = float(f(rows))
        totals.append(time.perf_counter() - began)
        assert np.isclose(result, 2 * rows.mean()), result
        synk.close()
    first = "the first in its process"
    report.row("fork", "until fork() returns", OURS, forks[0], note=first)
    report.row("fork", "until the first result", OURS, totals[0], note=first)
    report.row("fork", "the same after close()", OURS, totals[1:])
