"""A callback that stops a training when its loss no longer improves."""

from __future__ import annotations

import math
from typing import Any

from ._history import History
from ._trainer import Callback, Trainer


class EarlyStopping(Callback):
    """Stop when the loss no longer improves.

    The training stops after ``patience`` epochs in a row without a loss lower than the best minus
    ``min_delta``. The loss is the Trainer's ``monitor``.

    Args:
        patience: Number of epochs in a row without improvement.
        min_delta: An improvement has to be larger than this, in units of the loss.
        restore_best: At the end of the run, unless it was interrupted, restore the parameters (and
            floats that each rank keeps for itself, such as running averages) of the best epoch
            on all ranks. They are kept in memory, and in each checkpoint.

    Raises:
        ValueError: ``patience`` is less than 1.
        TypeError: ``patience`` is missing, or there is another argument, such as ``monitor=``,
            which belongs to the Trainer.
    """

    def __init__(
        self,
        patience: int | None = None,
        min_delta: float = 0.0,
        restore_best: bool = False,
        **others: Any,
    ) -> None:
        if others:
            raise TypeError(
                f"EarlyStopping() got {', '.join(others)}; expected patience=, min_delta= and "
                "restore_best= (Keras: restore_best_weights=). The Trainer chooses the quantity: "
                "Trainer(monitor='valid_accuracy', mode='max')"
            )
        if patience is None:
            raise TypeError("EarlyStopping() got no patience; expected a number of epochs")
        if patience < 1:
            raise ValueError(f"patience is {patience}; expected at least 1")
        self._patience = patience
        self._min_delta = min_delta
        self._restore_best = restore_best
        self._best = math.inf
        self._waited = 0
        self._values: list[Any] | None = None

    def on_run_begin(self, trainer: Trainer) -> None:
        """Keep a stopped training stopped; begin another one with an empty state."""
        if trainer.step == 0:
            self._best, self._waited, self._values = math.inf, 0, None
        self._stop_if_due(trainer)

    def on_epoch_end(self, trainer: Trainer, record: dict[str, Any]) -> None:
        """Compare the epoch with the best."""
        score = trainer.score(record)
        if score < self._best - self._min_delta:
            self._best = score
            self._waited = 0
            if self._restore_best:
                self._values = trainer.get_values()
        else:
            self._waited += 1
        self._stop_if_due(trainer)

    def on_run_end(self, trainer: Trainer, history: History) -> None:
        """Restore the best parameters, unless the run was interrupted and will be continued."""
        if self._values is not None and not history.interrupted:
            trainer.set_values(self._values)

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps."""
        return {"best": self._best, "waited": self._waited, "values": self._values}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        self._best, self._waited = state["best"], state["waited"]
        self._values = state["values"]

    def _stop_if_due(self, trainer: Trainer) -> None:
        if self._waited >= self._patience:
            trainer.stop(f"no better {trainer.monitor} for {self._waited} epochs")
