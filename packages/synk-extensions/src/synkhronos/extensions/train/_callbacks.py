"""Callbacks: their base class, early stopping, logs in TensorBoard, Weights & Biases and MLflow."""

from __future__ import annotations

import math
import numbers
import os
import time
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._arguments import at_least_one
from ._checkpoint_files import CheckpointError, number_in
from ._history import History

if TYPE_CHECKING:
    from synkhronos.extensions.train import Trainer

Write = Callable[[int, "dict[str, float]"], Any]
"""Write numbers at a step."""
Close = Callable[[Optional[BaseException]], Any]
"""Close a log, if the callback opened it; the run ended in this error, or None."""


class Callback:
    """Base class of callbacks: override the methods you need.

    The Trainer calls them from its own process and thread. Checkpoints save and restore what
    :meth:`state` returns, if :meth:`load_state` is overridden. A plain function
    ``f(trainer, record)`` among the callbacks is called like :meth:`on_epoch_end`.

    Attributes:
        required: Whether a checkpoint with this callback's state can only be loaded if there is
            such a callback. False for logs: without them, the training is the same.
    """

    required = True

    def on_run_begin(self, trainer: Trainer) -> None:
        """Run before the first step of a run, after a checkpoint was loaded."""

    def on_step_end(self, trainer: Trainer, loss: float) -> None:
        """Run after a step; ``loss`` is the batch's mean, before the step."""

    def on_epoch_end(self, trainer: Trainer, record: dict[str, Any]) -> None:
        """Run after an epoch and its validation; ``record`` is the line for the log.

        Entries that you add to ``record`` are kept in the history.
        """

    def on_run_end(self, trainer: Trainer, history: History) -> None:
        """Run after the last step and checkpoint, unless an exception ended the run."""

    def on_run_exit(self, trainer: Trainer, error: BaseException | None) -> None:
        """Run at the very end of a run, however it ended; close here what on_run_begin opened.

        It is called if :meth:`on_run_begin` returned, in reverse order of the callbacks. ``error``
        is the exception that ends the run, or None.
        """

    def state(self) -> dict[str, Any]:
        """Return the state to save: numbers, strings, None, arrays, lists and dicts of them.

        The keys of a dict are strings: others come back as strings.
        """
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""


def is_stateful(item: Any) -> bool:
    """Return whether a schedule, callback or rule of `sync` can load a state."""
    loads = getattr(type(item), "load_state", None) is not Callback.load_state
    return loads and hasattr(item, "load_state")


def as_callback(callback: Any) -> Callback:
    """Return a callback, made of a function ``f(trainer, record)`` if it is one."""
    if isinstance(callback, Callback):
        return callback
    if not callable(callback) or isinstance(callback, type):
        raise TypeError(
            f"got {callback!r} among callbacks; expected a Callback object or a function "
            "f(trainer, record)"
        )
    made = Callback()
    made.on_epoch_end = callback  # type: ignore[method-assign]
    return made


