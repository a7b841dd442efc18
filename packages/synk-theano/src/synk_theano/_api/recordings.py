"""The recordings of a runtime: one at a time, of all its ranks."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Optional, Union

from synk_theano._master.controller import Controller
from synk_theano._watch.timeline import CLOSE_TIMEOUT_S, Recorded, Timeline
from synk_theano._wire.messages import Act, Record, Step
from synk_theano.exceptions import InputValueError


class Recordings:
    """Begins and ends what `Timeline` writes.

    Args:
        controller: has all ranks record.
        enter: gives an act a number.
        path: of the recording that the ranks begin with, or None.
    """

    def __init__(
        self, controller: Controller, enter: Callable[[Act], int], path: Optional[str]
    ) -> None:
        self._controller = controller
        self._enter = enter
        self._current: Optional[Timeline] = None
        if path is not None:
            controller.rank.recorder.start()
            self._current = self._new(path, None)

    def begin(self, path: Union[str, os.PathLike[str]]) -> Timeline:
        """Have all ranks record from now on.

        Raises:
            InputTypeError, InputValueError: a bad path, or a recording that is not over.
        """
        if self._current is not None and self._current.recording:
            raise InputValueError(
                f"timeline(): {self._current.path} is being recorded already; stop() it first"
            )
        with self._controller.turn:
            self._current = self._new(path, lambda: self._record(True))
        return self._current

    def close(self) -> None:
        """The runtime is about to end: write what was recorded."""
        if self._current is not None:
            self._current.close()

    def _new(
        self, path: Union[str, os.PathLike[str]], begin: Optional[Callable[[], None]]
    ) -> Timeline:
        rank = self._controller.rank
        return Timeline(path, begin, self._end, rank.size, rank.rank)

    def _record(self, begin: bool, timeout_s: Optional[float] = None) -> Any:
        (result,) = self._controller.run([Step(self._enter(Record(begin)))], timeout_s)
        return result

    def _end(self, closing: bool) -> Dict[int, Recorded]:
        """What every rank has recorded; of a closed or failing runtime what the master has."""
        controller = self._controller
        # The end does not wait: neither for an order under way, nor for workers' start.
        leaves = closing and (controller.turn.running or not controller.joined)
        if not controller.closed and not leaves:
            try:
                with controller.turn:
                    timeout_s = CLOSE_TIMEOUT_S if closing else None
                    return dict(enumerate(self._record(False, timeout_s)))
            except Exception:
                if not controller.closed:
                    raise
        return {controller.rank.rank: controller.rank.recorder.take()}
