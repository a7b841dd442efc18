"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from synk_benchmarks.rounds import time_in_turns


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        rounds: how many; the median of them counts.
        budget_s: how long back-to-back calls of one turn take together, as far as one is shorter.
        quick: whether sizes are small, too: no result to quote.
        ranks: processes of a parallel function, the calling one included.
        report: shows a line of progress.
    """

    rounds: int
    budget_s: float
    quick: bool
    ranks: int
    report: Callable[[str], None]

    def seconds(self, **ways: Callable[[], object]) -> dict[str, tuple[float, ...]]:
        """Time every way in every round; return by name the seconds of one call."""
        return time_in_turns(ways, self.rounds, self.budget_s)
