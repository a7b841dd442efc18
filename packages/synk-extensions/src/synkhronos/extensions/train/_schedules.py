"""Schedules of the learning rate.

A schedule is a callable from the number of finished epochs (or steps) ``t`` to the rate: ``t`` is 0
before the first one. Any function of ``t`` will do; these are the usual ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Callable

import numpy as np

from ._arguments import at_least_one

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
