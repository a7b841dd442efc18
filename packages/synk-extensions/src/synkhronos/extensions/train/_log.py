"""The log: one line per epoch, as CSV or as JSON lines."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_JSON_LINES = (".jsonl", ".ndjson", ".json")


class Log:
    """Writes records to a file; each line is there as soon as its epoch is over.

    Args:
        path: JSON lines if it ends with .jsonl, .ndjson or .json; else CSV with a header.
        columns: The columns of the CSV, in order. JSON lines have all that is in a record.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[str]) -> None:
        self._path = Path(path)
        self._columns = list(columns)
        self._is_json = self._path.suffix.lower() in _JSON_LINES

    def begin(self, records: Sequence[dict[str, Any]]) -> None:
        """Begin the file anew with these records: none, or those that a checkpoint knows.

        An epoch that the file has and the checkpoint does not is trained again: its line goes.
        """
        text = "" if self._is_json else self._csv(self._columns)
        text += "".join(self._line(record) for record in records)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self._path)

    def append(self, record: dict[str, Any]) -> None:
        """Add a line."""
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.write(self._line(record))

    def _line(self, record: dict[str, Any]) -> str:
        if self._is_json:
            # JSON knows neither infinity nor NaN.
            finite = {
                key: None if isinstance(value, float) and not math.isfinite(value) else value
                for key, value in record.items()
            }
            return json.dumps(finite, default=float) + "\n"
        return self._csv([record.get(column) for column in self._columns])

    @staticmethod
    def _csv(values: Sequence[Any]) -> str:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(values)
        return line.getvalue()
