"""Medians of what is timed in turns, so that a busy machine slows down all alike."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any, Callable, Dict, List, Mapping

LEAST, MOST = 5, 400
BLOCK_S = 0.002


def timed(act: Callable[..., Any], *arguments: Any) -> Callable[[], float]:
    """Return a function that performs an act, and returns the seconds that it took.

    An act that is short is performed several times in a row, as a program's loop does: the first
    time after something else also pays for waking up those who had gone to sleep.
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
    """Measure each in turns, until the time is used up; return the median seconds of each.

    Args:
        measures: Functions that return seconds, by name. Each is called twice before it counts.
        budget_s: Seconds for all of them. At least five rounds are made, at most 400.
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
