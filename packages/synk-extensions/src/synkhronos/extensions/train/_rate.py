"""The learning rate: a shared variable that a schedule sets in all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._arguments import finite, require, require_rate
from ._ranks import Ranks
from ._state import TrainingState


class LearningRate:
    """Asks the schedule and sets the variable; either may be None.

    Raises:
        TypeError: The variable is none.
        ValueError: There is a schedule and no variable, the step of ``state`` does not read it, or
            ``by`` is unknown.
    """

    def __init__(
        self,
        variable: Any,
        schedule: Callable[[int], float] | None,
        by: str,
        ranks: Ranks,
        state: TrainingState,
    ) -> None:
        if variable is not None:
            require_rate(variable, state)
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
        self._set: Any = None  # what all ranks have, as far as it is known

    def set_for(self, by: str, t: int) -> None:
        """Before an epoch, or a step, of number ``t`` from 0.

        A value that somebody else set in this process, in a callback say, is set in all ranks.
        """
        if self._variable is None:
            return
        rate = self._variable.get_value()
        if self._schedule is not None and by == self._by:
            if t == 0 and hasattr(self._schedule, "reset"):
                self._schedule.reset()  # what it learnt from another training's epochs
            rate = finite(self._schedule(t), f"the schedule's rate for {by} {t}")
            rate = np.asarray(rate, dtype=self._variable.dtype)
        if self._set is None or rate != self._set or rate != self._variable.get_value():
            self._ranks.write_all([self._variable], [rate])
            self._set = rate

    def observe(self, score: float) -> None:
        """Tell a schedule that wants to know how good an epoch was."""
        observe = getattr(self._schedule, "observe", None)
        if observe is not None:
            observe(score)

    def value(self) -> float | None:
        """The rate as it is, or None."""
        return None if self._variable is None else float(self._variable.get_value())
