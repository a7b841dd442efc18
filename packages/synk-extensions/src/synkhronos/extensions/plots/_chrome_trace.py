"""Read and check Chrome traces, and cut them to a window of time.

Of the Trace Event Format, complete events (``"ph": "X"``) and the names of processes are read.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from synkhronos.exceptions import InputTypeError, InputValueError

EXPECTED = "expected a Chrome trace in JSON, with a list 'traceEvents'"
CURE = (
    "record one with synkhronos.timeline(path), and call stop() or close() before you read it; "
    "SYNKHRONOS_TIMELINE=path records a whole program"
)
MICROSECONDS = 1000.0


@dataclass
class TraceSpan:
    """An activity of a rank, within the window.

    Attributes:
        start, end: microseconds since the beginning of the trace, not cut to the window.
        depth: number of spans around this one.
        counts: whether it adds to the time of its category: no span around it is of the same one.
    """

    rank: int
    thread: int
    name: str
    category: str
    start: float
    end: float
    depth: int = 0
    counts: bool = True


@dataclass(frozen=True)
class Trace:
    """A trace, or the part of it within a window.

    Attributes:
        spans: by rank, thread and start; outer spans come first.
        names: names of ranks, including ranks without a span.
        window: the first and the last microsecond.
    """

    spans: Sequence[TraceSpan]
    names: Mapping[int, str]
    window: Tuple[float, float]

    def length(self, span: TraceSpan) -> float:
        """Return the microseconds of a span within the window."""
        begin, end = self.window
        return max(min(span.end, end) - max(span.start, begin), 0.0)

    def time_of(self, category: str) -> float:
        """Return the microseconds of this category, as a mean over the ranks."""
        spans = (span for span in self.spans if span.category == category and span.counts)
        return sum(self.length(span) for span in spans) / len(self.names)


def read_trace(
    path: Union[str, "os.PathLike[str]"], window_ms: Optional[Tuple[float, float]] = None
) -> Trace:
    """Read a trace.

    Raises:
        InputValueError: the file is not a trace, or there is nothing to show.
        OSError: the file cannot be read.
    """
    events = _events(path)
    names: Dict[int, str] = {}
    spans: List[TraceSpan] = []
    for place, event in enumerate(events):
        if not isinstance(event, Mapping):
            raise InputValueError(
                f"{path}: got event {place} {event!r}, expected an object; {CURE}"
            )
        if event.get("ph") == "X":
            spans.append(_span(path, place, event))
        elif event.get("ph") == "M" and event.get("name") == "process_name":
            args = event.get("args")
            name = args.get("name", "") if isinstance(args, Mapping) else ""
            names[int(_number(path, place, event, "pid"))] = str(name)
    if not spans:
        raise InputValueError(
            f"{path}: got a trace of {len(events)} events without any span ('ph': 'X'), expected "
            f"at least one; call a function while it records, and {CURE}"
        )
    spans.sort(key=lambda span: (span.rank, span.thread, span.start, -span.end))
    window = _window(window_ms, spans)
    shown = _nested(spans, *window)
    if not shown:
        last = max(span.end for span in spans) / MICROSECONDS
        raise InputValueError(
            f"window_ms: got {window_ms}, in which nothing happens in {path}; expected a part of "
            f"0 to {last:.3f} ms"
        )
    for span in spans:
        names.setdefault(span.rank, f"rank {span.rank}")
    return Trace(shown, dict(sorted(names.items())), window)


def _events(path: Union[str, "os.PathLike[str]"]) -> Sequence[Any]:
    text = Path(path).read_bytes()
    if not text.strip():
        raise InputValueError(f"{path}: got an empty file, {EXPECTED}; {CURE}")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputValueError(f"{path}: got invalid JSON ({error}), {EXPECTED}; {CURE}") from None
    # The format also allows the list alone.
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        keys = sorted(content) if isinstance(content, dict) else type(content).__name__
        raise InputValueError(f"{path}: got JSON with {keys}, {EXPECTED}; {CURE}")
    return events


def _span(path: Any, place: int, event: Mapping[str, Any]) -> TraceSpan:
    start = _number(path, place, event, "ts")
    length = _number(path, place, event, "dur")
    if length < 0:
        raise InputValueError(
            f"{path}: got 'dur': {length} in event {place}, expected microseconds from 0; {CURE}"
        )
    return TraceSpan(
        rank=int(_number(path, place, event, "pid")),
        thread=int(_number(path, place, {"tid": 0, **event}, "tid")),
        name=str(event.get("name", "")),
        category=str(event.get("cat", "")) or "other",
        start=start,
        end=start + length,
    )


def _number(path: Any, place: int, event: Mapping[str, Any], key: str) -> float:
    value: Any = event.get(key)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not abs(value) <= sys.float_info.max:
        raise InputValueError(
            f"{path}: got {key!r}: {value!r:.80} in event {place} ({event.get('name')!r}), "
            f"expected a number; {CURE}"
        )
    return float(value)


def _window(
    window_ms: Optional[Tuple[float, float]], spans: Sequence[TraceSpan]
) -> Tuple[float, float]:
    if window_ms is None:
        begin = min(span.start for span in spans)
        end = max(span.end for span in spans)
        return begin, end if end > begin else begin + 1.0
    try:
        begin_ms, end_ms = (float(ms) for ms in window_ms)
    except (TypeError, ValueError):
        raise InputTypeError(
            f"window_ms: got {window_ms!r}, expected two numbers, as in (10, 25.5)"
        ) from None
    if not begin_ms < end_ms:
        raise InputValueError(
            f"window_ms: got {window_ms!r}, expected the first millisecond before the last"
        )
    return begin_ms * MICROSECONDS, end_ms * MICROSECONDS


def _nested(spans: Sequence[TraceSpan], begin: float, end: float) -> List[TraceSpan]:
    """Return the spans within the window, with their depths."""
    shown: List[TraceSpan] = []
    around: List[TraceSpan] = []
    for span in spans:
        while around and not _is_within(span, around[-1]):
            around.pop()
        span.depth = len(around)
        span.counts = all(outer.category != span.category for outer in around)
        around.append(span)
        # A span without a length is at a moment, the others are between two.
        if span.start < end and (span.end > begin or span.start == span.end == begin):
            shown.append(span)
    return shown


def _is_within(span: TraceSpan, outer: TraceSpan) -> bool:
    same_lane = (span.rank, span.thread) == (outer.rank, outer.thread)
    # If spans touch, the later one is not within the earlier one.
    return same_lane and (span.start < outer.end or span.start == span.end == outer.end)
