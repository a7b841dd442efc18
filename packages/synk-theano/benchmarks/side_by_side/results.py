"""What was measured, as plain data: a `Result` of `Row`s, to JSON and back."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
RATIO, ADDED, SPEED, AMOUNT = "ratio", "added", "speed", "amount"


@dataclass(frozen=True)
class Target:
    """What a row aims at.

    Attributes:
        kind: which number it is about: `RATIO` is ours / theirs, `ADDED` is ours - theirs, `SPEED`
            is theirs / ours, `AMOUNT` is ours alone.
        limit: in seconds for `ADDED` and `AMOUNT`. For `SPEED` at least, for the others at most.
    """

    kind: str
    limit: float

    def reached(self, value: float) -> bool:
        """Whether a value of this kind is good enough."""
        return value >= self.limit if self.kind == SPEED else value <= self.limit


@dataclass(frozen=True)
class Row:
    """One thing beside another, measured in the same rounds.

    Attributes:
        group: which part of the benchmark it is from.
        what: what was done.
        ours, theirs: a number for each round: seconds, or bytes if `unit` says so.
        beside: what it is compared with.
        kind: which comparison is shown, see `Target`.
        target: what is aimed at, of this kind or another.
        nbytes: how many bytes of input were used, for bandwidths; 0 where it has no meaning.
        note: why there is no number, or what the number does not tell.
    """

    group: str
    what: str
    ours: tuple[float, ...]
    beside: str = ""
    theirs: tuple[float, ...] = ()
    kind: str = RATIO
    target: Target | None = None
    unit: str = "s"
    nbytes: int = 0
    note: str = ""

    def value(self, kind: str = "") -> float | None:
        """The median of the rounds' own comparisons; None if there is none."""
        values = self.values(kind or self.kind)
        return statistics.median(values) if values else None

    def values(self, kind: str) -> list[float]:
        """The comparisons of this kind, one for each round."""
        if kind == AMOUNT:
            return list(self.ours)
        pairs = list(zip(self.ours, self.theirs))
        if kind == ADDED:
            return [a - b for a, b in pairs]
        return [b / a if kind == SPEED else a / b for a, b in pairs]

    def close(self) -> bool:
        """Whether the target lies within the middle half of the rounds, so that luck decides."""
        if self.target is None:
            return False
        values = self.values(self.target.kind)
        if len(values) < 2:
            return False
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return low < self.target.limit < high


@dataclass
class Result:
    """What one run measured.

    Attributes:
        machine: what it ran on.
        settings: how it was run.
        left_out: what could not be measured, and why.
    """

    machine: dict[str, str]
    settings: dict[str, str]
    left_out: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write everything, single samples included."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {
                **asdict(row),
                "value": row.value(),
                "medians": [_median(row.ours), _median(row.theirs)],
            }
            for row in self.rows
        ]
        data = {"schema": SCHEMA, **asdict(self), "rows": rows}
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _median(samples: tuple[float, ...]) -> float | None:
    return statistics.median(samples) if samples else None


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
    return Result(
        data["machine"], data["settings"], data["left_out"], [_row(row) for row in data["rows"]]
    )


def _row(data: dict[str, Any]) -> Row:
    data = {name: data[name] for name in Row.__dataclass_fields__}
    data["ours"], data["theirs"] = tuple(data["ours"]), tuple(data["theirs"])
    data["target"] = data["target"] and Target(**data["target"])
    return Row(**data)
