"""The learning rate: a shared variable that a schedule sets in all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._arguments import require
from ._ranks import Ranks


class LearningRate:
    """Asks the schedule and sets the variable; either may be None.

    Raises:
        ValueError: There is a schedule and no variable, or ``by`` is unknown.
    """

    def __init__(
        self, variable: Any, schedule: Callable[[int], float] | None, by: str, ranks: Ranks
    ) -> None:
        if schedule is not None and variable is None:
            raise ValueError(
                "got a schedule and no learning_rate; expected the shared variable that the "
                "update rule takes for its rate, such as theano.shared(np.float32(0.1))"
            )
        require(by, "schedule_by", ("epoch", "step"))
        self._variable = variable
        self._schedule = schedule
        self._by = by
        self._ranks = ranks
        self._is_set = False

    def set_for(self, by: str, t: int) -> None:
        """Before an epoch, or a step, of number ``t`` from 0."""
        if self._schedule is None or by != self._by:
            return
        rate = np.asarray(self._schedule(t), dtype=self._variable.dtype)
        if not self._is_set or rate != self._variable.get_value():
            self._ranks.write_all([self._variable], [rate])
            self._is_set = True

    def observe(self, score: float) -> None:
        """Tell a schedule that wants to know how good an epoch was."""
        observe = getattr(self._schedule, "observe", None)
        if observe is not None:
            observe(score)

    def forget(self) -> None:
        """Another than this object may have set the variable."""
        self._is_set = False

    def value(self) -> float | None:
        """The rate as it is, or None."""
        return None if self._variable is None else float(self._variable.get_value())
