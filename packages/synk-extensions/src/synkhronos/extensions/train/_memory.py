"""What a Trainer remembers, and how it becomes the content of a checkpoint and comes back."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import _checkpoint_file
from ._callbacks import Callback
from ._checkpoint_file import CheckpointError
from ._order import Order
from ._snapshot import Snapshot


@dataclass
class Memory:
    """Where a training stands. It is replaced as a whole when a checkpoint is loaded.

    Attributes:
        epoch: How many epochs are finished.
        step: How many steps were taken.
        batch: How many batches of the present epoch are done.
        sums: Of the present epoch, of each output of the step times the rows of its batch.
        sum_rows: The rows of these batches.
        best: The best score of an epoch.
        seconds: Of training, up to the end of the last run or checkpoint.
        shuffle: The generator's state before it shuffled the rows of the present epoch.
        records: Of the finished epochs.
    """

    sums: list[float]
    shuffle: dict[str, Any]
    epoch: int = 0
    step: int = 0
    batch: int = 0
    sum_rows: int = 0
    best: float = math.inf
    seconds: float = 0.0
    records: list[dict[str, Any]] = field(default_factory=list)

    def add(self, values: Sequence[float], rows: int) -> None:
        """Count a step."""
        self.sums = [total + rows * value for total, value in zip(self.sums, values)]
        self.sum_rows += rows
        self.batch += 1
        self.step += 1

    def end_epoch(self) -> list[float]:
        """Count an epoch, and return the means over its rows."""
        means = [total / self.sum_rows for total in self.sums]
        self.sums, self.sum_rows = [0.0] * len(self.sums), 0
        self.epoch += 1
        self.batch = 0
        return means


class Keeper:
    """Gathers all that a checkpoint keeps, and brings it back: all of it or nothing.

    Args:
        snapshot: The shared variables.
        order: In which the rows come.
        course: What has to be the same for a training to go on, as a dict of plain values.
        partners: Schedule and callbacks: each may have ``state()`` and ``load_state()``.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        order: Order,
        course: dict[str, Any],
        partners: Sequence[Any],
    ) -> None:
        self._snapshot = snapshot
        self._order = order
        self._course = course
        self._partners = partners

    def content(self, memory: Memory) -> dict[str, Any]:
        """What a checkpoint keeps."""
        told = asdict(memory)
        if not memory.batch:
            # The next epoch's rows are not shuffled yet.
            told["shuffle"] = self._order.get_state()
        return {
            "memory": told,
            "course": self._course,
            "order": self._order.told,
            "partners": [
                {"kind": type(partner).__name__, "state": partner.state()}
                for partner in self._with_state()
            ],
            "variables": self._snapshot.read(),
        }

    def load(self, path: Path) -> Memory:
        """Read a file and set everything but the memory, which is returned.

        Raises:
            CheckpointError: It does not fit. Nothing has been changed.
        """
        content = _checkpoint_file.read(path)
        try:
            memory = Memory(**content["memory"])
            misfits = list(self._misfits(content, memory))
            states = content["partners"]
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(
                f"{path}: a part is missing or of another kind ({error!r}); the file is damaged"
            ) from error
        if misfits:
            raise CheckpointError(f"{path} does not fit this training: " + "; ".join(misfits))
        self._load_partners(states, path)
        self._order.set_state(memory.shuffle)
        self._snapshot.write(content["variables"])
        return memory

    def _misfits(self, content: dict[str, Any], memory: Memory) -> list[str]:
        misfits = _differences(content["course"], self._course)
        if memory.batch:
            misfits += [
                f"{text} (it was written within an epoch)"
                for text in _differences(content["order"], self._order.told)
            ]
        misfits += self._snapshot.misfits(content["variables"])
        refusal = self._order.refusal(memory.shuffle)
        misfits += [refusal] if refusal else []
        known = [type(partner).__name__ for partner in self._with_state()]
        for part in content["partners"]:
            if part["kind"] in known:
                known.remove(part["kind"])
            else:
                misfits.append(f"schedule or callback: {part['kind']} in the checkpoint, none here")
        return misfits

    def _load_partners(self, states: Sequence[dict[str, Any]], path: Path) -> None:
        """Give each its state: those of one kind in their order. New ones keep their own."""
        waiting = list(self._with_state())
        done = []
        try:
            for part in states:
                partner = next(p for p in waiting if type(p).__name__ == part["kind"])
                waiting.remove(partner)
                done.append((partner, copy.deepcopy(partner.state())))
                partner.load_state(part["state"])
        except Exception as error:
            for partner, before in done:
                partner.load_state(before)
            raise CheckpointError(
                f"{path} does not fit this training: {part['kind']} refused its state: {error!r}"
            ) from error

    def _with_state(self) -> list[Any]:
        """Partners that can load a state, though they may have none as yet."""
        return [
            partner
            for partner in self._partners
            if hasattr(partner, "load_state")
            and getattr(type(partner), "load_state", None) is not Callback.load_state
        ]


def _differences(saved: dict[str, Any], here: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {saved.get(name)!r} in the checkpoint, {value!r} here"
        for name, value in here.items()
        if saved.get(name) != value
    ]
