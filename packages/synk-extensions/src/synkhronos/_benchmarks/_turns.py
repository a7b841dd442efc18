"""Medians of what is timed in turns, so that a busy machine slows down all alike."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any, Callable, Dict, List, Mapping

LEAST, MOST = 5, 400


def timed(act: Callable[..., Any], *arguments: Any) -> Callable[[], float]:
    """Return a function that performs an act and returns the seconds that it took."""

    def measure() -> float:
        begin = perf_counter()
        act(*arguments)
        return perf_counter() - begin

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
