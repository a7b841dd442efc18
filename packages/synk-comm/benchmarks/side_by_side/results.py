"""What was measured, as plain data: a `Result` of `Row`s of `Cell`s, to JSON and back."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .metrics import METRICS

SCHEMA = 1


@dataclass(frozen=True)
class Cell:
    """One contender in one row.

    Attributes:
        samples: seconds of one call, one number for each round, in the order of the rounds.
        note: why there is none, or what the number does not tell.
    """

    samples: tuple[float, ...] = ()
    note: str = ""

    @property
    def value(self) -> float | None:
        """The median of the rounds; None if there is none."""
        return statistics.median(self.samples) if self.samples else None

    def saved(self) -> dict[str, Any]:
        """As in a file: with median and quartiles, for readers without this program."""
        low, middle, high = _quartiles(self.samples) if self.samples else (None, None, None)
        return {**asdict(self), "median": middle, "low": low, "high": high}


@dataclass(frozen=True)
class Row:
    """One metric with one number of ranks and one size, over all contenders.

    Attributes:
        key: see `metrics.key_of`.
        metric: a key of `METRICS`.
        ranks, nbytes: 0 where it has no meaning.
        cells: by contender.
        paired: whether all cells were measured in the same rounds.
        run: which of the result's runs it is from.
    """

    key: str
    metric: str
    ranks: int
    nbytes: int
    cells: dict[str, Cell]
    paired: bool = True
    run: int = 0

    def value(self, contender: str) -> float | None:
        """A contender's median, if it has one."""
        cell = self.cells.get(contender)
        return None if cell is None else cell.value


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
    if not row.paired or len(a.samples) != len(b.samples):
        a, b = Cell((statistics.median(a.samples),)), Cell((statistics.median(b.samples),))
    if not all(b.samples):
        return None
    low, middle, high = _quartiles([x / y for x, y in zip(a.samples, b.samples)])
    return Ratio(middle, low, high)


def _quartiles(samples: Any) -> tuple[float, float, float]:
    if len(samples) < 2:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


@dataclass(frozen=True)
class Run:
    """One call of the program.

    Attributes:
        machine: what it ran on, see `machine.describe`.
        settings: how many rounds, which sizes.
        left_out: contenders that could not take part and what would help; what failed.
    """

    machine: dict[str, str]
    settings: dict[str, str]
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass
class Result:
    """What one run measured; or several, after `merged`."""

    runs: list[Run]
    rows: list[Row] = field(default_factory=list)

    def row(self, key: str) -> Row | None:
        """The row with this key, if it was measured."""
        return next((row for row in self.rows if row.key == key), None)

    def save(self, path: Path) -> None:
        """Write everything, single samples included."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {**asdict(row), "cells": {name: cell.saved() for name, cell in row.cells.items()}}
            for row in self.rows
        ]
        data = {"schema": SCHEMA, "runs": [asdict(run) for run in self.runs], "rows": rows}
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Result:
    """What `Result.save` wrote.

    Raises:
        ValueError: the file is of another kind or version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a result: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"{path} is not a result of this version of the benchmark")
    rows = []
    for row in data["rows"]:
        cells = {
            name: Cell(tuple(cell["samples"]), cell["note"]) for name, cell in row["cells"].items()
        }
        rows.append(Row(**{**row, "cells": cells}))
    return Result([Run(**run) for run in data["runs"]], rows)


def merged(old: Result, new: Result) -> Result:
    """The old result with new rows in place of the same; runs that no row is from are dropped."""
    rows = {row.key: row for row in old.rows}
    for row in new.rows:
        rows[row.key] = replace(row, run=row.run + len(old.runs))
    runs = [*old.runs, *new.runs]
    kept = sorted({row.run for row in rows.values()})
    number = {run: place for place, run in enumerate(kept)}
    both = [replace(row, run=number[row.run]) for row in rows.values()]
    return Result([runs[run] for run in kept], in_order(both))


def in_order(rows: list[Row]) -> list[Row]:
    """Sorted as tables show them: by metric, ranks and size."""
    place = {name: number for number, name in enumerate(METRICS)}
    return sorted(rows, key=lambda row: (place[row.metric], row.ranks, row.nbytes))
