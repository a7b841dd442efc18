"""Take measurements in turns, so that a busy machine slows all of them equally."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any, Callable, Dict, List, Mapping

LEAST, MOST = 5, 400
BLOCK_S = 0.002


def timed(act: Callable[..., Any], *arguments: Any) -> Callable[[], float]:
    """Return a function that performs an act and returns its seconds.

    A short act is performed several times in a row, like in a program's loop: the first time after
    other work also includes the time to wake up sleeping processes.
    """
    times = 1

    def measure() -> float:
        nonlocal times
        begin = perf_counter()
        for _ in range(times):
            act(*arguments)
        seconds = (perf_counter() - begin) / times
        times = max(1, min(100, round(BLOCK_S / seconds)))
        return seconds

    return measure


def medians(measures: Mapping[str, Callable[[], float]], budget_s: float) -> Dict[str, float]:
    """Measure in turns until the time is used up; return the median seconds of each measure.

    Args:
        measures: Functions that return seconds, by name. The first two calls of each do not count.
        budget_s: Seconds for all of them, with at least five rounds and at most 400.
    """
    for measure in measures.values():
        measure()
        measure()
    seconds: Dict[str, List[float]] = {name: [] for name in measures}
    end = perf_counter() + budget_s
    for done in range(MOST):
        if done >= LEAST and perf_counter() > end:
            break
        for name, measure in measures.items():
            seconds[name].append(measure())
    return {name: median(values) for name, values in seconds.items()}
