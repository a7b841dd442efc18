"""Hold what was measured as plain data, compare it, write it as JSON and read it back."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Callable

SCHEMA = 2
SECONDS, BYTES, COUNT = "s", "B", "1"
"""Units of numbers."""
RATIO, ADDED, SPEED, AMOUNT = "ratio", "added", "speed", "amount"
"""Kinds of comparisons: ours / theirs, ours - theirs, theirs / ours, ours alone."""
OURS = "ours"
"""Name of our cell where rows have no columns, but each has its own counterpart."""
NOT_FINISHED = "not finished: "
"""Beginning of the names, among what was left out, of what broke."""


@dataclass(frozen=True)
class Spread:
    """A median over the rounds, and its quartiles."""

    value: float
    low: float
    high: float


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

    @property
    def spread(self) -> Spread | None:
        """The median with its quartiles; None if there is none."""
        return _spread(self.samples) if self.samples else None


@dataclass(frozen=True)
class Row:
    """One thing that was measured, over all contenders.

    Attributes:
        key: names it within a result: what is measured again replaces the row of the same key.
        group: which part of the benchmark it is from.
        label: what readers see.
        cells: by contender.
        unit: of the numbers.
        kind: which comparison is shown.
        more_is_better: whether the best is the largest.
        ranks: processes at work; 0 where it has no meaning.
        nbytes: of an array, or used by a call; 0 where it has no meaning.
        images: of a step, over all ranks; 0 where it is no step.
        paired: whether all cells were measured in the same rounds.
        run: which of the result's runs it is from.
    """

    key: str
    group: str
    label: str
    cells: dict[str, Cell]
    unit: str = SECONDS
    kind: str = RATIO
    more_is_better: bool = False
    ranks: int = 0
    nbytes: int = 0
    images: int = 0
    paired: bool = True
    run: int = 0

    def value(self, contender: str) -> float | None:
        """Return a contender's median, if it has one."""
        cell = self.cells.get(contender)
        return None if cell is None else cell.value

    def best(self, contenders: Sequence[str]) -> str:
        """Return which of these contenders has the best median; empty if none has one."""
        known = [name for name in contenders if self.value(name) is not None]
        choose = max if self.more_is_better else min
        return choose(known, key=lambda name: self.value(name) or 0.0, default="")

    def saved(self) -> dict[str, Any]:
        """Return it as in a file, with medians for readers without this program."""
        cells = {
            name: {**asdict(cell), "median": cell.value, "low": None, "high": None}
            for name, cell in self.cells.items()
        }
        for name, cell in self.cells.items():
            if cell.spread:
                cells[name].update(low=cell.spread.low, high=cell.spread.high)
        return {**asdict(self), "cells": cells}


def beside(
    group: str,
    label: str,
    ours: Sequence[float],
    name: str,
    theirs: Sequence[float],
    note: str = "",
    **more: Any,
) -> Row:
    """Return the row of one thing of ours beside its own counterpart of that name."""
    cells = {OURS: Cell(tuple(ours)), name: Cell(tuple(theirs), note)}
    return Row(f"{group}/{label}/{name}", group, label, cells, **more)


def alone(
    group: str,
    label: str,
    contender: str,
    ranks: int,
    samples: Sequence[float],
    note: str = "",
    **more: Any,
) -> Row:
    """Return the row of what one contender did on so many ranks."""
    key = f"{group}/{label}/{contender}/{ranks}"
    return Row(key, group, label, {contender: Cell(tuple(samples), note)}, ranks=ranks, **more)


def compare(row: Row, ours: str, other: str, kind: str = RATIO) -> Spread | None:
    """Compare ours with the other's, round by round; None where that says nothing.

    The rounds are compared one by one, since a machine that slows down in one of them slows
    both. The median may therefore differ a little from the comparison of the two medians.
    """
    a, b = row.cells.get(ours), row.cells.get(other)
    if kind == AMOUNT:
        return a.spread if a else None
    if a is None or b is None or not a.samples or not b.samples:
        return None
    if not row.paired or len(a.samples) != len(b.samples):
        a, b = Cell((statistics.median(a.samples),)), Cell((statistics.median(b.samples),))
    pairs = list(zip(a.samples, b.samples))
    if kind == ADDED:
        return _spread([x - y for x, y in pairs])
    if not all(a.samples if kind == SPEED else b.samples):
        return None
    return _spread([y / x if kind == SPEED else x / y for x, y in pairs])


