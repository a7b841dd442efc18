"""Taking turns: every round asks everyone, so that all meet the same weather."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import Callable

MOST_CALLS = 2000


@dataclass(frozen=True)
class Rounds:
    """How much is measured.

    Attributes:
        count: rounds; the median of them counts.
        budget_s: how long back-to-back calls of one turn take together, as far as one is shorter.
        quick: whether sizes are small, too: no result to quote.
        ranks: processes of a parallel function, the calling one included.
        report: is told what happens.
    """

    count: int
    budget_s: float
    quick: bool
    ranks: int
    report: Callable[[str], None]

    def seconds(self, **ways: Callable[[], object]) -> dict[str, tuple[float, ...]]:
        """Time every way in every round; each round begins with another one.

        Returns:
            By name: seconds of one call, for each round.
        """
        calls = {name: self._calls(call) for name, call in ways.items()}
        samples: dict[str, list[float]] = {name: [] for name in ways}
        names = list(ways)
        enabled = gc.isenabled()
        gc.disable()
        try:
            for number in range(self.count):
                gc.collect()
                first = number % len(names)
                for name in names[first:] + names[:first]:
                    # The first call of a turn wakes up what has been asleep: it is not counted.
                    ways[name]()
                    samples[name].append(_timed(ways[name], calls[name]))
        finally:
            if enabled:
                gc.enable()
        return {name: tuple(taken) for name, taken in samples.items()}

    def _calls(self, call: Callable[[], object]) -> int:
        """How many calls fill a turn, by two trials: the first of all is never a fair one."""
        calls = 1
        for _ in range(2):
            seconds = _timed(call, calls)
            calls = max(1, min(MOST_CALLS, int(self.budget_s / max(seconds, 1e-9))))
        return calls


def _timed(call: Callable[[], object], calls: int) -> float:
    turns = range(calls)
    begin = time.perf_counter()
    for _ in turns:
        call()
    return (time.perf_counter() - begin) / calls
