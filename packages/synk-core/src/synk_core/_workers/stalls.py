"""Warn when an order takes long, and name the ranks that the others wait for."""

from __future__ import annotations

import sys
import threading
import traceback
from time import perf_counter
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from synk_core._warn import warn_user
from synk_core._watch.flight import Phase
from synk_core._watch.record import Record
from synk_core.exceptions import StallWarning, WorkerStalled

from .activity import Activity

_WAITING = (Phase.IDLE, Phase.REDUCE, Phase.COLLECTIVE, Phase.END, Phase.FAIL)
"""Phases in which a rank waits for others: it is not the cause of a stall."""


class StallWatch:
    """Watches one order at a time, while the master waits for it.

    Args:
        stall_s: seconds after which to warn, then after twice as many, and so on.

    Attributes:
        began: when the wait began, in seconds of `time.perf_counter`.
    """

    def __init__(
        self,
        activity: Activity,
        master: int,
        stacks: Callable[[Sequence[int]], Dict[int, str]],
        stall_s: float,
    ) -> None:
        self._activity = activity
        self._workers = [r for r in range(len(activity.flights)) if r != master]
        self._stacks = stacks
        self._stall_s = stall_s
        self.began = 0.0
        self._warned = 0.0, 0.0

    def before(self, record: Record) -> None:  # noqa: ARG002 - as of any observer
        """Begin to watch an order."""
        self.began = perf_counter()

    def check(self, own: Optional[threading.Thread] = None, makes: str = "") -> None:
        """Warn if the order has taken too long, or a thread of the master's own that makes
        something; called while the master waits."""
        compiling = [r for r in self._workers if self._phase(r) == Phase.COMPILE]
        if own is None and compiling:
            self.began = perf_counter()  # a compiler takes as long as it takes
            return
        seconds = perf_counter() - self.began
        began, warned_s = self._warned
        if seconds < (2 * warned_s if began == self.began else self._stall_s):
            return
        self._warned = self.began, seconds
        if own is None:
            ranks, more = self.late(), ", fork(timeout_s=...) when to give up"
            text = self.describe(ranks, seconds, self._stacks(ranks))
        else:
            frame, more = sys._current_frames().get(own.ident or 0), ""
            stack = "".join(traceback.format_stack(frame)).rstrip()
            text = f"the master has been waiting for {makes} for {seconds:.0f} s:\n{stack}"
        setting = f"fork(stall_s=...) sets when this warning appears{more}"
        warn_user(f"{text}\nStill waiting. {setting}.", StallWarning)

    def late(self) -> List[int]:
        """Return the workers that are busy while others wait; all workers, if none is busy."""
        busy = [r for r in self._workers if self._phase(r) not in _WAITING]
        return busy or self._workers

    def _phase(self, rank: int) -> Phase:
        return self._activity.flights[rank].phase[0]

    def describe(self, ranks: Sequence[int], seconds: float, stacks: Mapping[int, str]) -> str:
        """Return a text of what these ranks are doing, each with its stack."""
        parts = []
        for rank in ranks:
            stack = stacks.get(rank, "its stack could not be read").rstrip()
            doing = self._activity.doing(rank)
            parts.append(f"rank {rank} has been {doing} for {seconds:.0f} s:\n{stack}")
        return "\n".join(parts)

    def error(self) -> WorkerStalled:
        """Return the error for an order that is given up, which names the late workers."""
        ranks, seconds = self.late(), perf_counter() - self.began
        stacks = self._stacks(ranks)
        doing = self._activity.doing(ranks[0])
        return WorkerStalled(ranks, doing, seconds, stacks, self.describe(ranks, seconds, stacks))
