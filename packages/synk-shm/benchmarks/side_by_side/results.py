"""What was measured, as plain data: a `Result` of `Row`s of `Cell`s, to JSON and back."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1

SECONDS = "s"
BYTES = "B"
COUNT = ""


@dataclass(frozen=True)
class Cell:
    """One contender in one row.

    Attributes:
        samples: one number for each round, in the order of the rounds.
        note: why there is none, or what the number does not tell.
        at_least: whether the measurement stopped at this number, so that more may be possible.
    """

    samples: tuple[float, ...] = ()
    note: str = ""
    at_least: bool = False

    @property
    def value(self) -> float | None:
        """The median of the rounds; None if there is none."""
        return statistics.median(self.samples) if self.samples else None


@dataclass(frozen=True)
class Row:
    """One metric over all contenders.

    Attributes:
        key: what targets refer to; does not change with the sizes.
        group: the name of the metric function it comes from.
        label: what readers see.
        unit: of the numbers: `SECONDS`, `BYTES` or `COUNT`.
        more_is_better: true for how many arrays are possible, and nothing else so far.
    """

    key: str
    group: str
    label: str
    unit: str
    cells: dict[str, Cell]
    more_is_better: bool = False

    def value(self, contender: str) -> float | None:
        """A contender's median, if it has one."""
        cell = self.cells.get(contender)
        return None if cell is None else cell.value

    def best(self, contenders: list[str]) -> str | None:
        """Which of these contenders has the best median."""
        values = [(self.value(name), name) for name in contenders]
        known = [(value, name) for value, name in values if value is not None]
        if not known:
            return None
        return (max if self.more_is_better else min)(known, key=lambda pair: pair[0])[1]


@dataclass(frozen=True)
class Ratio:
    """How one contender compares with another: the median of the rounds, and its quartiles."""

    value: float
    low: float
    high: float


def ratio(row: Row, ours: str, other: str) -> Ratio | None:
    """Ours over the other's, round by round; None where it says nothing.

    The rounds are compared one by one, since a machine that slows down in one of them slows
    both. It may therefore differ a little from the ratio of the two medians.
    """
    a, b = row.cells.get(ours), row.cells.get(other)
    if a is None or b is None or not a.samples or not b.samples:
        return None
    if len(a.samples) != len(b.samples):
        a, b = Cell((statistics.median(a.samples),)), Cell((statistics.median(b.samples),))
    if not all(b.samples):
        return None
    ratios = [x / y for x, y in zip(a.samples, b.samples)]
    if len(ratios) < 2:
        return Ratio(ratios[0], ratios[0], ratios[0])
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(middle, low, high)


@dataclass
class Result:
    """One run.

    Attributes:
        contenders: the columns, in order.
        peers: those of them that "the best peer" is chosen from.
        left_out: contenders that could not take part and what would help; metrics that failed.
        machine: what it ran on, see `machine.describe`.
        settings: how long and how large.
    """

    contenders: list[str]
    peers: list[str]
    machine: dict[str, str]
    settings: dict[str, Any]
    left_out: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def row(self, key: str) -> Row | None:
        """The row with this key, if it was measured."""
        return next((row for row in self.rows if row.key == key), None)

    def save(self, path: Path) -> None:
        """Write everything, single samples included."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1)
        path.write_text(text + "\n", encoding="utf-8")


def load(path: Path) -> Result:
    """What `Result.save` wrote.

    Raises:
        ValueError: the file is of another kind or version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a result: {error}") from error
    if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
        raise ValueError(f"{path} is not a result of this version of the benchmark")
    rows = [
        Row(
            **{
                **row,
                "cells": {
                    name: Cell(tuple(cell["samples"]), cell["note"], cell["at_least"])
                    for name, cell in row["cells"].items()
                },
            }
        )
        for row in data.pop("rows")
    ]
    return Result(**data, rows=rows)
