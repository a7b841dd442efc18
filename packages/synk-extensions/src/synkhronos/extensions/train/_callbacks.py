"""What may watch a training and have a say in it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._history import History
    from ._trainer import Trainer


class Callback:
    """Override what you need; the Trainer calls all of it from its own process and thread.

    A callback with a memory overrides :meth:`state` and :meth:`load_state`, and is continued from a
    checkpoint as everything else is. Plain functions ``f(trainer, record)`` may stand in the list
    of callbacks, too: they are called as :meth:`on_epoch_end` is.
    """

    def on_run_begin(self, trainer: Trainer) -> None:
        """Before the first step of a run, after a checkpoint was loaded."""

    def on_step_end(self, trainer: Trainer, loss: float) -> None:
        """After a step; ``loss`` is the batch's mean, before the step."""

    def on_epoch_end(self, trainer: Trainer, record: dict[str, Any]) -> None:
        """After an epoch and its validation; ``record`` is the line that goes to the log.

        An entry that is put into ``record`` here is kept in the history, and in a log of JSON
        lines.
        """

    def on_run_end(self, trainer: Trainer, history: History) -> None:
        """After the last step and checkpoint of a run that was not ended by an exception."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint is to keep: numbers, strings, None, arrays, lists and dicts of them."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""


class EarlyStopping(Callback):
    """Stop when the loss no longer gets better.

    After ``patience`` epochs in a row without a loss lower than the best minus ``min_delta``. The
    loss is the Trainer's ``monitor``.

    Args:
        patience: How many epochs in a row without improvement it takes.
        min_delta: What counts as an improvement: more than this, in units of the loss.
        restore_best: At the end of the run, unless it was interrupted, have the parameters (and
            what each rank keeps for itself, such as running averages) of the best epoch again, in
            all ranks. They are kept in memory, and in each checkpoint.

    Raises:
        ValueError: ``patience`` is less than 1.
        TypeError: ``patience`` is missing, or there is something else, such as ``monitor=``, which
            is the Trainer's.
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
                "restore_best= (Keras: restore_best_weights=). What is watched is the Trainer's: "
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
        """A training that was stopped stays so; another one begins without its memory."""
        if trainer.step == 0:
            self._best, self._waited, self._values = math.inf, 0, None
        self._stop_if_due(trainer)

    def on_epoch_end(self, trainer: Trainer, record: dict[str, Any]) -> None:
        """Compare with the best."""
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
        """Bring the best parameters back; an interrupted run is to go on from where it was."""
        if self._values is not None and not history.interrupted:
            trainer.set_values(self._values)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"best": self._best, "waited": self._waited, "values": self._values}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self._best, self._waited = state["best"], state["waited"]
        self._values = state["values"]

    def _stop_if_due(self, trainer: Trainer) -> None:
        if self._waited >= self._patience:
            trainer.stop(f"no better {trainer.monitor} for {self._waited} epochs")


class OnEpochEnd(Callback):
    """A plain function as a callback."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def on_epoch_end(self, trainer: Trainer, record: dict[str, Any]) -> None:
        """Call it."""
        self._function(trainer, record)


def as_callback(callback: Any) -> Callback:
    """
    Raises:
        TypeError: It is neither a Callback nor a function.
    """
    if isinstance(callback, Callback):
        return callback
    if callable(callback) and not isinstance(callback, type):
        return OnEpochEnd(callback)
    raise TypeError(
        f"got {callback!r} among callbacks; expected a Callback object or a function "
        "f(trainer, record)"
    )