def _spread(samples: Sequence[float]) -> Spread:
    if len(samples) < 2:
        return Spread(samples[0], samples[0], samples[0])
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Spread(middle, low, high)


@dataclass(frozen=True)
class Run:
    """One call of a program.

    Attributes:
        machine: what it ran on, see `machine.describe`.
        settings: how many rounds, which sizes.
        left_out: who could not take part and what would help; what broke (see `NOT_FINISHED`).
        about: what processes found out while they measured.
    """

    machine: dict[str, str]
    settings: dict[str, str]
    left_out: dict[str, str] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether nothing broke."""
        return not any(name.startswith(NOT_FINISHED) for name in self.left_out)

    @property
    def facts(self) -> dict[str, str]:
        """Where and how it measured."""
        return {**self.machine, **self.settings, **self.about}


@dataclass
class Result:
    """What one run measured; or several, after `merged`."""

    runs: list[Run]
    rows: list[Row] = field(default_factory=list)

    @property
    def left_out(self) -> list[str]:
        """What was left out in any run, as lines."""
        return [
            f"left out: {name}: {why}" for run in self.runs for name, why in run.left_out.items()
        ]

    def columns(self, names: Sequence[str]) -> list[str]:
        """Return which of these names have a cell in any row."""
        return [name for name in names if any(name in row.cells for row in self.rows)]

    def save(self, path: Path) -> None:
        """Write everything, single samples included; readers see the old file or all of the new."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [row.saved() for row in self.rows]
        data = {"schema": SCHEMA, "runs": [asdict(run) for run in self.runs], "rows": rows}
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        new.replace(path)


def load(path: Path) -> Result:
    """Read what `Result.save` wrote, or a benchmark before there was schema 2.

    Raises:
        ValueError: the file is of another kind or version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a result: {error}") from error
    if not isinstance(data, dict) or data.get("schema") not in (1, SCHEMA):
        raise ValueError(f"{path} is not a result of this version of the benchmark")
    runs = data.get("runs") or [{name: data[name] for name in _fields(Run) if name in data}]
    ranks = int(runs[0]["settings"].get("ranks", 0)) if data["schema"] == 1 else 0
    return Result([Run(**run) for run in runs], [read_row(row, ranks) for row in data["rows"]])


# What schema 1 called them in one benchmark or another.
_NAMES = {"metric": "group", "part": "group", "what": "label", "gpus": "ranks"}


def read_row(data: dict[str, Any], ranks: int = 0) -> Row:
    """Build a row from what was written of it.

    Args:
        data: of a file.
        ranks: of its run, where schema 1 tells it there only.
    """
    data = {_NAMES.get(name, name): value for name, value in data.items()}
    more = {name: value for name, value in data.items() if name in _fields(Row)}
    more["unit"] = more.get("unit", SECONDS) or COUNT
    if "cells" in data:
        cells = {
            name: Cell(tuple(cell["samples"]), cell["note"], cell.get("at_least", False))
            for name, cell in data["cells"].items()
        }
        return Row(**{"label": "", **more, "cells": cells})
    about = [more.pop("group"), more.pop("label")]
    if "rounds" in data:
        about += [data["contender"], more.pop("ranks"), data["rounds"], data["note"]]
        return alone(*about, **more)
    about += [data["ours"], data["beside"], data["theirs"], data["note"]]
    return beside(*about, ranks=ranks, **more)


def _fields(kind: Any) -> list[str]:
    return list(kind.__dataclass_fields__)


def merged(old: Result, new: Result, order: Callable[[Row], Any]) -> Result:
    """Return the old result with new rows in place of the same, in order.

    Runs that no row is from are dropped.
    """
    rows = {row.key: row for row in old.rows}
    rows.update({row.key: replace(row, run=row.run + len(old.runs)) for row in new.rows})
    runs = [*old.runs, *new.runs]
    kept = sorted({row.run for row in rows.values()})
    number = {run: place for place, run in enumerate(kept)}
    both = [replace(row, run=number[row.run]) for row in rows.values()]
    return Result([runs[run] for run in kept], sorted(both, key=order))
