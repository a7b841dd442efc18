"""What was measured: cells of samples, rows of cells, comparisons, and lines in a file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

SECONDS, BYTES = "s", "B"
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
FAILED = "failed: "


class NotOfferedError(Exception):
    """A contender has no way to do that; the text says so in a few words."""


def failure(error: BaseException) -> str:
    """Return the note on what raised this exception."""
    return f"{FAILED}{type(error).__name__}: {error}"[:300]


@dataclass(frozen=True)
class Cell:
    """What one contender did: a number for each round, and a remark, or why there is no number."""

    samples: tuple[float, ...] = ()
    note: str = ""

    @property
    def value(self) -> float | None:
        """The median of the rounds; None if there is none."""
        return statistics.median(self.samples) if self.samples else None


@dataclass(frozen=True)
class Row:
    """One thing that was measured, over all contenders.

    `group` is its table, `label` its first column; `ranks` and `images` are 0 if they mean nothing.
    """

    group: str
    label: str
    cells: dict[str, Cell]
    unit: str = SECONDS
    ranks: int = 0
    images: int = 0

    def value(self, contender: str) -> float | None:
        """Return a contender's median, if it has one."""
        return self.cells.get(contender, Cell()).value


def row_of(group: str, label: str, samples: Mapping[str, Sequence[float]], **more: Any) -> Row:
    """Return the row of these samples by contender."""
    cells = {name: Cell(tuple(taken)) for name, taken in samples.items()}
    return Row(group, label, cells, **more)


def ratio(row: Row, ours: str, other: str) -> float | None:
    """Return ours / the other's, the median of the rounds' own ratios; None without numbers.

    The rounds are compared one by one, because a machine that slows down in one of them slows
    both. If the two have different numbers of rounds, the medians are compared.
    """
    a, b = row.cells.get(ours, Cell()).samples, row.cells.get(other, Cell()).samples
    if not a or not b or not all(b):
        return None
    if len(a) != len(b):
        return statistics.median(a) / statistics.median(b)
    return statistics.median(x / y for x, y in zip(a, b))


def joined(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the cells of those in one that have group, label and ranks in common."""
    found: dict[Any, Row] = {}
    for row in rows:
        key = row.group, row.label, row.ranks
        known = found.get(key, row)
        found[key] = replace(known, cells={**known.cells, **row.cells})
    return list(found.values())


def write_row(path: Path, row: Row) -> None:
    """Append a row to a file, as one line, so that a run that is cut off keeps what it has."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def read_rows(path: Path) -> list[Row]:
    """Read the rows that a process has written so far; half a line is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    rows = []
    for content in map(json.loads, lines):
        cells = {
            name: Cell(tuple(cell["samples"]), cell["note"])
            for name, cell in content["cells"].items()
        }
        rows.append(Row(**{**content, "cells": cells}))
    return rows
