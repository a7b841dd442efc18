"""Record spans of time on one rank.

Every rank keeps its own spans in memory. All ranks of a host share one clock (`time.perf_counter`
is CLOCK_MONOTONIC); other hosts know how much theirs differs. While nothing is recorded, a phase
costs one check of an attribute.
"""

from __future__ import annotations

import threading
from time import perf_counter
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .flight import OWN_WORK, Flight, Phase

MOST_SPANS = 1_000_000
"""Spans kept by one rank; later ones are only counted."""

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
    """The spans of one rank, made of the phases that it enters.

    Attributes:
        place: of the act under way.
        lost: number of spans beyond `MOST_SPANS`.
    """

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self.place: Optional[Place] = None
        self.lost = 0
        self._spans: List[Span] = []
        self._act = ""
        self._phase: Optional[Tuple[str, str, float]] = None
        self._computes: Optional[float] = None  # since when

    @property
    def on(self) -> bool:
        """Whether it records."""
        return self._flight.recorder is not None

    def start(self) -> None:
        """Start recording, without earlier spans."""
        self._spans, self.lost, self.place = [], 0, None
        self._phase = self._computes = None
        self._flight.recorder = self

    def begin(self, place: Place, act: Any) -> None:
        """Begin an act."""
        self.place, self._act, self._computes = place, act.name, None

    def enter(self, phase: int, detail: int = 0) -> None:
        """End a phase, and begin another one. A function computes from its first phase of own work
        until results are reduced."""
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

    def end(self) -> None:
        """End an act, and the phase in it."""
        self.enter(-1)
        self._computes = None

    def add(self, kind: str, name: str, begin: float, end: float) -> None:
        """Add a span, if it records."""
        if not self.on:
            return
        if len(self._spans) >= MOST_SPANS:
            self.lost += 1
            return
        thread = threading.get_ident()
        self._spans.append(Span(kind, name, begin, end, self.place, thread))

    def take(self) -> Tuple[List[Span], int]:
        """Stop recording; return the spans, and the number of lost ones."""
        spans, self._spans, self._flight.recorder = self._spans, [], None
        return spans, self.lost

    def restore(self, recorded: Tuple[List[Span], int]) -> None:
        """Keep spans that `take` returned but that did not reach their receiver."""
        self._spans, self.lost = recorded
