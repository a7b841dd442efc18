"""What was measured, as plain data: rows, one line of JSON for each."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class Row:
    """One thing that one contender did.

    Attributes:
        part: of the benchmark: "resnet", "allreduce" ...
        what: was done.
        contender: who did it.
        gpus: number of GPUs (or processes) at work.
        rounds: a number for each round, in `unit`: of one step, one call, one start.
        unit: "s" for seconds, "B" for bytes, "1" for plain numbers.
        images: per step, over all GPUs; 0 where it has no meaning.
        nbytes: that one call reduces or copies; 0 where it has no meaning.
        note: what the number does not tell.
    """

    part: str
    what: str
    contender: str
    gpus: int
    rounds: tuple[float, ...]
    unit: str = "s"
    images: int = 0
    nbytes: int = 0
    note: str = ""

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def images_per_s(self) -> float:
        """Images of a step over the median time of a step."""
        return self.images / self.median


@dataclass
class Result:
    """A run: where and how, its rows, and what it left out."""

    machine: dict[str, str]
    settings: dict[str, str]
    rows: list[Row] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write all of it; whoever reads meanwhile sees the old or the new file, never half."""
        content = {"schema": SCHEMA, **asdict(self)}
        for row, written in zip(self.rows, content["rows"]):
            written["median"] = row.median
        new = path.with_suffix(".new")
        new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        new.replace(path)


def load(path: Path) -> Result:
    """Read what `Result.save` wrote.

    Raises:
        ValueError: it has another schema.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.pop("schema", None) != SCHEMA:
        raise ValueError(f"{path}: expected the results of this program, schema {SCHEMA}")
    content["rows"] = [_row(row) for row in content["rows"]]
    return Result(**content)


def read_lines(path: Path) -> tuple[list[Row], dict[str, str]]:
    """Rows and remarks that a job has written so far; half a line at the end is left out."""
    rows: list[Row] = []
    about: dict[str, str] = {}
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    for line in lines:
        content = json.loads(line)
        if "about" in content:
            about.update(content["about"])
        else:
            rows.append(_row(content))
    return rows, about


def _row(content: dict[str, Any]) -> Row:
    content.pop("median", None)
    return Row(**{**content, "rounds": tuple(content["rounds"])})
