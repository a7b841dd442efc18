"""The loop around a training step (epochs, validation, checkpoints), and its callbacks.

The Trainer chooses the indexes and the learning rate before a step, and keeps sums after it. Its
own state is a `TrainingProgress`; with the values of the shared variables and the states of
generator, schedule and callbacks this makes a checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import numbers
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from synk_core import whole
from synkhronos._default import refuses_other_names, reporter
from synkhronos._progress import track

from ._arguments import names_of_outputs, require, require_finite_params, require_number
from ._batches import BatchMaker, BatchSampler
from ._callbacks import as_callback, is_stateful
from ._checkpoint_contents import CheckpointContents, SharedVariables, TrainingProgress
from ._checkpoint_files import Checkpoints, write_file
from ._data import Validation, as_list, number_of_rows, placed, scalar
from ._history import History, LogFile, ended, epoch_line
from ._interrupt import Interrupt
from ._learning_rate import LearningRate
from ._ranks import is_float, ranks_of


class Trainer:
    """Train for some epochs, with validation, schedules, checkpoints and a log.

    Programs and callbacks use half of the methods; the others are the parts of a run.

    ::

        rate = theano.shared(np.float32(0.1))
        train = make_train_function(loss, params, [x, y], updates.momentum, learning_rate=rate)
        trainer = Trainer(
            train, (x_train, y_train), 128, valid=f_valid, valid_data=(x_valid, y_valid),
            learning_rate=rate, schedule=cosine(0.1, 20), log="log.csv", checkpoint="checkpoints",
        )
        history = trainer.run(20, resume=True)

    Args:
        train: From :func:`make_train_function` or :func:`make_train_function_theano`. If it has a
            rule of :mod:`synkhronos.extensions.sync`, all ranks get the common parameters after
            each epoch, before validation (``settle()``).
        data: An array or ``Data`` for each input of ``train``, in a tuple; or a single one. All but
            those of ``bcast_inputs`` have the same number of rows. Arrays are copied to shared
            memory once; a thread reads the rows of files (a memory map, an HDF5 dataset, a Zarr
            array) ahead instead. Or batches that you make: a function ``f(epoch)`` from the number
            of finished epochs to an iterable of them, or an object that can be iterated once per
            epoch. A batch is what ``train.steps`` takes; a thread draws them ahead.
        batch_size: Rows per step, for all ranks together. None if you make the batches.
        valid: Function of the validation set, called after each epoch: a
            ``synkhronos.Function``, or any callable such as a compiled Theano function. Its first
            output is the validation loss; all outputs must be means over the rows.
        valid_data: Like ``data``, for ``valid``.
        valid_slices: Number of slices for validation, to save memory; the means are the same.
        valid_names: Names of the further outputs of ``valid``, one each. Those of ``train`` have
            the names of their expressions, else ``output_1`` and so on.
        num_slices: Number of slices for each gradient.
        learning_rate: The shared variable that ``train`` takes for its rate.
        schedule: Function from the number of finished epochs to the rate, such as :func:`cosine`
            returns, or :class:`ReduceOnPlateau`. The rate is set on all ranks.
        schedule_by: "epoch", or "step" to call the schedule before each step, with the number of
            steps taken.
        seed: Seed for shuffling: anything that ``numpy.random.default_rng`` takes, or a Generator
            or RandomState. This and the next two have no effect if you make the batches.
        shuffle: Shuffle the rows again for each epoch.
        drop_last: Leave out a last batch that is smaller.
        monitor: The column of the log that scores an epoch, for ``best.npz``, early stopping, and
            :class:`ReduceOnPlateau`; by default "valid_loss", without ``valid`` "train_loss".
        mode: "min" if a low ``monitor`` is good, "max" if a high one is, such as an accuracy.
        average_local: After each epoch, before validation, average the floats that each rank keeps
            for itself (``train.state.local``), such as the running averages of batch normalisation.
        terminate_on_nan: Raise FloatingPointError if the loss of a step, or a parameter that would
            be saved, is not finite. No checkpoint is written or deleted then. If False, warn once
            and continue.
        on_sigterm: "checkpoint" to save and end the program at SIGTERM: see :meth:`run`. None to
            leave the signal alone.
        callbacks: :class:`Callback` objects, or functions to call after each epoch, in this order.
        checkpoint: A folder, or :class:`Checkpoints`.
        log: CSV file that gets a line per epoch.
        verbose: Print a line for each finished epoch on standard output.

    Attributes:
        train: The training step.
        monitor: As given, or its default.

    Raises:
        TypeError, ValueError: An argument is of the wrong kind or out of range.
    """

    @refuses_other_names
    def __init__(
        self,
        train: Any,
        data: Any,
        batch_size: int | None = None,
        *,
        valid: Any = None,
        valid_data: Any = None,
        valid_slices: int = 1,
        valid_names: Sequence[str] = (),
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
        on_sigterm: str | None = None,
        callbacks: Sequence[Any] = (),
        checkpoint: str | os.PathLike[str] | Checkpoints | None = None,
        log: str | os.PathLike[str] | None = None,
        verbose: bool = True,
    ) -> None:
        self.train, self._ranks = train, ranks_of(train)
        if (valid is None) != (valid_data is None):
            raise ValueError("got one of valid and valid_data; expected both or neither")
        require(mode, "mode", ("min", "max"))
        if on_sigterm is not None:
            require(on_sigterm, "on_sigterm", ("checkpoint",))
            if checkpoint is None:
                raise ValueError("on_sigterm='checkpoint' needs a folder: Trainer(checkpoint=...)")
        self._interrupt = Interrupt(on_sigterm is not None)
        self._sampler: BatchMaker | BatchSampler
        if BatchMaker.makes(data):
            self._data, self._sampler = (), BatchMaker(data, batch_size)
        else:
            self._data = placed(train, data, "data")
            rows = number_of_rows(train, self._data)
            self._sampler = BatchSampler(rows, batch_size, seed, shuffle, drop_last)
        self._num_slices, self._seed = num_slices, seed
        names = names_of_outputs(train.output_names)
        known = self._train_columns = [f"train_{name}" for name in names]
        self._valid = None
        if valid is not None:
            self._valid = Validation(valid, valid_data, valid_slices, valid_names)
            known = [*known, *self._valid.columns]
        self._columns = list(dict.fromkeys(["train_loss", "valid_loss", *known]))
        self.monitor = monitor or ("valid_loss" if self._valid else "train_loss")
        require(self.monitor, "monitor", known)
        self._mode, self._terminate_on_nan = mode, terminate_on_nan
        self._callbacks = [*map(as_callback, callbacks)]
        is_folder = checkpoint is not None and not isinstance(checkpoint, Checkpoints)
        self._checkpoints: Any = Checkpoints(checkpoint) if is_folder else checkpoint  # type: ignore[arg-type]
        columns = ["epoch", "step", "seconds", *self._columns, "learning_rate"]
        self._log = None if log is None else LogFile(log, columns)
        self._report = reporter(verbose)
        floats = [variable for variable in train.state.local if is_float(variable)]
        self._averaged = floats if average_local else []
        self._valued = [*train.state.params, *train.state.centre, *floats]
        self._rate = LearningRate(learning_rate, schedule, schedule_by, self._ranks, train.state)
        self._contents = CheckpointContents(
            SharedVariables(self._ranks, train.state, learning_rate),
            self._sampler,
            {"monitor": self.monitor, "mode": mode, "train_columns": self._train_columns},
            [*filter(is_stateful, [schedule, *self._callbacks, train.sync])],
        )
        self._progress = TrainingProgress([0.0] * len(self._train_columns))
        self._since: float | None = None  # of a run under way, when its seconds were 0
        self._saved: tuple[int, int] | None = None
        self._due: deque[tuple[bool, Callable[[], Any]]] = deque()  # at the end of an epoch
        self._stop_reason: str | None = None

    @property
    def epoch(self) -> int:
        """The number of finished epochs."""
        return self._progress.epoch

    @property
    def step(self) -> int:
        """The number of steps taken."""
        return self._progress.step

    @property
    def learning_rate(self) -> float | None:
        """The present value of the learning rate's variable in this process, or None."""
        return self._rate.value()

    @property
    def settings(self) -> dict[str, Any]:
        """The numbers of this training by their names as arguments, ``rows`` and ``ranks``.

        Logs of experiments show them. ``seed`` is missing if it is not an integer.
        """
        seed = {"seed": int(self._seed)} if isinstance(self._seed, numbers.Integral) else {}
        slices = {"num_slices": self._num_slices, "ranks": self._ranks.size}
        return {**self._sampler.settings, **slices, **seed}

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records of the finished epochs, as in :class:`History`."""
        return self._progress.records

    def run(self, epochs: int, resume: bool = False) -> History:
        """Train until ``epochs`` epochs are finished in all, earlier runs included.

        The first Ctrl-C stops after the present step, or while a batch is awaited: the Trainer
        writes a checkpoint, if it has a folder for it, and returns. The second raises
        KeyboardInterrupt at once. (In threads other than the main one, Ctrl-C works as usual.) An
        error after the first Ctrl-C is the cause of a KeyboardInterrupt.

        With ``on_sigterm="checkpoint"``, a SIGTERM stops after the present step, and after
        validation if that is under way: the Trainer writes a checkpoint, calls the callbacks as
        after Ctrl-C, and ends the program by SystemExit with the status 143. An error of the step,
        or of a callback after it, is logged, and the program ends all the same; after any other
        error, the next run of any Trainer ends it.

        Args:
            epochs: Total number of epochs.
            resume: Continue from the newest checkpoint, if there is one; see :meth:`resume`.

        Returns:
            The :class:`History`, with the epochs before a resume.

        Raises:
            TypeError: ``epochs`` is no integer, or negative.
            CheckpointError: With ``resume``, the newest checkpoint cannot be loaded; without, a new
                training would mix its checkpoints with those of an earlier one.
            OSError: The folder for checkpoints or the log cannot be written. No step was taken.
            FloatingPointError: The loss or a parameter was not finite (``terminate_on_nan``).
            RuntimeError: A callback called it; or ``on_sigterm`` is set, and this is not the main
                thread.
            SystemExit: SIGTERM came, and ``on_sigterm`` is set.
            All errors of the training step and callbacks. The next run continues from there.
        """
        self._require_idle("run()")
        if not hasattr(epochs, "__index__") or epochs < 0:
            raise TypeError(f"epochs is {epochs!r}; expected an integer of at least 0")
        if resume:
            self.resume()
        self._require_own_folder()
        if self._checkpoints and self.epoch < epochs:
            self._checkpoints.require_writable()
        self._stop_reason, self._interrupt.over = None, False
        return whole(partial(self._run, epochs), self._idle, always=True, ends=True)

    def resume(self, path: str | os.PathLike[str] | None = None) -> bool:
        """Load a checkpoint: the next run continues where it was written, also within an epoch.

        On the same number of processes, the rest of the training equals that of an uninterrupted
        run bit for bit. On another number, the steps are equal to rounding, except for values
        that differ between ranks: dropout draws other masks, and running averages start from
        their average.

        Args:
            path: The file, such as ``best.npz``. By default the newest in the folder, or
                ``best.npz`` if there is no other.

        Returns:
            True if a checkpoint was loaded, False if there was none.

        Raises:
            CheckpointError: It is damaged, or does not fit: names, shapes, dtypes, callbacks. The
                message lists all differences, and nothing was changed.
            ValueError: There is neither ``path`` nor a folder.
            RuntimeError: A callback called it.
        """
        self._require_idle("resume()")
        if path is None and self._checkpoints is None:
            raise ValueError("resume() without path needs a folder: Trainer(checkpoint=...)")
        found = self._checkpoints.newest() if path is None else path
        if found is None:
            return False

        def use(progress: TrainingProgress) -> None:
            self._progress = progress
            self._saved = (self.epoch, self.step)
            self._due.clear()

        self._contents.load(Path(found), use)
        return True

    def stop(self, reason: str = "stop() was called") -> None:
        """End the run after the present step, or after the end of the epoch if that is under way.

        For callbacks and signal handlers; if these interrupt the wait for a batch, it ends at once.
        """
        self._stop_reason = reason
        self._interrupt.end_wait()

    def score(self, record: dict[str, Any]) -> float:
        """Return an epoch's score by ``monitor``: lower is better, also with mode="max"."""
        return float(record[self.monitor]) * (-1 if self._mode == "max" else 1)

    def get_values(self) -> list[Any]:
        """Return copies of the parameters, and of floats that each rank keeps for itself."""
        return list(self._ranks.perform([self._ranks.get(self._ranks.master, self._valued)])[0])

    def set_values(self, values: Sequence[Any]) -> None:
        """Set values that :meth:`get_values` returned, on all ranks."""
        self._ranks.perform([self._ranks.set(None, self._valued, values)])

    def save(self) -> Path:
        """Write a checkpoint now.

        Raises:
            CheckpointError: The folder has checkpoints of another training.
            FloatingPointError: A parameter is not finite (``terminate_on_nan``).
            ValueError: There is no folder for it.
        """
        if self._checkpoints is None:
            raise ValueError("there is no folder for checkpoints: Trainer(checkpoint=...)")
        self._require_own_folder()
        path = self._checkpoints.write(self.step, self._content())
        self._saved = (self.epoch, self.step)
        return path

    def _require_own_folder(self) -> None:
        """Raise CheckpointError if a new training would mix with an earlier one."""
        if self._checkpoints and not self.step and self._saved is None:
            self._checkpoints.require_empty()

    def _run(self, epochs: int) -> History:
        self._since = time.perf_counter() - self._progress.seconds
        if self._log:
            self._log.begin(self.records)
        with self._interrupt as interrupt, contextlib.ExitStack() as exits:
            for callback in self._callbacks:
                callback.on_run_begin(self)
                exits.push(lambda _, error, __, c=callback: c.on_run_exit(self, error))
            try:
                self._do_due()
                while self.epoch < epochs and not interrupt.over:
                    self._run_epoch(epochs)
            except Exception as error:
                if interrupt.by != "SIGTERM" or isinstance(error, FloatingPointError):
                    raise
                logging.getLogger("synkhronos").exception("SIGTERM came, and then an error")
                with contextlib.suppress(Exception):  # one is logged already
                    self._do_due()
            if self._checkpoints and self.step and self._saved != (self.epoch, self.step):
                self.save()
            by = interrupt.by and f"{interrupt.by}, after step {self.step}"
            history = ended(self.records, by, self._stop_reason)
            for callback in self._callbacks:
                callback.on_run_end(self, history)
            interrupt.end_program()
            return history

    def _run_epoch(self, epochs: int) -> None:
        """Take the remaining steps of an epoch; finish it unless the run has to end."""
        progress = self._progress
        if progress.shuffle is None:
            progress.shuffle = self._sampler.get_state()
        self._rate.set_for("epoch", progress.epoch)
        with track(f"epoch {self.epoch + 1}", total=self._sampler.batches) as advance:
            advance(progress.batch)
            batches = self._sampler.epoch(progress.shuffle, progress.batch)
            steps = self.train.each_step(*self._data, batches, num_slices=self._num_slices)
            while (take := self._interrupt.drawn(steps)) is not None:
                advance(1, f"loss {self._take_step(take):.4g}")
        if self._interrupt.over:
            return
        if not progress.batch:
            raise ValueError(f"data gave no batch for epoch {self.epoch}; expected at least one")
        if self.train.sync is not None:
            self.train.sync.settle()
        self._ranks.average(self._averaged)
        validated = self._valid() if self._valid else {}
        whole(partial(self._count_epoch, validated), ends=False)
        self._report(epoch_line(self.records, epochs))
        try:
            self._do_due()
        finally:
            if self._log:
                self._log.append(self.records)

    def _take_step(self, take: Callable[[], Any]) -> float:
        self._rate.set_for("step", self.step)

        def counted() -> float:
            values = [scalar(*pair) for pair in zip(self._train_columns, as_list(take()))]
            self._progress.add(values, self.train.rows or 1)
            return values[0]

        loss = whole(counted)
        require_number(loss, self.step, self._terminate_on_nan)
        for callback in self._callbacks:
            callback.on_step_end(self, loss)
        if self._checkpoints:
            self._save_each(self._checkpoints.every_steps, self.step)
        return loss

    def _count_epoch(self, validated: dict[str, Any]) -> None:
        means = {**dict(zip(self._train_columns, self._progress.end_epoch())), **validated}
        record: dict[str, Any] = {
            "epoch": self.epoch,
            "step": self.step,
            "seconds": round(self._seconds(), 3),
            **{name: means.get(name) for name in self._columns},
            "learning_rate": self._rate.value(),
        }
        score = self.score(record)
        self.records.append(record)
        self._due.append((True, partial(self._rate.observe, score)))
        for callback in self._callbacks:
            # Those of the training itself get each epoch once, also if others are interrupted.
            belongs = callback.required and is_stateful(callback)
            self._due.append((belongs, partial(callback.on_epoch_end, self, record)))
        self._due.append((True, partial(self._keep, score)))

    def _do_due(self) -> None:
        """Do what is due at the end of an epoch, or was, when the last run was interrupted."""
        while self._due:
            if self._due[0][0]:
                whole(lambda: (self._due[0][1](), self._due.popleft()), ends=False)
            else:
                self._due.popleft()[1]()

    def _keep(self, score: float) -> None:
        """Write the checkpoints of the end of an epoch."""
        checkpoints = self._checkpoints
        if score < self._progress.best:
            if checkpoints and checkpoints.best:
                content = self._content()
                content["progress"]["best"] = score
                # First: if the run ended in between, it would resume before the best epoch.
                write_file(checkpoints.best_path, content)
            self._progress.best = score
        if checkpoints:
            self._save_each(checkpoints.every_epochs, self.epoch)

    def _save_each(self, every: int | None, count: int) -> None:
        """Save if that is due; and again if a callback saved before others ran."""
        if (every and count % every == 0) or self._saved == (self.epoch, self.step):
            self.save()

    def _content(self) -> dict[str, Any]:
        """Return the contents of a checkpoint, unless a parameter is not finite."""
        self._seconds()
        content = self._contents.collect(self._progress)
        if self._terminate_on_nan:
            require_finite_params(content["variables"]["params"], self.step)
        return content

    def _seconds(self) -> float:
        """Return the seconds of training until now."""
        if self._since is not None:
            self._progress.seconds = time.perf_counter() - self._since
        return self._progress.seconds

    def _idle(self) -> None:
        self._seconds()
        self._since = None

    def _require_idle(self, what: str) -> None:
        if self._since is not None:
            raise RuntimeError(f"{what} while run() is under way; let a callback call stop() first")

    def __repr__(self) -> str:
        return f"<Trainer at epoch {self.epoch}, step {self.step}, of {self.train!r}>"
