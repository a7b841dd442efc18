"""What a run returns, and what it says of its epochs and of its end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_logger = logging.getLogger("synkhronos")


@dataclass
class History:
    """The epochs so far, also those before a resume, and how the run ended.

    ``history["train_loss"]`` is the list of that column; iterating yields the records.

    Attributes:
        records: A dict for each epoch, with the keys of the log: epoch, step, seconds, train_loss,
            valid_loss, further outputs, learning_rate. What there is not is None.
        status: "finished" (all epochs are done), "stopped" (by :meth:`Trainer.stop`, as early
            stopping does), or "interrupted" (by Ctrl-C).
        reason: Why it was stopped, in words.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    status: str = "finished"
    reason: str = ""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the run."""
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
        ended = f"{self.status} ({self.reason})" if self.reason else self.status
        return f"<History of {len(self.records)} epochs, {ended}>"


def ended(
    records: Sequence[dict[str, Any]], step: int, interrupted: bool, stop_reason: str | None
) -> History:
    """The history of a run that ends now; an early end is logged."""
    status, reason = "finished", ""
    if interrupted:
        status, reason = "interrupted", f"Ctrl-C, after step {step}"
    elif stop_reason is not None:
        status, reason = "stopped", stop_reason
    if status != "finished":
        level = logging.WARNING if interrupted else logging.INFO
        _logger.log(level, "training %s: %s", status, reason)
    return History(list(records), status, reason)


def epoch_line(records: Sequence[dict[str, Any]], epochs: int) -> str:
    """The last epoch in a line: its losses, further outputs, and seconds."""
    record = records[-1]
    told = [
        f"{name} {value:.4g}"
        for name, value in record.items()
        if name.startswith(("train_", "valid_")) and value is not None
    ]
    # Records count the seconds since training began.
    before = records[-2]["seconds"] if len(records) > 1 else 0.0
    told.append(f"{record['seconds'] - before:.1f} s")
    return f"epoch {record['epoch']} of {epochs}: {', '.join(told)}"
