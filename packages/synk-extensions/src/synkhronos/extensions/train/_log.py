"""The log: one line per epoch, as CSV or as JSON lines."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

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

        Raises:
            OSError: The file cannot be written.
        """
        text = "" if self._is_json else self._csv(self._columns)
        text += "".join(self._line(record) for record in records)
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise OSError(
                f"log={str(self._path)!r}: got {type(error).__name__}: {error}; expected a file "
                "that can be written, or made: choose another, or change its permissions"
            ) from error

    def append(self, records: Sequence[dict[str, Any]]) -> None:
        """Add a line for the last record; all lines, if the file is no longer there."""
        if not self._path.exists():
            self.begin(records)
            return
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.write(self._line(records[-1]))

    def _line(self, record: dict[str, Any]) -> str:
        if self._is_json:
            return json.dumps(_plain(record), allow_nan=False) + "\n"
        return self._csv([record.get(column) for column in self._columns])

    @staticmethod
    def _csv(values: Sequence[Any]) -> str:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(values)
        return line.getvalue()


def _plain(value: Any) -> Any:
    """What JSON can hold of a value: None for infinity and NaN, lists for arrays."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
