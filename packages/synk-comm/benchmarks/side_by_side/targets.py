"""What synk-comm aims at, and whether it got there.

A target is about one metric over a span of sizes: a ratio of our time to that of a peer or of the
reference, or seconds of ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from .metrics import COLUMNS, GLOO, KB, MB, MPICH, OURS, REFERENCE
from .results import Ratio, Result, Row, ratio

YES, NO, UNKNOWN = "yes", "NO", "?"


@dataclass(frozen=True)
class Target:
    """At most so much.

    Attributes:
        metric, ranks: of the rows it is about; 0 ranks: of every number of them.
        limit: of the ratio, or seconds if `to` is empty.
        to: `MPICH`, `GLOO`, `REFERENCE`, or empty.
        smallest, largest: the sizes it is about.
    """

    metric: str
    ranks: int
    limit: float
    to: str = ""
    smallest: int = 0
    largest: int = 1 << 62

    def holds_for(self, row: Row) -> bool:
        """Whether it is about this row."""
        return (
            row.metric == self.metric
            and self.ranks in (0, row.ranks)
            and self.smallest <= row.nbytes <= self.largest
        )


# The targets for four ranks are meant for machines with two cores, where ranks share them.
TARGETS: tuple[Target, ...] = (
    Target("all_reduce", 2, 0.9, MPICH, 4, 4 * KB),
    Target("all_reduce", 2, 0.5, MPICH, 16 * KB, MB),
    Target("all_reduce", 2, 0.6, MPICH, 4 * MB, 16 * MB),
    Target("all_reduce", 2, 0.3, MPICH, 64 * MB),
    Target("all_reduce", 2, 0.05, GLOO, 4, 256 * KB),
    Target("all_reduce", 2, 0.15, GLOO, MB, 4 * MB),
    Target("all_reduce", 2, 0.3, GLOO, 16 * MB),
    Target("all_reduce", 2, 1.2, REFERENCE, 64 * MB),
    Target("all_reduce_shared", 2, 0.75, REFERENCE, 64 * MB),
    Target("all_reduce", 4, 1.0, MPICH, 4, 4),
    Target("all_reduce", 4, 0.6, MPICH, KB, 16 * MB),
    Target("all_reduce", 4, 0.35, MPICH, 64 * MB),
    Target("barrier", 2, 0.4, MPICH),
    Target("barrier", 2, 0.02, REFERENCE),
    Target("broadcast", 2, 0.5, MPICH, 64 * KB, 64 * KB),
    Target("broadcast", 2, 0.6, MPICH, MB, MB),
    Target("broadcast", 2, 1.05, MPICH, 64 * MB, 64 * MB),
    Target("all_gather", 2, 1.1, MPICH),
    Target("fused", 2, 0.4, REFERENCE),
    Target("all_reduce_zmq", 2, 1.0, GLOO, 16 * MB, 16 * MB),
    Target("mismatch", 0, 10e-3),
    Target("dead_peer", 0, 50e-3),
    Target("import", 0, 1.3, REFERENCE),
)


@dataclass(frozen=True)
class Verdict:
    """A row compared with one column, and what is aimed at there.

    Attributes:
        to: the column; empty for seconds of ours.
        ratio: ours to it; None if one of the two has no number, or `to` is empty.
        target: what is aimed at; None if nothing is.
        reached: `YES`, `NO`, `UNKNOWN` (not measured), or empty without a target.
        close: whether the limit lies within the middle half of the rounds: luck decides.
    """

    row: Row
    to: str
    ratio: Ratio | None
    target: Target | None = None
    reached: str = ""
    close: bool = False


def judge(row: Row) -> list[Verdict]:
    """The row beside each other column that has a number or a target, then by itself."""
    found = []
    for to in (*COLUMNS[1:], ""):
        target = next((one for one in TARGETS if one.to == to and one.holds_for(row)), None)
        compared = ratio(row, OURS, to) if to else None
        if target is None:
            if compared is not None:
                found.append(Verdict(row, to, compared))
            continue
        spread = compared if to else _spread(row)
        if spread is None:
            found.append(Verdict(row, to, None, target, UNKNOWN))
            continue
        reached = YES if spread.value <= target.limit else NO
        close = spread.low < target.limit < spread.high
        found.append(Verdict(row, to, compared, target, reached, close))
    return found


def tally(result: Result) -> dict[str, int]:
    """How many targets were reached, missed, and not measured in the rows that there are."""
    verdicts = [found for row in result.rows for found in judge(row) if found.target]
    return {word: sum(found.reached == word for found in verdicts) for word in (YES, NO, UNKNOWN)}


def _spread(row: Row) -> Ratio | None:
    """Our own seconds, as if compared with one second."""
    cell = row.cells.get(OURS)
    if cell is None or cell.value is None:
        return None
    saved = cell.saved()
    return Ratio(saved["median"], saved["low"], saved["high"])
