"""Report the rank that keeps the others waiting, and where, when an order takes long or fails."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Mapping, Sequence

import numpy as np

from synk_theano._text import shown
from synk_theano._warn import warn_user
from synk_theano._watch.flight import Phase
from synk_theano.exceptions import InputValueError, StallWarning, WorkerStalled

from .blackbox import BlackBox

_WAITING = (Phase.IDLE, Phase.REDUCE, Phase.COLLECTIVE, Phase.END, Phase.FAIL)
"""For others: these ranks are not to blame."""


def checked_seconds(value: Any, what: str) -> float:
    """
    Raises:
        InputValueError: it is no time that one can wait.
    """
    if isinstance(value, (int, float, np.integer, np.floating)) and value > 0:
        return float(value)
    raise InputValueError(f"{what}: got {shown(value)}, expected a number of seconds above 0")


class StallWatch:
    """Looks after one order at a time, while the master waits for it.

    Args:
        box: what the ranks are doing.
        master: the rank of this process.
        stacks: gives the Python stacks of workers.
        stall_s: seconds after which to warn, then after twice as many, and so on.

    Attributes:
        began: when the order began, in seconds of `time.monotonic`; set by the master.
    """

    def __init__(
        self,
        box: BlackBox,
        master: int,
        stacks: Callable[[Sequence[int]], Dict[int, str]],
        stall_s: float,
    ) -> None:
        self._box = box
        self._workers = [rank for rank in range(len(box.flights)) if rank != master]
        self._stacks = stacks
        self._stall_s = stall_s
        self.began = 0.0
        self._warned = 0.0, 0.0

    def check(self) -> None:
        """Called while the master waits; warns when it is time."""
        seconds = time.monotonic() - self.began
        began, warned_s = self._warned
        if seconds < (2 * warned_s if began == self.began else self._stall_s):
            return
        self._warned = self.began, seconds
        ranks = self.late()
        text = self.describe(ranks, seconds, self._stacks(ranks))
        warn_user(
            f"{text}\nStill waiting. fork(stall_s=...) sets when this warning appears, "
            f"fork(timeout_s=...) when to give up.",
            StallWarning,
        )

    def late(self) -> List[int]:
        """The workers that are at work of their own, while others wait; all, if none is."""
        busy = [r for r in self._workers if self._box.flights[r].phase[0] not in _WAITING]
        return busy or self._workers

    def describe(self, ranks: Sequence[int], seconds: float, stacks: Mapping[int, str]) -> str:
        """What these ranks are doing, in words, each with its stack."""
        parts = []
        for rank in ranks:
            stack = stacks.get(rank, "its stack could not be read").rstrip()
            parts.append(
                f"rank {rank} has been {self._box.doing(rank)} for {seconds:.0f} s:\n{stack}"
            )
        return "\n".join(parts)

    def error(self) -> WorkerStalled:
        """The order is given up: because of whom."""
        ranks, seconds = self.late(), time.monotonic() - self.began
        stacks = self._stacks(ranks)
        doing = self._box.doing(ranks[0])
        return WorkerStalled(ranks, doing, seconds, stacks, self.describe(ranks, seconds, stacks))
