"""The acts of the runtime's features, by name: every rank performs the same function."""

from __future__ import annotations

from typing import Any, Callable, Dict

from synk_core._watch.flight import KINDS, Phase
from synk_core._wire.messages import Own

from .finite import watch_finite
from .workplace import Workplace


class PreparedOwn:
    """An act of `Own` that this rank has read."""

    synchronizes = False

    def __init__(self, here: Workplace, act: Own) -> None:
        self._here, self._act = here, act
        self._perform = PERFORMERS[act.kind]
        self.name = self.doing = f"{act.kind}()"
        self.record = (KINDS.index(act.kind), 0)

    def __call__(self, origin: int, place: int) -> Any:  # noqa: ARG002 - all acts are called alike
        """Do this rank's part."""
        return self._perform(self._here, self._act.argument)


def record_spans(here: Workplace, begin: bool) -> Any:
    """Begin to record; or end, and return all ranks' spans in the master."""
    if begin:
        here.recorder.start()
        return None
    spans, lost = here.recorder.take()
    here.flight.enter(Phase.COLLECTIVE)
    try:
        offset_s = here.clock_offset_s
        shifted = [s._replace(begin=s.begin + offset_s, end=s.end + offset_s) for s in spans]
        return here.comm.gather_object((shifted, lost), root=here.master)
    except BaseException:
        here.recorder.restore((spans, lost))
        raise


def take_times(here: Workplace, argument: None) -> Any:  # noqa: ARG001 - as of any act
    """Return in the master the seconds that ranks of other hosts have logged."""
    here.flight.enter(Phase.COLLECTIVE)
    logs = here.comm.gather_object(list(here.log), root=here.master)
    here.log.clear()
    return logs


PERFORMERS: Dict[str, Callable[[Workplace, Any], Any]] = {
    "timeline": record_spans,
    "stats": take_times,
    "watch_finite": watch_finite,
}
