"""Learning rates that change: plain callables from the number of epochs (or steps) to the rate.

``t`` counts what is done already: 0 before the first epoch (or step). Any function of ``t`` is a
schedule; these are the usual ones.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any, Callable

Schedule = Callable[[int], float]


def step_decay(rate: float, every: int | Sequence[int], factor: float = 0.1) -> Schedule:
    """Multiply the rate by ``factor`` now and then: ``rate * factor ** n``.

    Args:
        rate: The rate at the beginning.
        every: Number of epochs between two changes, ``n = t // every``; or the epochs of the
            changes, ``n`` of which have come.
        factor: What the rate is multiplied by.

    Raises:
        TypeError: ``every`` is neither a number of epochs nor a list of epochs.
        ValueError: ``every`` is less than 1.
    """
    if isinstance(every, numbers.Integral):
        length = _at_least_one("every", int(every))
        return lambda t: rate * factor ** (t // length)
    if isinstance(every, (str, numbers.Number)) or not isinstance(every, Iterable):
        raise TypeError(
            f"every is {every!r}; expected a number of epochs or a list of them, as in "
            "step_decay(rate, every, factor)"
        )
    changes = sorted(every)
    return lambda t: rate * factor ** sum(change <= t for change in changes)


def exponential(rate: float, factor: float) -> Schedule:
    """Multiply the rate by ``factor`` each time: ``rate * factor ** t``."""
    return lambda t: rate * factor**t


def cosine(rate: float, length: int, lowest: float = 0.0) -> Schedule:
    """Go down along half a cosine wave, without restarts.

    ``lowest + (rate - lowest) * (1 + cos(pi * t / length)) / 2``, equation 5 of Loshchilov and
    Hutter (2017), "SGDR: Stochastic gradient descent with warm restarts"; ``lowest`` from
    ``length`` on.

    Args:
        rate: The rate at the beginning.
        length: How many epochs (or steps) the way down takes.
        lowest: The rate at the end.

    Raises:
        ValueError: ``length`` is less than 1.
    """
    end = _at_least_one("length", length)
    return lambda t: lowest + (rate - lowest) * (1 + math.cos(math.pi * min(t, end) / end)) / 2


def warm_up(schedule: float | Schedule, length: int, start: float = 0.0) -> Schedule:
    """Begin low and go up in a straight line, then follow ``schedule`` from its beginning.

    For ``t < length`` the rate is ``schedule(0) * (start + (1 - start) * t / length)``; then
    ``schedule(t - length)``. It is the gradual warm-up of Goyal et al. (2017), "Accurate, large
    minibatch SGD".

    Args:
        schedule: What follows: another schedule, or a constant rate.
        length: How many epochs (or steps) the way up takes.
        start: Where it begins, as a fraction of ``schedule(0)``.

    Raises:
        ValueError: ``length`` is less than 1.
    """
    return _WarmUp(schedule, _at_least_one("length", length), start)


class _WarmUp:
    """See :func:`warm_up`. What follows may learn from the epochs, as `ReduceOnPlateau` does."""

    def __init__(self, schedule: float | Schedule, length: int, start: float) -> None:
        self._after: Any = schedule
        self._length = length
        self._start = start
        if hasattr(schedule, "observe"):
            for name in ("observe", "reset", "state", "load_state"):
                if hasattr(schedule, name):
                    setattr(self, name, getattr(schedule, name))

    def __call__(self, t: int) -> float:
        if t >= self._length:
            return self._rate(t - self._length)
        return self._rate(0) * (self._start + (1 - self._start) * t / self._length)

    def _rate(self, t: int) -> float:
        return float(self._after(t) if callable(self._after) else self._after)


class ReduceOnPlateau:
    """Lower the rate when the loss no longer gets better.

    After ``patience`` epochs in a row without a loss lower than the best minus ``min_delta``, the
    rate is multiplied by ``factor``, and counting begins anew. (As Keras's callback of that name;
    PyTorch's waits for one epoch more.) The loss is the Trainer's ``monitor``.

    Args:
        rate: The rate at the beginning.
        factor: What the rate is multiplied by.
        patience: How many epochs in a row without improvement it takes.
        min_delta: What counts as an improvement: more than this, in units of the loss.
        cooldown: After a reduction, so many epochs are not counted.
        lowest: The rate is not lowered below this.

    Raises:
        ValueError: ``patience`` is less than 1, or ``factor`` is not between 0 and 1.
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
        self._patience = _at_least_one("patience", patience)
        self._min_delta = min_delta
        self._cooldown = cooldown
        self._lowest = lowest
        self._first = rate
        self.reset()

    def __call__(self, t: int) -> float:  # noqa: ARG002 - a schedule, but time is not what counts
        """The rate as it stands."""
        return self._rate

    def reset(self) -> None:
        """Begin anew; the Trainer asks for it before the first step of a training."""
        self._rate = self._first
        self._best = math.inf
        self._waited = 0
        self._resting = 0

    def observe(self, score: float) -> None:
        """Take note of an epoch's loss."""
        better = score < self._best - self._min_delta
        if better:
            self._best = score
        if self._resting > 0:
            self._resting -= 1
            self._waited = 0
            return
        self._waited = 0 if better else self._waited + 1
        if self._waited >= self._patience:
            self._rate = max(self._rate * self._factor, self._lowest)
            self._waited = 0
            self._resting = self._cooldown

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "rate": self._rate,
            "best": self._best,
            "waited": self._waited,
            "resting": self._resting,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self._rate, self._best = state["rate"], state["best"]
        self._waited, self._resting = state["waited"], state["resting"]


def _at_least_one(name: str, number: Any) -> Any:
    if not isinstance(number, numbers.Real):
        raise TypeError(f"{name} is {number!r}; expected a number of epochs (or steps)")
    if number < 1:
        raise ValueError(f"{name} is {number}; expected at least 1")
    return number
