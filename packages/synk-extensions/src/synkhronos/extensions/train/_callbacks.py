"""The callbacks: early stopping, and logs in TensorBoard, Weights & Biases and MLflow.

The logs differ in how they are opened, written and closed. What is written is the same for all.
"""

from __future__ import annotations

import importlib
import math
import numbers
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ._checkpoints import CheckpointError, number_in
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
            self._best = score
            self._waited = 0
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
        best = number_in(state, "best", float, -math.inf, math.inf)
        _kinds(state["values"] or ())
        self._waited, self._best, self._values = number_in(state, "waited"), best, state["values"]

    def _stop_if_due(self, trainer: Trainer) -> None:
        if self._waited >= self._patience:
            trainer.stop(f"no better {trainer.monitor} for {self._waited} epochs")


def _kinds(values: Iterable[Any]) -> list[Any]:
    return [(value.shape, value.dtype) for value in values]


class ExperimentLog(Callback):
    """Base class: choose what is logged, and when; subclasses write it.

    Args:
        config: Your hyperparameters, by name. The Trainer's ``settings`` are logged with them.
        every_steps: Steps between two logged steps.

    Raises:
        ValueError: ``every_steps`` is less than 1.
    """

    required = False

    def __init__(self, config: Mapping[str, Any] | None, every_steps: int) -> None:
        if every_steps < 1:
            raise ValueError(f"every_steps is {every_steps}; expected at least 1")
        self._config = dict(config or {})
        self._every_steps = every_steps

    def on_run_begin(self, trainer: Trainer) -> None:
        """Open the log, and write the hyperparameters."""
        self._open(trainer.step, {**trainer.settings, **self._config})

    def on_step_end(self, trainer: Trainer, loss: float) -> None:
        """Log the loss and the learning rate of every ``every_steps``-th step."""
        if trainer.step % self._every_steps == 0:
            self._write_numbers(
                {"step/loss": loss, "step/learning_rate": trainer.learning_rate}, trainer.step
            )

    def on_epoch_end(self, trainer: Trainer, record: dict[str, Any]) -> None:
        """Log the numbers of the record."""
        self._write_numbers({k: v for k, v in record.items() if k != "step"}, trainer.step)

    def on_run_exit(self, trainer: Trainer, error: BaseException | None) -> None:  # noqa: ARG002 - the log knows what it opened
        """Close the log."""
        self._close(error)

    def _write_numbers(self, values: Mapping[str, Any], step: int) -> None:
        found = {k: float(v) for k, v in values.items() if isinstance(v, numbers.Real)}
        self._write(found, step)

    def _open(self, step: int, config: dict[str, Any]) -> None:
        """Open the log of a run that begins after this step; 0 is that of a new training."""
        raise NotImplementedError

    def _write(self, values: dict[str, float], step: int) -> None:
        raise NotImplementedError

    def _close(self, error: BaseException | None) -> None:
        raise NotImplementedError


