"""The learning rate: schedules, the shared variable that they set on all ranks, and a range test.

A schedule is a callable from the number of finished epochs (or steps) ``t`` to the rate: ``t`` is 0
before the first one. Any function of ``t`` will do; these are the usual ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, NamedTuple

import numpy as np

from synk_core import whole
from synk_core.engine import NAME

from ._arguments import at_least_one, finite, require, require_rate
from ._batches import BatchSampler
from ._checkpoint_contents import SharedVariables
from ._checkpoint_files import number_in
from ._data import as_list, number_of_rows, placed, scalar
from ._ranks import RankVariables, ranks_of
from ._state import TrainingState

Schedule = Callable[[int], float]


def step_decay(rate: float, every: int | Sequence[int], factor: float = 0.1) -> Schedule:
    """Multiply the rate by ``factor`` at intervals: ``rate * factor ** n``.

    Args:
        every: Number of epochs between two changes, ``n = t // every``, at least 1; or a list of
            the epochs of the changes, where ``n`` is the number of those up to ``t``.
    """
    if isinstance(every, (int, np.integer)):
        length = at_least_one("every", int(every))
        return lambda t: rate * factor ** (t // length)
    changes = sorted(every)
    return lambda t: rate * factor ** sum(change <= t for change in changes)


def exponential(rate: float, factor: float) -> Schedule:
    """Multiply the rate by ``factor`` each time: ``rate * factor ** t``."""
    return lambda t: rate * factor**t


def cosine(rate: float, length: int, lowest: float = 0.0) -> Schedule:
    """Decrease the rate along half a cosine wave, without restarts.

    ``lowest + (rate - lowest) * (1 + cos(pi * t / length)) / 2``, equation 5 of Loshchilov and
    Hutter (2017), "SGDR: Stochastic gradient descent with warm restarts"; ``lowest`` from
    ``length`` on.

    ``length``, the number of epochs (or steps) of the decrease, is at least 1.
    """
    end = at_least_one("length", length)
    return lambda t: lowest + (rate - lowest) * (1 + math.cos(math.pi * min(t, end) / end)) / 2


def warm_up(schedule: float | Schedule, length: int, start: float = 0.0) -> Schedule:
    """Increase the rate linearly, then follow ``schedule`` from its beginning.

    For ``t < length`` the rate is ``schedule(0) * (start + (1 - start) * t / length)``; then
    ``schedule(t - length)``. This is the gradual warm-up of Goyal et al. (2017), "Accurate, large
    minibatch SGD".

    Args:
        schedule: The schedule after the warm-up, or a constant rate.
        length: Number of epochs (or steps) of the warm-up, at least 1.
        start: Rate at the beginning, as a fraction of ``schedule(0)``.
    """
    return _WarmUp(schedule, at_least_one("length", length), start)


class _WarmUp:
    """See :func:`warm_up`. The schedule after it may observe scores, as `ReduceOnPlateau` does."""

    def __init__(self, schedule: Any, length: int, start: float) -> None:
        self._after: Any = schedule if callable(schedule) else lambda _: schedule
        self._length, self._start = length, start

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._after, name)  # observe, reset, state, load_state

    def __call__(self, t: int) -> float:
        if t >= self._length:
            return float(self._after(t - self._length))
        return float(self._after(0)) * (self._start + (1 - self._start) * t / self._length)


class ReduceOnPlateau:
    """Lower the rate when the loss no longer improves.

    After ``patience`` epochs in a row without a loss lower than the best minus ``min_delta``, the
    rate is multiplied by ``factor``, and counting starts again. (Keras's callback of that name does
    the same; PyTorch's waits for one more epoch.) The loss is the Trainer's ``monitor``.

    Args:
        rate: The rate at the beginning.
        factor: Factor of each reduction, between 0 and 1.
        patience: Number of epochs in a row without improvement before a reduction, at least 1.
        min_delta: An improvement has to be larger than this, in units of the loss.
        cooldown: Number of epochs after a reduction that do not count.
        lowest: Lower limit of the rate.
    """

    def __init__(
        self,
        rate: float,
        factor: float = 0.1,
        patience: int = 10,
        min_delta: float = 0.0,
        cooldown: int = 0,
        lowest: float = 0.0,
    ) -> None:
        if not 0 < factor < 1:
            raise ValueError(f"factor is {factor}; expected a number between 0 and 1")
        self._factor = factor
        self._patience = at_least_one("patience", patience)
        self._min_delta, self._cooldown, self._lowest = min_delta, cooldown, lowest
        self._first = rate
        self.reset()

    def __call__(self, t: int) -> float:  # noqa: ARG002 - a schedule that does not depend on time
        """Return the present rate."""
        return self._rate

    def reset(self) -> None:
        """Start again; the Trainer calls this before the first step of a training."""
        self._rate, self._best = self._first, math.inf
        self._waited = self._resting = 0

    def observe(self, score: float) -> None:
        """Count an epoch with this loss."""
        better = score < self._best - self._min_delta
        if better:
            self._best = score
        self._waited = 0 if better or self._resting else self._waited + 1
        self._resting = max(self._resting - 1, 0)
        if self._waited >= self._patience:
            self._rate = max(self._rate * self._factor, self._lowest)
            self._waited, self._resting = 0, self._cooldown

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps."""
        counts = {"waited": self._waited, "resting": self._resting}
        return {"rate": self._rate, "best": self._best, **counts}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        rate = number_in(state, "rate", float)
        best = number_in(state, "best", float, -math.inf, math.inf)
        self._waited, self._resting = number_in(state, "waited"), number_in(state, "resting")
        self._rate, self._best = rate, best


class LearningRate:
    """Call the schedule and set the variable; either may be None."""

    def __init__(
        self, variable: Any, schedule: Any, by: str, ranks: RankVariables, state: TrainingState
    ) -> None:
        if variable is not None:
            require_rate(variable, state)
        if schedule is not None and variable is None:
            raise ValueError(
                "got a schedule but no learning_rate; expected the shared variable that the "
                f"update rule takes for its rate, such as {NAME}.shared(numpy.float32(0.1))"
            )
        require(by, "schedule_by", ("epoch", "step"))
        self._variable, self._schedule, self._by, self._ranks = variable, schedule, by, ranks
        self._set: Any = None  # the value that all ranks are known to have

    def set_for(self, by: str, t: int) -> None:
        """Set the rate before epoch or step number ``t``, counted from 0.

        A value that, say, a callback set in this process is set on all ranks.
        """
        if self._variable is None:
            return
        rate = self._variable.get_value()
        if self._schedule is not None and by == self._by:
            if t == 0 and hasattr(self._schedule, "reset"):
                self._schedule.reset()  # its state may be that of another training
            rate = finite(self._schedule(t), f"the schedule's rate for {by} {t}")
            rate = np.asarray(rate, dtype=self._variable.dtype)
        if self._set is None or rate != self._set or rate != self._variable.get_value():
            self._ranks.perform([self._ranks.set(None, [self._variable], [rate])])
            self._set = rate

    def observe(self, score: float) -> None:
        """Pass an epoch's score to a schedule that observes scores."""
        if hasattr(self._schedule, "observe"):
            self._schedule.observe(score)

    def value(self) -> float | None:
        """Return the present rate, or None."""
        return None if self._variable is None else float(self._variable.get_value())


_SMOOTHING = 0.9  # weight of the earlier losses in the running average of a range test
_DIVERGED = 4.0  # multiple of the lowest smoothed loss from which on a range test ends


class RateRange(NamedTuple):
    """The result of :func:`find_learning_rate`.

    Attributes:
        rates: The rates that were tried, increasing; float64, one per step.
        losses: The loss before each step; the last may not be finite.
        smoothed: The running average of the losses.
        suggestion: A rate to begin with: a tenth of that with the lowest smoothed loss; None if it
            has not fallen.
    """

    rates: Any
    losses: Any
    smoothed: Any
    suggestion: float | None


def find_learning_rate(
    train: Any,
    learning_rate: Any,
    data: Any,
    batch_size: int,
    lowest: float = 1e-6,
    highest: float = 10.0,
    steps: int = 100,
    seed: Any = 0,
    num_slices: int = 1,
) -> RateRange:
    """Try learning rates: take steps of training while the rate grows, and undo them.

    The range test of Smith (2017), "Cyclical learning rates for training neural networks", with
    geometric steps. It ends early where the loss is not finite, or four times the lowest. In the
    end all that a step changes has the values of before, on all ranks, also if a step raises.

    Args:
        train: As made by :func:`make_train_function`, or the serial twin.
        learning_rate: The shared variable that ``train`` takes for its rate.
        data: As of the Trainer: an array or ``Data``, or a list of them, one per input.
        batch_size: Rows of a step; the same as in training, because the best rate depends on it.
        lowest, highest: The first rate and the last.
        steps: Number of rates, at least 2.
        seed: Shuffles the rows, as in the Trainer.
        num_slices: As in a call of ``train``.

    Raises:
        TypeError, ValueError: Bad arguments; nothing was done.
        All errors of a step.
    """
    ranks = ranks_of(train)
    require_rate(learning_rate, train.state)
    if not 0 < finite(lowest, "lowest") < finite(highest, "highest"):
        raise ValueError(f"lowest is {lowest}, highest {highest}; expected 0 < lowest < highest")
    if int(at_least_one("steps", steps)) < 2:
        raise ValueError(f"steps is {steps}; expected at least 2")
    data = placed(train, data, "data")
    sampler = BatchSampler(number_of_rows(train, data), batch_size, seed, True, False)
    epochs = iter(lambda: sampler.epoch(sampler.get_state()), None)
    rates = np.geomspace(lowest, highest, int(steps))
    losses: list[float] = []
    smoothed: list[float] = []

    def take_steps() -> None:
        average = 0.0
        for rate, rows in zip(rates, itertools.chain.from_iterable(epochs)):
            value = np.asarray(rate, learning_rate.dtype)
            ranks.perform([ranks.set(None, [learning_rate], [value])])
            outputs = as_list(train(*data, batch=rows, num_slices=num_slices))
            losses.append(scalar("the loss", outputs[0]))
            average = _SMOOTHING * average + (1 - _SMOOTHING) * losses[-1]
            # Of so many losses, as if none had come before the first: Kingma and Ba (2015).
            smoothed.append(average / (1 - _SMOOTHING ** len(losses)))
            if not math.isfinite(losses[-1]) or smoothed[-1] > _DIVERGED * min(smoothed):
                break

    variables, rule = SharedVariables(ranks, train.state, learning_rate), train.sync
    before = variables.read()
    undo = [variables.setting(before, before)]
    undo += [] if rule is None else [partial(rule.load_state, rule.state())]
    whole(take_steps, *undo, always=True, ends=True)
    best = int(np.nanargmin(smoothed)) if np.isfinite(smoothed).any() else 0
    suggestion = float(rates[best]) / 10 if best else None
    return RateRange(rates[: len(losses)], np.array(losses), np.array(smoothed), suggestion)
