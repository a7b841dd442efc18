"""Record spans of time on one rank, in memory.

All ranks of a host share one clock (`time.perf_counter` is CLOCK_MONOTONIC); other hosts know how
much theirs differs.
"""

from __future__ import annotations

import threading
from time import perf_counter
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from synk_core._rank.workplace import Workplace
from synk_core._wire.flight import OWN_WORK, Flight, Phase

MOST_SPANS = 1_000_000
"""Spans that one rank keeps; it only counts later ones."""

Place = Tuple[int, int]


class Span(NamedTuple):
    """One activity of a rank, with its beginning and end.

    Attributes:
        kind: "call", "scatter", "compute", "slice", "copy", "reduce", "collective", "wait",
            "compile" or "distribute".
        begin, end: seconds of `time.perf_counter`.
        place: of an act, which all ranks perform: the order's serial number, and the act's place
            in the order.
    """

    kind: str
    name: str
    begin: float
    end: float
    place: Optional[Place] = None
    thread: int = 0


Recorded = Tuple[List[Span], int]
"""A rank's spans, and the number of lost ones."""

_SPANS: Dict[int, Tuple[str, str]] = {
    Phase.COPY: ("copy", "rows"),
    Phase.SLICE: ("slice", "slice {detail}"),
    Phase.COLLECTIVE: ("collective", "{act}"),
    Phase.REDUCE: ("reduce", "{act}"),
    Phase.DEVICE: ("copy", "results from the device"),
    Phase.END: ("wait", "until all are done"),
    Phase.DISTRIBUTE: ("distribute", "take over"),
    Phase.COMPILE: ("compile", "take over"),
}
"""Kind and name of the span of a phase; other phases have none."""


class Recorder:
    """The spans of one rank, made of the phases that it enters; `place` is that of the act under
    way, and `lost` the number of spans beyond `MOST_SPANS`."""

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self.place: Optional[Place] = None
        self.lost = 0
        self._spans: List[Span] = []
        self._act = ""
        self._phase: Optional[Tuple[str, str, float]] = None
        self._computes: Optional[float] = None  # since when

    def start(self) -> None:
        """Start recording, or go on."""
        self._flight.record(self)

    def begin(self, place: Place, act: Any) -> None:
        """Begin an act."""
        self.place, self._act, self._computes = place, act.name, None

    def enter(self, phase: int, detail: int = 0) -> None:
        """End a phase, and begin another one: -1 is none. A function computes from its first phase
        of own work until results are reduced."""
        now = perf_counter()
        if self._phase is not None:
            self.add(*self._phase, now)
        if self._computes is None and phase in OWN_WORK:
            self._computes = now
        elif self._computes is not None and phase == Phase.REDUCE:
            self.add("compute", self._act, self._computes, now)
            self._computes = None
        self._phase = None
        if phase in _SPANS:
            kind, name = _SPANS[phase]
            self._phase = kind, name.format(detail=detail, act=self._act), now

    def performed(
        self, serial: int, names: Sequence[str], began: float, given: float, is_master: bool
    ) -> None:
        """Add spans of a whole order: from its preparation on, and until it was given."""
        self.place = serial, len(names)
        self.add("call", ", ".join(names), began, perf_counter())
        if is_master:
            self.add("scatter", "check, plan, copy", began, given)
        self.place = None

    def end(self) -> None:
        """End an act, and the phase in it."""
        self.enter(-1)
        self._computes = None

    def add(self, kind: str, name: str, begin: float, end: float) -> None:
        """Add a span."""
        if len(self._spans) < MOST_SPANS:
            thread = threading.get_ident()
            self._spans.append(Span(kind, name, begin, end, self.place, thread))
        else:
            self.lost += 1

    def stop(self) -> Recorded:
        """Stop recording; return the spans, and the number of lost ones."""
        self._flight.record(None)
        return self._spans, self.lost


def timeline(here: Workplace, begin: bool) -> Any:
    """On every rank, begin to record; or end, and return all ranks' spans in the master."""
    recorder = here.flight.recorder
    if begin:
        Recorder(here.flight).start()
        return None
    spans, lost = recorder.stop()
    here.flight.enter(Phase.COLLECTIVE)
    try:
        offset_s = here.clock_offset_s
        shifted = [s._replace(begin=s.begin + offset_s, end=s.end + offset_s) for s in spans]
        return here.comm.gather_object((shifted, lost), root=here.master)
    except BaseException:
        recorder.start()  # the spans have not reached the master
        raise
