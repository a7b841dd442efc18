"""The record of a training's epochs: the History that a run returns, and the log file."""

from __future__ import annotations

import csv
import io
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synk_core.files import make_folder, place_of, whole_file


@dataclass
class History:
    """The epochs so far, including those before a resume, and how the run ended.

    ``history["train_loss"]`` is that column as a list; iterating yields the records.

    Attributes:
        records: A dict for each epoch, with the keys of the log: epoch, step, seconds, train_loss,
            valid_loss, further outputs, learning_rate. Missing values are None.
        status: "finished" (all epochs are done), "stopped" (by :meth:`Trainer.stop`, for
            example by early stopping), or "interrupted" (by Ctrl-C or SIGTERM).
        reason: Why the run stopped, as text.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    status: str = "finished"
    reason: str = ""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM ended the run."""
        return self.status == "interrupted"

    def __getitem__(self, name: str) -> list[Any]:
        known = list(dict.fromkeys(key for record in self.records for key in record))
        if self.records and name not in known:
            raise KeyError(f"{name!r}; expected one of {known}")
        return [record.get(name) for record in self.records]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    def __repr__(self) -> str:
        reason = self.reason and f" ({self.reason})"
        return f"<History of {len(self)} epochs, {self.status}{reason}>"


def ended(records: Sequence[Any], by: str, stop_reason: str | None) -> History:
    """Return the history of a run that ends now; log an early end, and what ended it."""
    status = "interrupted" if by else "finished" if stop_reason is None else "stopped"
    history = History(list(records), status, by or stop_reason or "")
    if status != "finished":
        level = logging.WARNING if by else logging.INFO
        logging.getLogger("synkhronos").log(level, "training %s: %s", status, history.reason)
    return history


def epoch_line(records: Sequence[dict[str, Any]], epochs: int) -> str:
    """Describe the last epoch in a line: its losses, further outputs, and seconds."""
    *_, before, record = {"seconds": 0.0}, *records  # seconds count from the training's begin
    parts = [
        f"{name} {value:.4g}"
        for name, value in record.items()
        if name.startswith(("train_", "valid_")) and value is not None
    ]
    seconds = f"{record['seconds'] - before['seconds']:.1f} s"
    return f"epoch {record['epoch']} of {epochs}: {', '.join([*parts, seconds])}"


class LogFile:
    """Write records to a CSV file, one line per epoch, as soon as the epoch is over."""

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[str]) -> None:
        self._path, self._columns = Path(path), columns
        if self._path.suffix in (".json", ".jsonl"):
            csv_name = f"{self._path.stem}.csv"
            raise ValueError(f"log is {str(path)!r}; expected a CSV file, such as {csv_name!r}")

    def begin(self, records: Sequence[dict[str, Any]]) -> None:
        """Rewrite the file with these records: what is after a checkpoint is trained again."""
        if self._path.exists() and not self._path.is_file():
            raise OSError(f"log={str(self._path)!r} is no file; expected the name of one")
        make_folder(self._path.parent)
        header = dict(zip(self._columns, self._columns))
        with whole_file(self._path) as file:
            file.write(self._lines([header, *records]))

    def append(self, records: Sequence[dict[str, Any]]) -> None:
        """Add a line for the last record; write all lines if the file no longer exists."""
        # Not through a link, and without waiting: others may have replaced the file.
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            with open(os.open(place_of(self._path)[0], flags), "ab") as file:
                file.write(self._lines(records[-1:]))
        except FileNotFoundError:
            self.begin(records)

    def _lines(self, records: Sequence[dict[str, Any]]) -> bytes:
        text = io.StringIO()
        lines = csv.DictWriter(text, self._columns, extrasaction="ignore", lineterminator="\n")
        lines.writerows(records)
        return text.getvalue().encode()
