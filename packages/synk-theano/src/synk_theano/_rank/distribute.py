"""The acts that are no work of the user's: to take over what is new, and to record spans."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from synk_theano._watch.flight import KINDS, Phase
from synk_theano._wire.messages import Distribute, Record

if TYPE_CHECKING:
    from .rank import Rank


class PreparedDistribution:
    """An act of `Distribute`."""

    name = doing = "distribute()"
    synchronizes = False
    record = (KINDS.index("distribute"), 0, 0, 0)

    def __init__(self, rank: Rank, act: Distribute) -> None:
        self._rank = rank
        self._act = act

    def __call__(self, origin: int, place: int) -> None:  # noqa: ARG002 - all acts are called alike
        began = perf_counter()
        self._rank.flight.enter(Phase.DISTRIBUTE)
        self._rank.take_over(self._act)
        self._rank.recorder.add("distribute", "take over", began, perf_counter())


class PreparedRecording:
    """An act of `Record`."""

    name = doing = "timeline()"
    synchronizes = False
    record = (KINDS.index("timeline"), 0, 0, 0)

    def __init__(self, rank: Rank, act: Record) -> None:
        self._rank = rank
        self._begin = act.begin

    def __call__(self, origin: int, place: int) -> Any:  # noqa: ARG002 - all acts are called alike
        """Begin; or end, with what all ranks have, in the master."""
        rank = self._rank
        if self._begin:
            rank.recorder.start()
            return None
        recorded = rank.recorder.take()
        rank.flight.enter(Phase.COLLECTIVE)
        try:
            return rank.comm.gather_object(recorded, root=rank.master)
        except BaseException:
            rank.recorder.put_back(recorded)
            raise