class TensorBoard(ExperimentLog):
    """Log to TensorBoard: event files in a folder.

    It needs the package tensorboard, ``pip install 'synkhronos[tensorboard]'``; neither TensorFlow
    nor PyTorch. Show the log with ``tensorboard --logdir runs``.

    The loss of a step is ``step/loss``, its rate ``step/learning_rate``. The other scalars are the
    columns of the Trainer's log, also at the number of the step. A resumed training writes another
    file to the same folder, and hides the scalars after its checkpoint. Use another folder for
    another training: in the same one it hides all earlier scalars. Hyperparameters are on the page
    HPARAMS, those of the folder's first run. The callback flushes after each epoch. An error in
    writing ends the run.

    Tried with tensorboard 2.10 and 2.21, and their own reader.

    Args:
        folder: Folder for the event files of this training; created if it does not exist.
        config: Your hyperparameters, by name: numbers and strings; others are logged as text.
        every_steps: Steps between two logged steps.

    Raises:
        ImportError: tensorboard is not installed.
        ValueError: ``every_steps`` is less than 1.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        every_steps: int = 10,
    ) -> None:
        super().__init__(config, every_steps)
        self._folder = Path(folder)
        name = "tensorboard"
        self._event = _required(f"{name}.compat.proto.event_pb2", name)
        self._summary = _required(f"{name}.compat.proto.summary_pb2", name)
        self._writers = _required(f"{name}.summary.writer.event_file_writer", name)
        self._hparams = _required(f"{name}.plugins.hparams.summary_v2", name)
        self._writer: Any = None

    def on_epoch_end(self, trainer: Trainer, record: dict[str, Any]) -> None:
        """Log the numbers of the record, and flush the file."""
        super().on_epoch_end(trainer, record)
        self._writer.flush()

    def _open(self, step: int, config: dict[str, Any]) -> None:
        self._writer = self._writers.EventFileWriter(str(self._folder))
        # Readers drop what has this number of a step, or a higher one.
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._add(step + 1, session_log=start)
        known = {
            name: value if isinstance(value, (bool, int, float, str)) else str(value)
            for name, value in config.items()
        }
        summary = self._hparams.hparams_pb(known, trial_id=self._folder.name)
        self._add(step, summary=summary)

    def _write(self, values: dict[str, float], step: int) -> None:
        scalars = [
            self._summary.Summary.Value(tag=tag, simple_value=value)
            for tag, value in values.items()
        ]
        self._add(step, summary=self._summary.Summary(value=scalars))

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, **content))

    def _close(self, error: BaseException | None) -> None:  # noqa: ARG002 - the file is the same
        self._writer.close()


class _RunLog(ExperimentLog):
    """Base class of logs to a server or its folder, where a training is a run with an id.

    Checkpoints keep the id, so that a resumed training continues its run. If your program has a
    run under way when the Trainer begins, that one is used, and left open.
    """

    def __init__(self, config: Mapping[str, Any] | None, every_steps: int) -> None:
        super().__init__(config, every_steps)
        self._id: str | None = None
        self._owned = False  # whether the callback has opened the run that is under way

    def on_run_begin(self, trainer: Trainer) -> None:
        """Open the run of this training, or a new one for a new training."""
        if trainer.step == 0:
            self._id = None
        super().on_run_begin(trainer)

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps."""
        return {"id": self._id}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        self._id = state["id"]


class WandB(_RunLog):
    """Log to Weights & Biases.

    It needs the package wandb, ``pip install 'synkhronos[wandb]'``, and ``wandb login``, or
    ``WANDB_MODE=offline`` in the environment. wandb sends the log in a process of its own; the
    end of a run waits for it.

    The loss of a step is ``step/loss``, its rate ``step/learning_rate``. The other metrics are the
    columns of the Trainer's log. The horizontal axis is ``step``, the number of steps taken.
    Checkpoints keep the id of the run: a resumed training continues its run, and steps after the
    checkpoint are logged again, at the same ``step``. Offline, each part of the run has a folder of
    its own, and ``wandb sync`` uploads them one after the other. If ``wandb.run`` is under way, as
    in a sweep, the callback uses it and leaves it open.

    Tried with wandb 0.16 and 0.31, offline.

    Args:
        project: Name of the project; wandb's default if None.
        name: Name of the run; wandb invents one if None.
        config: Your hyperparameters, by name.
        every_steps: Steps between two logged steps.
        **settings: Further arguments of ``wandb.init()``, such as ``entity``, ``tags`` or ``dir``.

    Raises:
        ImportError: wandb is not installed.
        ValueError: ``every_steps`` is less than 1.
    """

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        every_steps: int = 10,
        **settings: Any,
    ) -> None:
        super().__init__(config, every_steps)
        self._wandb = _required("wandb", "wandb")
        self._settings = {"project": project, "name": name, **settings}
        self._run: Any = None

    def _open(self, step: int, config: dict[str, Any]) -> None:  # noqa: ARG002 - the id tells it
        self._run = self._wandb.run
        self._owned = self._run is None
        if self._owned:
            again = {} if self._id is None else {"id": self._id, "resume": "allow"}
            self._run = self._wandb.init(config=config, **{**again, **self._settings})
        else:
            self._run.config.update(config, allow_val_change=True)
        self._id = self._run.id
        # wandb's own count only increases, and a resumed training may go back by some steps.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step", step_sync=True)

    def _write(self, values: dict[str, float], step: int) -> None:
        self._run.log({**values, "step": step})

    def _close(self, error: BaseException | None) -> None:
        if self._owned:
            self._run.finish(exit_code=0 if error is None else 1)


