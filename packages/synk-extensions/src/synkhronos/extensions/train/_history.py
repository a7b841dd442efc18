"""What a run returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


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