class EarlyStopping(Callback):
    """Stop when the loss no longer improves.

    The training stops after ``patience`` epochs in a row without a loss lower than the best minus
    ``min_delta``. The loss is the Trainer's ``monitor``.

    Args:
        patience: Number of epochs in a row without improvement, at least 1.
        min_delta: An improvement has to be larger than this, in units of the loss.
        restore_best: At the end of the run, unless it was interrupted, restore the parameters (and
            floats that each rank keeps for itself, such as running averages) of the best epoch
            on all ranks. They are kept in memory, and in each checkpoint.
    """

    def __init__(self, patience: int, min_delta: float = 0.0, restore_best: bool = False) -> None:
        self._patience = at_least_one("patience", patience)
        self._min_delta, self._restore_best = min_delta, restore_best
        self._best, self._waited = math.inf, 0
        self._values: list[Any] | None = None

    def on_run_begin(self, trainer: Trainer) -> None:
        """Keep a stopped training stopped; begin another one with an empty state."""
        if trainer.step == 0:
            self._best, self._waited, self._values = math.inf, 0, None
        if self._values and _kinds(self._values) != _kinds(trainer.get_values()):
            raise CheckpointError(
                "EarlyStopping: the best parameters are not those of this training"
            )
        self._stop_if_due(trainer)

    def on_epoch_end(self, trainer: Trainer, record: dict[str, Any]) -> None:
        """Compare the epoch with the best."""
        score = trainer.score(record)
        if score < self._best - self._min_delta:
            if self._restore_best:
                self._values = trainer.get_values()  # first: it may be interrupted
            self._best, self._waited = score, 0
        else:
            self._waited += 1
        self._stop_if_due(trainer)

    def on_run_end(self, trainer: Trainer, history: History) -> None:
        """Restore the best parameters, unless the run was interrupted and will be continued."""
        if self._values is not None and not history.interrupted:
            trainer.set_values(self._values)

    def state(self) -> dict[str, Any]:
        return {"best": self._best, "waited": self._waited, "values": self._values}

    def load_state(self, state: dict[str, Any]) -> None:
        best = number_in(state, "best", float, -math.inf, math.inf)
        _kinds(state["values"] or ())
        self._waited, self._best, self._values = number_in(state, "waited"), best, state["values"]

    def _stop_if_due(self, trainer: Trainer) -> None:
        if self._waited >= self._patience:
            trainer.stop(f"no better {trainer.monitor} for {self._waited} epochs")


def _kinds(values: Iterable[Any]) -> list[Any]:
    return [(value.shape, value.dtype) for value in values]


class ExperimentLog(Callback):
    """Base class of logs: the numbers of an epoch's record go to a run of the log.

    Checkpoints keep the id of the run, so that a resumed training continues it; epochs after the
    checkpoint are logged again. ``config`` are hyperparameters by name, which are logged with the
    Trainer's ``settings``. A subclass has the one method :meth:`_open`.
    """

    required = False

    def __init__(self, config: Mapping[str, Any] | None) -> None:
        self._config = dict(config or {})
        self._id: str | None = None

    def _open(self, step: int, config: dict[str, Any]) -> tuple[Write, Close]:
        """Open the run of a training that has taken ``step`` steps."""
        raise NotImplementedError

    def on_run_begin(self, trainer: Trainer) -> None:
        """Open the run of this training, or a new one for a new training."""
        if trainer.step == 0:
            self._id = None
        self._write, self._close = self._open(trainer.step, {**trainer.settings, **self._config})

    def on_epoch_end(self, trainer: Trainer, record: dict[str, Any]) -> None:
        found = {k: float(v) for k, v in record.items() if isinstance(v, numbers.Real)}
        found.pop("step", None)
        self._write(trainer.step, found)

    def on_run_exit(self, trainer: Trainer, error: BaseException | None) -> None:  # noqa: ARG002
        self._close(error)

    def state(self) -> dict[str, Any]:
        return {"id": self._id}

    def load_state(self, state: dict[str, Any]) -> None:
        self._id = state["id"]


