"""From fork() to the first result: what a short program waits for."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import asdict, replace

from .job import Report, Settings
from .tables import OURS

TIMES = 3
WARM = "from gpubench import job, starting; starting.start(job.Settings(**{settings}))"


def main(settings: Settings, report: Report) -> None:
    """Measure the first start of this process, and later ones."""
    if not settings.tiny:
        # Another process compiles: with a cold cache that would be all there is to see.
        one = asdict(replace(settings, gpus=1))
        command = [sys.executable, "-c", WARM.format(settings=one)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    report.ready()
    began = time.perf_counter()
    import synkhronos

    seconds = time.perf_counter() - began
    report.row("fork", f"import {synkhronos.__name__}, and Theano", OURS, seconds)
    forks, totals = zip(*(start(settings) for _ in range(2 if settings.tiny else TIMES)))
    first = "the first in its process"
    report.row("fork", "until fork() returns", OURS, forks[0], note=first)
    report.row("fork", "until the first result", OURS, totals[0], note=first)
    report.row("fork", "the same after close()", OURS, totals[1:])


def start(settings: Settings) -> tuple[float, float]:
    """Seconds until fork() returns, and until a trivial function has given a result."""
    import synkhronos as synk  # isort: skip - brings Theano to life
    import numpy as np
    import theano.tensor as T

    rows = np.arange(64, dtype="float32")
    began = time.perf_counter()
    synk.fork(**settings.devices(), verbose=False)
    forked = time.perf_counter() - began
    x = T.fvector("x")
    f = synk.function([x], outputs=(2 * x).mean())
    result = float(f(rows))
    total = time.perf_counter() - began
    assert np.isclose(result, 2 * rows.mean()), result
    synk.close()
    return forked, total
