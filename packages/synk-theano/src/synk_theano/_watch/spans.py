"""Spans of time, as one rank sees them.

Every rank keeps its own, in memory; all of a machine have one clock (`time.perf_counter` is
CLOCK_MONOTONIC), so that nothing has to be aligned. Where nothing is recorded, a span costs a
look at a flag.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

MOST_SPANS = 1_000_000
"""Of one rank; what comes after them is only counted."""

Place = Tuple[int, int]


class Span(NamedTuple):
    """What a rank did from one moment to another.

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
    more: Optional[Dict[str, Any]] = None
    thread: int = 0


class Recorder:
    """Where a rank puts its spans.

    Attributes:
        on: whether it takes any.
        place: of the act under way.
        lost: how many there was no room for.
    """

    def __init__(self) -> None:
        self.on = False
        self.place: Optional[Place] = None
        self.lost = 0
        self._spans: List[Span] = []

    def start(self) -> None:
        """Begin anew."""
        self._spans, self.lost, self.place, self.on = [], 0, None, True

    def add(self, kind: str, name: str, begin: float, end: float, **more: Any) -> None:
        """Take in a span, if it records."""
        if not self.on:
            return
        if len(self._spans) >= MOST_SPANS:
            self.lost += 1
            return
        thread = threading.get_ident()
        self._spans.append(Span(kind, name, begin, end, self.place, more or None, thread))

    def take(self) -> Tuple[List[Span], int]:
        """Stop; return the spans, and how many were lost."""
        spans, self._spans, self.on = self._spans, [], False
        return spans, self.lost

    def put_back(self, recorded: Tuple[List[Span], int]) -> None:
        """Keep what was taken: it has not come to where it was to go."""
        self._spans, self.lost = recorded
