"""Read and check logs of a training, as CSV or JSON lines."""

from __future__ import annotations

import csv
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple, Union

from synkhronos.exceptions import InputValueError

EXPECTED = (
    "expected a log of the Trainer: CSV with the header "
    "epoch,step,seconds,train_loss,valid_loss,...,learning_rate or JSON lines with these keys"
)
CURE = "give the path of the Trainer's argument log=, after at least one epoch"
NOT_DRAWN = {"epoch", "step", "seconds", "learning_rate"}


@dataclass(frozen=True)
class TrainingLog:
    """Columns of numbers, one entry for each epoch; NaN where a value is missing.

    Attributes:
        columns: in the order of the log.
    """

    columns: Mapping[str, Sequence[float]]

    @property
    def panels(self) -> Dict[str, List[Tuple[str, Sequence[float]]]]:
        """Return the columns to draw by quantity: ``train_x`` and ``valid_x`` are both of x."""
        panels: Dict[str, List[Tuple[str, Sequence[float]]]] = {}
        for name, values in self.columns.items():
            if name not in NOT_DRAWN and not all(math.isnan(value) for value in values):
                panels.setdefault(quantity(name), []).append((name, values))
        return panels


def quantity(name: str) -> str:
    """Return the quantity of a column."""
    first, _, rest = name.partition("_")
    return rest if first in ("train", "valid") and rest else name


def read_log(path: Union[str, "os.PathLike[str]"]) -> TrainingLog:
    """Read a log.

    Raises:
        InputValueError: the file is not a log, or has no epoch.
        OSError: the file cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputValueError(f"{path}: got a file that is not text, {EXPECTED}; {CURE}") from None
    if not text.strip():
        raise InputValueError(f"{path}: got an empty file, {EXPECTED}; {CURE}")
    read = _json_lines if text.lstrip().startswith("{") else _csv
    try:
        rows = read(path, text)
    except csv.Error as error:
        raise InputValueError(f"{path}: got no CSV ({error}), {EXPECTED}; {CURE}") from None
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    if "epoch" not in names:
        raise InputValueError(f"{path}: got columns {names}, {EXPECTED}; {CURE}")
    columns = {name: [_value(path, line, row, name) for line, row in rows] for name in names}
    log = TrainingLog(columns)
    if any(math.isnan(epoch) for epoch in columns["epoch"]):
        raise InputValueError(f"{path}: got a line without an epoch, {EXPECTED}; {CURE}")
    if not log.panels:
        raise InputValueError(
            f"{path}: got columns {names} with nothing to draw, {EXPECTED}; {CURE}"
        )
    return log


def _csv(path: Any, text: str) -> List[Tuple[int, Mapping[str, Any]]]:
    reader = csv.reader(text.splitlines())
    header = [name.strip() for name in next(reader)]
    rows: List[Tuple[int, Mapping[str, Any]]] = []
    for cells in reader:
        if cells and len(cells) != len(header):
            raise InputValueError(
                f"{path}:{reader.line_num}: got {len(cells)} values, expected {len(header)} as in "
                f"the header {','.join(header)}; {CURE}"
            )
        if cells:
            rows.append((reader.line_num, dict(zip(header, cells))))
    if not rows:
        raise InputValueError(f"{path}: got a header {header} without an epoch, {EXPECTED}; {CURE}")
    return rows


def _json_lines(path: Any, text: str) -> List[Tuple[int, Mapping[str, Any]]]:
    rows: List[Tuple[int, Mapping[str, Any]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputValueError(
                f"{path}:{number}: got invalid JSON ({error}), {EXPECTED}; {CURE}"
            ) from None
        if not isinstance(row, dict):
            raise InputValueError(f"{path}:{number}: got {line!r:.80}, {EXPECTED}; {CURE}")
        rows.append((number, row))
    return rows


def _value(path: Any, line: int, row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    if value is None or (isinstance(value, str) and not value.strip()):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputValueError(
            f"{path}:{line}: got {name} = {value!r:.80}, expected a number or nothing; {EXPECTED}"
        ) from None