class MLflow(_RunLog):
    """Log to MLflow.

    It needs the package mlflow, ``pip install 'synkhronos[mlflow]'``. It logs where MLflow does:
    ``mlflow.set_tracking_uri()`` or MLFLOW_TRACKING_URI in the environment, else a local file.

    The loss of a step is ``step/loss``, its rate ``step/learning_rate``. The other metrics are the
    columns of the Trainer's log, also at the number of the step. Hyperparameters are MLflow's
    params, which cannot be changed: those of the first run of a training stay. Checkpoints keep the
    id of the run: a resumed training continues its run. Values of steps after the checkpoint that
    the run has already are not logged again; if the repeated step gives another value, MLflow has
    both. If ``mlflow.active_run()`` is under way in this thread, the callback uses it and leaves it
    open. Otherwise the run ends with the status FINISHED, FAILED (an exception) or KILLED (a
    second Ctrl-C, or SIGTERM). Each logged step waits for the server: choose ``every_steps``
    accordingly.

    Tried with mlflow 2.8 and a local folder, and with 3.17 and its local database.

    Args:
        experiment: Name of the experiment; created if it does not exist. MLflow's default if None.
        name: Name of the run; MLflow invents one if None.
        config: Your hyperparameters, by name.
        every_steps: Steps between two logged steps.

    Raises:
        ImportError: mlflow is not installed.
        ValueError: ``every_steps`` is less than 1.
    """

    def __init__(
        self,
        experiment: str | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        every_steps: int = 10,
    ) -> None:
        super().__init__(config, every_steps)
        self._mlflow = _required("mlflow", "mlflow")
        self._experiment = experiment
        self._name = name
        self._logged: set[tuple[str, int, str]] = set()  # values as text, NaN too

    def _open(self, step: int, config: dict[str, Any]) -> None:
        run = self._mlflow.active_run()
        self._owned = run is None
        if self._owned and self._id is None:
            run = self._mlflow.start_run(run_name=self._name, experiment_id=self._experiment_id())
        elif self._owned:
            run = self._mlflow.start_run(run_id=self._id)
        self._id = run.info.run_id
        known = self._mlflow.get_run(self._id).data
        self._mlflow.log_params({k: v for k, v in config.items() if k not in known.params})
        # A training that is resumed repeats the steps after the checkpoint.
        client = self._mlflow.MlflowClient()
        history = ((k, m) for k in known.metrics for m in client.get_metric_history(self._id, k))
        self._logged = {(k, m.step, str(m.value)) for k, m in history if m.step > step}

    def _experiment_id(self) -> str | None:
        if self._experiment is None:
            return None
        found = self._mlflow.get_experiment_by_name(self._experiment)
        if found is None:
            return str(self._mlflow.create_experiment(self._experiment))
        return str(found.experiment_id)

    def _write(self, values: dict[str, float], step: int) -> None:
        new = {k: v for k, v in values.items() if (k, step, str(float(v))) not in self._logged}
        self._mlflow.log_metrics(new, step=step)

    def _close(self, error: BaseException | None) -> None:
        if self._owned:
            status = "FINISHED"
            if error is not None:
                status = "FAILED" if isinstance(error, Exception) else "KILLED"
            self._mlflow.end_run(status)


def _required(module: str, package: str) -> Any:
    """Import a module of an optional package.

    Raises:
        ImportError: It is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this callback needs {package}, which cannot be imported ({error}); install it with "
            f"pip install 'synkhronos[{package}]'"
        ) from error
