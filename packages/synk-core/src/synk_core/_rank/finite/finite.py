"""Check after each execution that everything computed is finite, while `watch_finite()` is on.

Each rank checks its own results. A value that is not finite fails the call on that rank, like any
error in a function, and all ranks get their old values back. Before that the rank searches for the
cause (`cause`).
"""

from __future__ import annotations

from typing import Any, List

import numpy as np

from synk_core._graph.shared import changed_by
from synk_core._rank.finite.cause import CauseSearch
from synk_core._rank.finite.execution import Execution, Suspect, first_suspect, is_finite
from synk_core._rank.workplace import Workplace
from synk_core._watch.flight import KINDS
from synk_core._wire.messages import WatchFinite


class _NotSent(Exception):
    """A contribution of this rank to an in-graph reduction is not finite."""

    def __init__(self, place: int, value: np.ndarray) -> None:
        super().__init__(place, value)
        self.place = place
        self.value = value


class PreparedFiniteWatch:
    """An act of `WatchFinite`.

    Args:
        here: this rank.
        act: whether to check from now on.
    """

    name = doing = "watch_finite()"
    synchronizes = False
    record = (KINDS.index("watch_finite"), 0)

    def __init__(self, here: Workplace, act: WatchFinite) -> None:
        self._here = here
        self._on = act.on

    def __call__(self, origin: int, place: int) -> bool:  # noqa: ARG002 - all acts are called alike
        """Switch; return whether the rank checked before."""
        held = self._here.check_finite
        was_on = held[0] is not None
        # If a rank fails here, the others switch back too.
        self._here.journal.keep([held])
        held[0] = self._run if self._on else None
        return was_on

    def _run(self, execution: Execution) -> List[Any]:
        """Run a function, and check its results.

        Raises:
            NotFinite: some are not finite.
        """
        changed = changed_by(execution.function)
        before = [storage[0] for storage in changed]
        try:
            results = _launched(execution)
        except _NotSent as sent:
            found: Any = Suspect("sent", sent.place), sent.value
        else:
            found = first_suspect(execution, results, self._here.registry)
            if found is None:
                return results
        raise CauseSearch(self._here, execution, changed, before).error(*found) from None


def _launched(execution: Execution) -> List[Any]:
    reductions = execution.in_graph
    if reductions is None:
        return execution.launch(execution.arguments, None)
    places = iter(range(len(execution.reductions)))

    def watch(value: np.ndarray) -> None:
        place = next(places)
        if not is_finite(value):
            raise _NotSent(place, value)

    reductions.watch = watch
    try:
        return execution.launch(execution.arguments, reductions)
    finally:
        reductions.watch = None
