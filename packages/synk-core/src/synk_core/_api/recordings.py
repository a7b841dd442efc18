"""The recordings of a runtime: one at a time, of all its ranks."""

from __future__ import annotations

import os
from typing import Dict, Optional, Union

from synk_core._master.lifecycle import Lifecycle
from synk_core._master.orders import Orders
from synk_core._watch.timeline import CLOSE_TIMEOUT_S, Recorded, Timeline
from synk_core._wire.messages import Own
from synk_core.exceptions import InputValueError


class Recordings:
    """Begins and ends the recordings that `Timeline` writes.

    Args:
        path: of a recording from the start, or None.
    """

    def __init__(self, lifecycle: Lifecycle, orders: Orders, path: Optional[str]) -> None:
        self._lifecycle = lifecycle
        self._orders = orders
        self._current: Optional[Timeline] = None
        if path is not None:
            lifecycle.rank.recorder.start()
            self._current = self._new(path)

    def begin(self, path: Union[str, os.PathLike[str]]) -> Timeline:
        """Have all ranks record from now on.

        Raises:
            InputTypeError, InputValueError: a bad path, or a recording that is not over.
        """
        if self._current is not None and self._current.recording:
            raise InputValueError(
                f"timeline(): {self._current.path} is being recorded already; stop() it first"
            )
        with self._lifecycle.lock:
            timeline = self._new(path)
            self._orders.perform_own(Own("timeline", True), tally=None)
            self._current = timeline
        return timeline

    def close(self) -> None:
        """Write the recording under way, before the runtime ends."""
        if self._current is not None:
            self._current.close()

    def _new(self, path: Union[str, os.PathLike[str]]) -> Timeline:
        rank = self._lifecycle.rank
        return Timeline(path, self._end, rank.size, rank.rank)

    def _end(self, closing: bool) -> Dict[int, Recorded]:
        """Return the spans of every rank; of the master alone if the runtime is closed or fails."""
        lifecycle = self._lifecycle
        # The end waits neither for an order under way nor for workers that start.
        leaves = closing and (lifecycle.lock.running or not lifecycle.joined)
        if not lifecycle.closed and not leaves:
            try:
                with lifecycle.lock:
                    timeout_s = CLOSE_TIMEOUT_S if closing else None
                    act = Own("timeline", False)
                    spans = self._orders.perform_own(act, tally=None, timeout_s=timeout_s)
                    return dict(enumerate(spans))
            except Exception:
                if not lifecycle.closed:
                    raise
        return {lifecycle.rank.rank: lifecycle.rank.recorder.take()}
