"""The loop around a training step: epochs, validation, checkpoints, and what goes with them.

One step is ``train(*data, batch=indexes)``. The Trainer decides on the indexes and the learning
rate before it, and keeps sums after it. All that it remembers is in a `Memory`; with the values of
the shared variables (`_snapshot`) and the states of generator, schedule and callbacks it makes a
checkpoint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from synkhronos._default import reporter
from synkhronos._progress import track

from ._arguments import names_of_outputs, require, require_number
from ._callbacks import as_callback
from ._checkpoints import Checkpoints
from ._data import Validation, as_list, placed, scalar
from ._history import History, ended, epoch_line
from ._interrupt import Interrupt
from ._log import Log
from ._memory import Keeper, Memory
from ._order import Order
from ._ranks import AllRanks, OneProcess, Ranks, is_float
from ._rate import LearningRate
from ._serial import SerialTrainFunction
from ._snapshot import Snapshot
from ._step import TrainFunction


class Trainer:
    """Train for some epochs; nothing that it does cannot be written as a loop of your own.

    ::

        rate = theano.shared(np.float32(0.1))
        train = make_train_function(loss, params, [x, y], updates.momentum, learning_rate=rate)
        trainer = Trainer(
            train, (x_train, y_train), 128, valid=f_valid, valid_data=(x_valid, y_valid),
            learning_rate=rate, schedule=cosine(0.1, 20), log="log.csv", checkpoint="checkpoints",
        )
        history = trainer.run(20, resume=True)

    Args:
        train: From :func:`make_train_function` or :func:`make_train_function_theano`.
        data: An array or ``Data`` for each input of ``train``, in a tuple; or a single one. Arrays
            are put into shared memory once. All have the same number of rows, but those of
            ``bcast_inputs``.
        batch_size: Rows per step, for all ranks together.
        valid: A function of the validation set, called after each epoch: a
            ``synkhronos.Function``, or any callable such as a compiled Theano function. Its first
            output is the validation loss; all have to be means over the rows.
        valid_data: As ``data``, for ``valid``.
        valid_slices: Validate in so many slices, to save memory; the means are the same.
        valid_names: Names of the further outputs of ``valid``, one each.
        output_names: Names of the further outputs of ``train``; by default those of the
            expressions, else ``output_1`` and so on.
        num_slices: Compute each gradient in so many slices.
        learning_rate: The shared variable that ``train`` takes for its rate.
        schedule: Function from the number of finished epochs to the rate, as :func:`cosine`
            returns it, or :class:`ReduceOnPlateau`. The rate is set in all ranks.
        schedule_by: "epoch", or "step" to ask the schedule before each step, with the number of
            steps taken.
        seed: Of the shuffling: what ``numpy.random.default_rng`` takes, or a Generator or
            RandomState.
        shuffle: Shuffle the rows anew for each epoch.
        drop_last: Leave out a last batch that is smaller.
        monitor: The column of the log that says how good an epoch was, for ``best.npz``, early
            stopping, and :class:`ReduceOnPlateau`. By default "valid_loss" if there is a ``valid``,
            else "train_loss".
        mode: "min" if a low ``monitor`` is good, "max" if a high one is, as of an accuracy.
        average_local: After each epoch, before validation, average over the ranks what each keeps
            for itself (``train.state.local``), if it is of floats: the running averages of batch
            normalisation. They differ between ranks, which saw different rows.
        terminate_on_nan: End by FloatingPointError at a loss that is no finite number; else warn.
        callbacks: :class:`Callback` objects, or functions ``f(trainer, record)`` for after an
            epoch; called in this order.
        checkpoint: A folder, or :class:`Checkpoints`.
        log: File for a line per epoch: JSON lines if it ends with .jsonl, else CSV.
        verbose: Print a line for each finished epoch on standard output.

    Attributes:
        train: The training step.
        monitor: As given, or its default.

    Raises:
        TypeError, ValueError: An argument is of the wrong kind or out of range.
    """

    def __init__(
        self,
        train: Any,
        data: Any,
        batch_size: int,
        *,
        valid: Any = None,
        valid_data: Any = None,
        valid_slices: int = 1,
        valid_names: Sequence[str] = (),
        output_names: Sequence[str] | None = None,
        num_slices: int = 1,
        learning_rate: Any = None,
        schedule: Callable[[int], float] | None = None,
        schedule_by: str = "epoch",
        seed: Any = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        monitor: str | None = None,
        mode: str = "min",
        average_local: bool = True,
        terminate_on_nan: bool = True,
        callbacks: Sequence[Any] = (),
        checkpoint: str | os.PathLike[str] | Checkpoints | None = None,
        log: str | os.PathLike[str] | None = None,
        verbose: bool = True,
    ) -> None:
        if not isinstance(train, (TrainFunction, SerialTrainFunction)):
            raise TypeError(
                f"train is {train!r}; expected what make_train_function() or "
                "make_train_function_theano() returns"
            )
        if (valid is None) != (valid_data is None):
            raise ValueError("got one of valid and valid_data; expected both or neither")
        require(mode, "mode", ("min", "max"))
        self.train = train
        self._data = placed(train, data, "data")
        self._order = Order(len(self._data[0]), batch_size, seed, shuffle, drop_last)
        self._num_slices = num_slices
        names = names_of_outputs(train.output_names, output_names)
        self._train_columns = ["train_loss", *(f"train_{name}" for name in names)]
        self._valid = None
        if valid is not None:
            self._valid = Validation(valid, valid_data, valid_slices, valid_names)
        valid_columns = self._valid.columns if self._valid else []
        self.monitor = monitor or ("valid_loss" if self._valid else "train_loss")
        require(self.monitor, "monitor", [*self._train_columns, *valid_columns])
        columns = ["train_loss", "valid_loss", *self._train_columns[1:], *valid_columns[1:]]
        self._mode = mode
        self._average_local, self._terminate_on_nan = average_local, terminate_on_nan
        self._callbacks = [as_callback(callback) for callback in callbacks]
        if checkpoint is not None and not isinstance(checkpoint, Checkpoints):
            checkpoint = Checkpoints(checkpoint)
        self._checkpoints = checkpoint
        columns = ["epoch", "step", "seconds", *columns, "learning_rate"]
        self._log = None if log is None else Log(log, columns)
        self._say = reporter(verbose)
        self._ranks: Ranks = AllRanks() if isinstance(train, TrainFunction) else OneProcess()
        self._local_floats = [variable for variable in train.state.local if is_float(variable)]
        self._valued = [*train.state.params, *self._local_floats]
        self._rate = LearningRate(learning_rate, schedule, schedule_by, self._ranks, train.state)
        self._keeper = Keeper(
            Snapshot(self._ranks, train.state, learning_rate),
            self._order,
            course={"monitor": self.monitor, "mode": mode, "train_columns": self._train_columns},
            partners=[schedule, *self._callbacks],
        )
        self._memory = Memory([0.0] * len(self._train_columns), self._order.get_state())
        self._since: float | None = None  # when time was counted last; None between runs
        self._begun = self._log_begun = False  # whether this object has trained or loaded anything
        self._saved: tuple[int, int] | None = None
        self._stop_reason: str | None = None

    @property
    def epoch(self) -> int:
        """The number of finished epochs."""
        return self._memory.epoch

    @property
    def step(self) -> int:
        """The number of steps taken."""
        return self._memory.step

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records of the finished epochs, as in :class:`History`."""
        return self._memory.records

    def run(self, epochs: int, resume: bool = False) -> History:
        """Train until ``epochs`` epochs are finished in all, earlier runs included.

        The first Ctrl-C stops after the step that is being taken: a checkpoint is written if there
        is a folder for it, and the run returns. The second raises KeyboardInterrupt at once. (In
        threads other than the main one, Ctrl-C is left alone.)

        Args:
            epochs: How many.
            resume: Continue from the newest checkpoint, if there is one; see :meth:`resume`.

        Returns:
            The :class:`History`, with the epochs before a resume.

        Raises:
            CheckpointError: With ``resume``, the newest checkpoint cannot be loaded; without, a new
                training would mix its checkpoints with those of an earlier one.
            OSError: The folder for checkpoints or the log cannot be written. No step was taken.
            FloatingPointError: The loss was no finite number (``terminate_on_nan``).
            RuntimeError: A callback calls it.
            What the training step and callbacks raise. The next run goes on where this one was.
        """
        self._require_idle("run()")
        if resume and not self._checkpoints:
            raise ValueError("run(resume=True) needs a folder to look in: Trainer(checkpoint=...)")
        if resume:
            self.resume()
        elif not self._begun and self._checkpoints:
            self._checkpoints.require_empty()
        if self._checkpoints and self.epoch < epochs:
            self._checkpoints.require_writable()
        self._begun = True
        self._stop_reason = None
        self._since = time.perf_counter()
        try:
            if self._log and not self._log_begun:
                self._log.begin(self.records)
                self._log_begun = True
            with Interrupt() as interrupt:
                for callback in self._callbacks:
                    callback.on_run_begin(self)
                while self.epoch < epochs and not self._ending(interrupt):
                    self._run_epoch(epochs, interrupt)
                return self._end(interrupt)
        finally:
            self._pass_time()
            self._since = None

    def resume(self, path: str | os.PathLike[str] | None = None) -> bool:
        """Load a checkpoint: the next run continues where it was written, also within an epoch.

        On the same number of processes, the rest of the training is that of an uninterrupted run,
        bit for bit. On another number, the steps are equal to rounding, but for what differs
        between ranks: dropout draws other masks, and running averages start from their average.

        Args:
            path: The file, such as ``best.npz``. By default the newest in the folder, or
                ``best.npz`` if that is all there is.

        Returns:
            Whether there was one.

        Raises:
            CheckpointError: It is damaged, or does not fit: names, shapes, dtypes, callbacks. All
                differences are named, and nothing was changed.
            ValueError: There is neither ``path`` nor a folder.
            RuntimeError: A callback calls it.
        """
        self._require_idle("resume()")
        if path is None:
            if self._checkpoints is None:
                raise ValueError("resume() without path needs a folder: Trainer(checkpoint=...)")
            path = self._checkpoints.newest()
            if path is None:
                return False
        self._memory = self._keeper.load(Path(path))
        if self._checkpoints:
            self._checkpoints.take()
        self._begun, self._log_begun = True, False
        self._saved = (self.epoch, self.step)
        return True

    def stop(self, reason: str = "stop() was called") -> None:
        """End the run after the step, or the end of the epoch, that is being done.

        For callbacks and signal handlers: ``signal.signal(signal.SIGTERM, lambda *_:
        trainer.stop("SIGTERM"))``.
        """
        self._stop_reason = reason

    def score(self, record: dict[str, Any]) -> float:
        """How good an epoch was, by ``monitor``: the lower, the better, also with mode="max"."""
        value = float(record[self.monitor])
        return -value if self._mode == "max" else value

    def get_values(self) -> list[Any]:
        """Copies of the parameters, and of floats that ranks keep for themselves, as arrays."""
        return self._ranks.read(self._ranks.master, self._valued)

    def set_values(self, values: Sequence[Any]) -> None:
        """Set in all ranks what :meth:`get_values` returned."""
        self._ranks.write_all(self._valued, values)

    def save(self) -> Path:
        """Write a checkpoint now.

        Raises:
            CheckpointError: There are checkpoints of another training.
            ValueError: There is no folder for it.
        """
        if self._checkpoints is None:
            raise ValueError("there is no folder for checkpoints: Trainer(checkpoint=...)")
        if not self._begun:
            self._checkpoints.require_empty()
            self._begun = True
        return self._save(self._checkpoints)

    def _run_epoch(self, epochs: int, interrupt: Interrupt) -> None:
        """Take the steps of an epoch that are left; finish it unless the run is to end."""
        memory = self._memory
        if not memory.batch:
            memory.shuffle = self._order.get_state()
        self._rate.set_for("epoch", memory.epoch)
        with track(f"epoch {self.epoch + 1}", total=self._order.batches) as bar:
            bar.advance(memory.batch)
            for indexes in self._order.epoch(memory.shuffle, memory.batch):
                loss = self._take_step(indexes)
                bar.advance(1, f"loss {loss:.4g}")
                if self._ending(interrupt):
                    return
        self._finish_epoch(epochs)

    def _take_step(self, indexes: Any) -> float:
        self._rate.set_for("step", self.step)
        outputs = as_list(self.train(*self._data, batch=indexes, num_slices=self._num_slices))
        values = [scalar(name, value) for name, value in zip(self._train_columns, outputs)]
        self._memory.add(values, len(indexes))
        require_number(values[0], self.step, self._terminate_on_nan)
        for callback in self._callbacks:
            callback.on_step_end(self, values[0])
        checkpoints = self._checkpoints
        if checkpoints and self._is_due(checkpoints.every_steps, self.step):
            self._save(checkpoints)
        return values[0]

    def _finish_epoch(self, epochs: int) -> None:
        if self._average_local:
            self._ranks.average(self._local_floats)
        validated = self._valid() if self._valid else {"valid_loss": None}
        memory = self._memory
        trained: dict[str, Any] = dict(zip(self._train_columns, memory.end_epoch()))
        record = {
            "epoch": self.epoch,
            "step": self.step,
            "seconds": round(self._pass_time(), 3),
            "train_loss": trained.pop("train_loss"),
            "valid_loss": validated.pop("valid_loss"),
            **trained,
            **validated,
            "learning_rate": self._rate.value(),
        }
        score = self.score(record)
        self._rate.observe(score)
        self.records.append(record)
        self._say(epoch_line(self.records, epochs))
        try:
            for callback in self._callbacks:
                callback.on_epoch_end(self, record)
        finally:
            if self._log:
                self._log.append(self.records)
        checkpoints = self._checkpoints
        if score < memory.best:
            memory.best = score
            if checkpoints and checkpoints.best:
                # First: if the run ended in between, it would resume before the best epoch.
                checkpoints.write_best(self._content())
        if checkpoints and self._is_due(checkpoints.every_epochs, self.epoch):
            self._save(checkpoints)

    def _end(self, interrupt: Interrupt) -> History:
        if self._checkpoints and self.step and self._saved != (self.epoch, self.step):
            self._save(self._checkpoints)
        history = ended(self.records, self.step, interrupt.requested, self._stop_reason)
        for callback in self._callbacks:
            callback.on_run_end(self, history)
        return history

    def _content(self) -> dict[str, Any]:
        self._pass_time()
        return self._keeper.content(self._memory)

    def _save(self, checkpoints: Checkpoints) -> Path:
        path = checkpoints.write(self.step, self._content())
        self._saved = (self.epoch, self.step)
        return path

    def _is_due(self, every: int | None, count: int) -> bool:
        """Whether to save: as is usual, or again, as a callback did before others were called."""
        return bool(every and count % every == 0) or self._saved == (self.epoch, self.step)

    def _require_idle(self, what: str) -> None:
        if self._since is not None:
            raise RuntimeError(f"{what} while run() is under way; let a callback call stop() first")

    def _ending(self, interrupt: Interrupt) -> bool:
        return interrupt.requested or self._stop_reason is not None

    def _pass_time(self) -> float:
        """Seconds of training, up to now."""
        if self._since is not None:
            now = time.perf_counter()
            self._memory.seconds += now - self._since
            self._since = now
        return self._memory.seconds

    def __repr__(self) -> str:
        return f"<Trainer at epoch {self.epoch}, step {self.step}, of {self.train!r}>"
