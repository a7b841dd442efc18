"""Record spans of time on one rank.

Every rank keeps its own spans in memory. All ranks of a host share one clock (`time.perf_counter`
is CLOCK_MONOTONIC); other hosts know how much theirs differs. While nothing is recorded, a span
costs one check of a flag.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

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
    more: Optional[Dict[str, Any]] = None
    thread: int = 0


class Recorder:
    """The spans of one rank.

    Attributes:
        place: of the act under way.
        lost: number of spans beyond `MOST_SPANS`.
    """

    def __init__(self) -> None:
        self.on = False
        self.place: Optional[Place] = None
        self.lost = 0
        self._spans: List[Span] = []

    def start(self) -> None:
        """Start recording, without earlier spans."""
        self._spans, self.lost, self.place, self.on = [], 0, None, True

    def add(self, kind: str, name: str, begin: float, end: float, **more: Any) -> None:
        """Add a span, if it records."""
        if not self.on:
            return
        if len(self._spans) >= MOST_SPANS:
            self.lost += 1
            return
        thread = threading.get_ident()
        self._spans.append(Span(kind, name, begin, end, self.place, more or None, thread))

    def take(self) -> Tuple[List[Span], int]:
        """Stop recording; return the spans, and the number of lost ones."""
        spans, self._spans, self.on = self._spans, [], False
        return spans, self.lost

    def restore(self, recorded: Tuple[List[Span], int]) -> None:
        """Keep spans that `take` returned but that did not reach their receiver."""
        self._spans, self.lost = recorded
