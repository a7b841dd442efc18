"""Is what a rank computes finite? Asked after each execution, while `watch_finite()` is on.

The ranks look for themselves, so that the first to know is the rank that it happened on. What is
not finite fails the call there, like any error in a function: all ranks get back what they had.
Before that the rank looks for the cause (`cause`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

import numpy as np

from synk_theano._graph.shared import changed_by
from synk_theano._rank.finite.cause import Blame
from synk_theano._rank.finite.execution import Execution, Suspect, first_suspect, is_finite
from synk_theano._watch.flight import KINDS

if TYPE_CHECKING:
    from synk_theano._rank.rank import Rank


class _Sent(Exception):
    """What this rank was about to give to the others is not finite."""

    def __init__(self, place: int, value: np.ndarray) -> None:
        super().__init__(place, value)
        self.place = place
        self.value = value


class Finite:
    """Watches one rank's executions.

    Args:
        rank: whose.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def run(self, execution: Execution) -> List[Any]:
        """Run a function, and look at what it gives.

        Raises:
            NotFinite: that is not finite.
        """
        changed = changed_by(execution.function)
        before = [storage[0] for storage in changed]
        try:
            results = self._launched(execution)
        except _Sent as sent:
            found: Any = Suspect("sent", sent.place), sent.value
        else:
            found = first_suspect(execution, results, self.rank.registry)
            if found is None:
                return results
        raise Blame(self.rank, execution, changed, before).error(*found) from None

    def _launched(self, execution: Execution) -> List[Any]:
        meeting = execution.meeting
        if meeting is None:
            return execution.launch(execution.arguments, None)
        places = iter(range(len(execution.reductions)))

        def look(value: np.ndarray) -> None:
            place = next(places)
            if not is_finite(value):
                raise _Sent(place, value)

        meeting.watch = look
        try:
            return execution.launch(execution.arguments, meeting)
        finally:
            meeting.watch = None


class FiniteSwitch:
    """An act of `WatchFinite`.

    Returns:
        On the master whether the rank looked before.
    """

    name = doing = "watch_finite()"
    synchronizes = False
    record = (KINDS.index("watch_finite"), 0, 0, 0)

    def __init__(self, rank: Rank, on: bool) -> None:
        self._rank = rank
        self._on = on

    def __call__(self, origin: int, place: int) -> bool:  # noqa: ARG002 - all acts are called alike
        """The journal keeps what it was: a rank that fails does not leave the ranks divided."""
        held = self._rank.finite
        was_on = held[0] is not None
        self._rank.journal.keep([held])
        held[0] = Finite(self._rank) if self._on else None
        return was_on
