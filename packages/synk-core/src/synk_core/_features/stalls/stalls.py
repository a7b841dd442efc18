"""Warn when an order takes long, and name the ranks that the others wait for."""

from __future__ import annotations

import sys
import threading
import traceback
from time import perf_counter
from typing import Optional

from synk_core._features.feature import RuntimeFeature
from synk_core._master.lifecycle import Lifecycle
from synk_core._warn import warn_user
from synk_core._wire.flight import Phase
from synk_core.exceptions import StallWarning


class StallWatch:
    """Watches one wait of the master at a time; it warns after `stall_s` seconds of the runtime's
    settings, then after twice as many, and so on."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._warned = 0.0, 0.0  # when the wait began that was warned of, and after how long

    def check(
        self, own: Optional[threading.Thread] = None, makes: str = "", began: float = 0.0
    ) -> None:
        """Warn if a wait has taken too long; called while the master waits for workers, or since
        `began` for a thread of the program, with a text of what that `makes`."""
        lifecycle, activity = self._lifecycle, self._lifecycle.activity
        if own is None:
            if any(activity.phase(rank) == Phase.COMPILE for rank in activity.workers):
                lifecycle.wait_began = perf_counter()  # a compiler takes as long as it takes
                return
            began = lifecycle.wait_began
        seconds = perf_counter() - began
        warned, warned_s = self._warned
        if seconds < (2 * warned_s if warned == began else lifecycle.settings.stall_s):
            return
        self._warned = began, seconds
        if own is None:
            ranks, more = activity.late(), ", fork(timeout_s=...) when to give up"
            text = activity.describe(ranks, seconds, lifecycle.pool.stacks(ranks))
        else:
            frame, more = sys._current_frames().get(own.ident or 0), ""
            stack = "".join(traceback.format_stack(frame)).rstrip()
            text = f"the master has been waiting for {makes} for {seconds:.0f} s:\n{stack}"
        setting = f"fork(stall_s=...) sets when this warning appears{more}"
        warn_user(f"{text}\nStill waiting. {setting}.", StallWarning)


class Stalls(RuntimeFeature):
    """Warns of waits that take long."""

    def _begin(self) -> None:
        super()._begin()
        self._lifecycle.while_waiting.append(StallWatch(self._lifecycle).check)
