"""Say what is aimed at, and whether it was reached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .results import ADDED, AMOUNT, RATIO, SPEED, Result, Row, Spread, compare
from .text import amount, number

BEST = "best peer"
YES, NO, UNKNOWN = "yes", "NO", "?"


@dataclass(frozen=True)
class Target:
    """At most so much; for `SPEED`, or if `at_least` says so, at least.

    Attributes:
        key: of the row it is about, or of the group of rows.
        limit: of the comparison; for `SPEED` for each rank; of our number if `to` is empty.
        to: with whom ours is compared: a contender, `BEST`, or empty.
        kind: of the comparison.
        ranks: of the rows it is about; 0 for any number.
        smallest, largest: the `nbytes` of the rows it is about.
        at_least: the other way round.
    """

    key: str
    limit: float
    to: str = ""
    kind: str = RATIO
    ranks: int = 0
    smallest: int = 0
    largest: int = 1 << 62
    at_least: bool = False

    def holds_for(self, row: Row) -> bool:
        """Return whether it is about this row."""
        return (
            self.key in (row.key, row.group)
            and self.ranks in (0, row.ranks)
            and self.smallest <= row.nbytes <= self.largest
        )

    def judge(self, row: Row, ours: str, peers: Sequence[str] = ()) -> Verdict:
        """Judge a row.

        Args:
            row: that it holds for.
            ours: the name of our cell.
            peers: of whom one is `BEST`.
        """
        to = row.best(peers) if self.to == BEST else self.to
        found = compare(row, ours, to, self.kind if self.to else AMOUNT)
        return Verdict(row, to, found, self)


@dataclass(frozen=True)
class Verdict:
    """A row seen with one target.

    Attributes:
        to: with whom ours was compared; empty for a number of ours.
        found: the comparison, or our number; None if it was not measured.
    """

    row: Row
    to: str
    found: Spread | None
    target: Target

    @property
    def limit(self) -> float:
        """The limit for this row."""
        each = self.target.kind == SPEED and self.row.ranks
        return self.target.limit * (self.row.ranks if each else 1)

    @property
    def reached(self) -> str:
        """`YES`, `NO`, or `UNKNOWN` if it was not measured."""
        if self.found is None:
            return UNKNOWN
        value = self.found.value
        return YES if (value >= self.limit if self._at_least else value <= self.limit) else NO

    @property
    def close(self) -> bool:
        """Whether the limit lies within the middle half of the rounds, so that luck decides."""
        return self.found is not None and self.found.low < self.limit < self.found.high

    @property
    def text(self) -> str:
        """As in a table: <= 0.85 yes~."""
        numbers = not self.target.to or self.target.kind == ADDED
        limit = amount(self.limit, self.row.unit) if numbers else number(self.limit, exact=True)
        sign = ">=" if self._at_least else "<="
        return f"{sign} {limit} {self.reached}{'~' if self.close else ''}"

    @property
    def _at_least(self) -> bool:
        return self.target.at_least or self.target.kind == SPEED


def summary(result: Result, verdicts: Iterable[Verdict]) -> str:
    """Return a sentence on how many targets were reached."""
    words = [verdict.reached for verdict in verdicts]
    text = f"{words.count(YES)} of {len(words)} targets reached, {words.count(NO)} not"
    if UNKNOWN in words:
        text += f", {words.count(UNKNOWN)} not measured"
    if any(run.settings.get("rounds", "").startswith("quick") for run in result.runs):
        text += " (a quick run: no result to quote)"
    return f"{text}."
