"""The learning rate: schedules, and the shared variable that they set on all ranks.

A schedule is a callable from the number of finished epochs (or steps) ``t`` to the rate: ``t`` is 0
before the first one. Any function of ``t`` will do; these are the usual ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from synk_core.engine import NAME

from ._arguments import at_least_one, finite, require, require_rate
from ._ranks import RankVariables
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
    after = schedule if callable(schedule) else lambda _: schedule
    end = at_least_one("length", length)
    return lambda t: after(t - end) if t >= end else after(0) * (start + (1 - start) * t / end)


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
            rate = finite(self._schedule(t), f"the schedule's rate for {by} {t}")
            rate = np.asarray(rate, dtype=self._variable.dtype)
        if self._set is None or rate != self._set or rate != self._variable.get_value():
            self._ranks.perform([self._ranks.set(None, [self._variable], [rate])])
            self._set = rate

    def value(self) -> float | None:
        """Return the present rate, or None."""
        return None if self._variable is None else float(self._variable.get_value())
