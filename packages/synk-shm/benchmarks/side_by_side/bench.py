"""Choose the number of rounds, keep one array of each contender, make rows of parts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable

from synk_benchmarks import rounds
from synk_benchmarks.results import COUNT, SECONDS, Cell, Row

from .contender import Contender, Pair

LARGE = 16 << 20
"""Bytes from which on an array gets fewer rounds."""
Parts = rounds.Parts


@dataclass
class Bench:
    """The argument of a metric function.

    Attributes:
        contenders: to be measured.
        quick: fewer rounds and shorter loops; the ratios are rougher.
        large: bytes of the largest arrays.
        say: shows a line of progress.
        group: the metric that is being measured.
    """

    contenders: list[Contender]
    quick: bool
    large: int
    say: Callable[[str], None]
    group: str = ""

    def rounds(self, nbytes: int) -> int:
        """Return the number of rounds for an array size."""
        if self.quick:
            return 2 if nbytes >= LARGE else 3
        return 9 if nbytes >= LARGE else 15

    def repeats(self, count: int) -> int:
        """Return the number of repetitions of a short act within one turn."""
        return max(1, count // 5) if self.quick else count

    def take_turns(
        self, label: str, count: int, measure: Callable[[Contender], Parts]
    ) -> dict[str, dict[str, Cell]]:
        """Measure every contender once in every round, see `synk_benchmarks.rounds.take_turns`."""

        def say(text: str) -> None:
            self.say(f"{label}: {text}")

        return rounds.take_turns(self.contenders, count, measure, say)


@contextlib.contextmanager
def one_each(count: int, value: float) -> Iterator[Callable[[Contender], Pair]]:
    """Yield a function that returns one array of a contender, filled with a value."""
    made: dict[str, tuple[Contender, Pair]] = {}

    def get(contender: Contender) -> Pair:
        if contender.name not in made:
            pair = contender.create(count)
            made[contender.name] = contender, pair
            pair[0].fill(value)
        return made[contender.name][1]

    try:
        yield get
    finally:
        while made:
            _, (contender, pair) = made.popitem()
            keep = pair[1]
            del pair
            contender.destroy(keep)


def rows(
    bench: Bench,
    cells: dict[str, dict[str, Cell]],
    titles: dict[str, tuple[str, str]],
    unit: str = SECONDS,
) -> list[Row]:
    """Make rows out of parts: `titles` gives each part its (key, label)."""
    return [
        Row(key, bench.group, label, cells[part], unit)
        for part, (key, label) in titles.items()
        if part in cells
    ]


def counts(bench: Bench, key: str, label: str, cells: dict[str, Cell], **options: Any) -> Row:
    """Make one row of plain numbers."""
    return Row(key, bench.group, label, cells, COUNT, **options)