class TensorBoard(ExperimentLog):
    """Log each epoch to TensorBoard: event files in a folder of this training.

    It needs the package tensorboard, ``pip install 'synkhronos[tensorboard]'``; neither TensorFlow
    nor PyTorch. Scalars are the columns of the Trainer's log, at the number of the step;
    hyperparameters are on the page HPARAMS. A resumed training hides the scalars after its
    checkpoint. Another training in the same folder hides all earlier ones.

    Args:
        folder: Folder for the event files; created if it does not exist.
        config: Your hyperparameters, by name: numbers and strings; others are logged as text.
    """

    def __init__(
        self, folder: str | os.PathLike[str], config: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(config)
        self._folder = Path(folder)
        self._event = import_module("tensorboard.compat.proto.event_pb2")
        self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._writers = import_module("tensorboard.summary.writer.event_file_writer")
        self._hparams = import_module("tensorboard.plugins.hparams.summary_v2")

    def _open(self, step: int, config: dict[str, Any]) -> tuple[Write, Close]:
        file = self._writers.EventFileWriter(str(self._folder))

        def add(step: int, **content: Any) -> None:
            file.add_event(self._event.Event(wall_time=time.time(), step=step, **content))

        def write(step: int, values: dict[str, float]) -> None:
            scalars = [self._summary.Value(tag=k, simple_value=v) for k, v in values.items()]
            add(step, summary=self._summary(value=scalars))
            file.flush()

        # Readers drop what has this number of a step, or a higher one.
        add(step + 1, session_log=self._event.SessionLog(status=self._event.SessionLog.START))
        plain = {k: v if isinstance(v, (int, float, str)) else str(v) for k, v in config.items()}
        add(step, summary=self._hparams.hparams_pb(plain, trial_id=self._folder.name))
        return write, lambda _error: file.close()


class WandB(ExperimentLog):
    """Log each epoch to Weights & Biases.

    It needs the package wandb, ``pip install 'synkhronos[wandb]'``, and ``wandb login``, or
    ``WANDB_MODE=offline`` in the environment. Metrics are the columns of the Trainer's log, over
    ``step``, the number of steps taken. If ``wandb.run`` is under way, as in a sweep, the callback
    uses it and leaves it open.

    Args:
        project: Name of the project; wandb's default if None.
        name: Name of the run; wandb invents one if None.
        config: Your hyperparameters, by name.
        **settings: Further arguments of ``wandb.init()``, such as ``entity``, ``tags`` or ``dir``.
    """

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(config)
        self._wandb = import_module("wandb")
        self._settings = {"project": project, "name": name, **settings}

    def _open(self, step: int, config: dict[str, Any]) -> tuple[Write, Close]:  # noqa: ARG002
        run = found = self._wandb.run
        if found is None:
            again = {} if self._id is None else {"id": self._id, "resume": "allow"}
            run = self._wandb.init(config=config, **{**again, **self._settings})
        else:
            run.config.update(config, allow_val_change=True)
        self._id = run.id
        # wandb's own count only increases, and a resumed training may go back by some steps.
        run.define_metric("step")
        run.define_metric("*", step_metric="step", step_sync=True)

        def close(error: BaseException | None) -> None:
            if found is None:
                run.finish(exit_code=0 if error is None else 1)

        return lambda step, values: run.log({**values, "step": step}), close


class MLflow(ExperimentLog):
    """Log each epoch to MLflow.

    It needs the package mlflow, ``pip install 'synkhronos[mlflow]'``. It logs where MLflow does:
    ``mlflow.set_tracking_uri()`` or MLFLOW_TRACKING_URI in the environment, else a local file.
    Metrics are the columns of the Trainer's log, at the number of the step. Hyperparameters are
    MLflow's params, which cannot be changed: those of the first run of a training stay. If
    ``mlflow.active_run()`` is under way in this thread, the callback uses it and leaves it open.
    Otherwise the run ends with the status FINISHED, FAILED (an exception) or KILLED (a second
    Ctrl-C, or SIGTERM).

    Args:
        experiment: Name of the experiment; created if it does not exist. MLflow's default if None.
        name: Name of the run; MLflow invents one if None.
        config: Your hyperparameters, by name.
    """

    def __init__(
        self,
        experiment: str | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(config)
        self._mlflow = import_module("mlflow")
        self._experiment, self._name = experiment, name

    def _open(self, step: int, config: dict[str, Any]) -> tuple[Write, Close]:  # noqa: ARG002
        mlflow, name = self._mlflow, self._experiment
        run = found = mlflow.active_run()
        if found is None and self._id is not None:
            run = mlflow.start_run(run_id=self._id)
        elif found is None:
            known = name and mlflow.get_experiment_by_name(name)
            place = known.experiment_id if known else name and mlflow.create_experiment(name)
            run = mlflow.start_run(run_name=self._name, experiment_id=place)
        self._id = run.info.run_id
        params = mlflow.get_run(self._id).data.params
        mlflow.log_params({k: v for k, v in config.items() if k not in params})

        def close(error: BaseException | None) -> None:
            if found is None:
                failed = "FAILED" if isinstance(error, Exception) else "KILLED"
                mlflow.end_run("FINISHED" if error is None else failed)

        return lambda step, values: mlflow.log_metrics(values, step=step), close
