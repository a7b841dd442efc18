"""Write the spans of all ranks to a file for trace viewers.

The format is Chrome's trace events, in its JSON object form ("Trace Event Format", sections on
complete events and metadata): Perfetto (ui.perfetto.dev) and chrome://tracing show it.
"""

from __future__ import annotations

import atexit
import json
import os
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from synk_core._features.feature import RuntimeFeature
from synk_core._plan.arguments import checked_path
from synk_core._warn import warn_user
from synk_core._wire.messages import Own
from synk_core.exceptions import InputValueError
from synk_core.files import whole_file

from .spans import Recorded, Span, timeline

CLOSE_TIMEOUT_S = 0.5
"""Seconds after the runtime's `close()` until all workers must answer to be in the file."""

BEGIN, END = Own(timeline, True), Own(timeline, False)

WAITS = frozenset({"reduce", "collective"})
"""Kinds of span that begin with waiting for the last rank."""


class Timeline:
    """A recording of all ranks; made by `synkhronos.timeline`. A context manager.

    Args:
        path: the file to write, in an existing folder.
        end: stops recording on all ranks; returns the trace. Its argument is whether the runtime is
            being closed.

    Attributes:
        path: the file.
        recording: whether it still records.

    Raises:
        InputTypeError: `path` is not a path.
        InputValueError: no file can be written there.
    """

    def __init__(
        self, path: Union[str, os.PathLike[str]], end: Callable[[bool], Mapping[str, Any]]
    ) -> None:
        self.path = checked_path(path)
        self._end = end
        self.recording = True
        self._owner = os.getpid()

    def stop(self) -> None:
        """End the recording and write the file. Idempotent; blocks until all ranks have answered.

        If the runtime is closed already, after a failure, or a worker turns out to be gone, the
        file has the spans that reached the master, and names the missing ranks.

        Raises:
            OSError: the file cannot be written.
        """
        self._stop(closing=False)

    def close(self) -> None:
        """Stop within seconds, at the runtime's end; warn if the file cannot be written, so that
        the program's own results are not lost."""
        try:
            self._stop(closing=True)
        except OSError as error:
            text = f"the timeline could not be written ({type(error).__name__}: {error})"
            warn_user(text, RuntimeWarning)

    def _stop(self, closing: bool) -> None:
        if not self.recording or os.getpid() != self._owner:  # a child of the program's
            return
        self.recording = False
        atexit.unregister(self.close)
        write(self.path, self._end(closing))

    def __enter__(self) -> Timeline:  # noqa: PYI034 - typing.Self is not there on Python 3.9
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "recording" if self.recording else "written"
        return f"<Timeline {str(self.path)!r}, {state}>"


class Timelines(RuntimeFeature):
    """Records timelines, one at a time, of all ranks."""

    _timeline: Optional[Timeline] = None

    def _take_options(self, options: Dict[str, Any]) -> Tuple[Own, ...]:
        path = options.pop("timeline", None)
        self._first = None if path is None else checked_path(path)
        others = super()._take_options(options)
        return others if path is None else (*others, BEGIN)

    def _begin(self) -> None:
        super()._begin()
        if self._first is not None:
            self._keep(Timeline(self._first, self._end_timeline))

    def _finish(self) -> None:
        if self._timeline is not None:
            self._timeline.close()
        super()._finish()

    def timeline(self, path: Union[str, os.PathLike[str]]) -> Timeline:
        """Record the work of all ranks; see `synkhronos.timeline`."""
        if self._timeline is not None and self._timeline.recording:
            raise InputValueError(
                f"timeline(): {self._timeline.path} is being recorded already; stop() it first"
            )
        with self.orders.lock:
            timeline = Timeline(path, self._end_timeline)
            self.orders.perform_own(BEGIN, label=None)
        return self._keep(timeline)

    def _keep(self, timeline: Timeline) -> Timeline:
        self._timeline = timeline
        atexit.register(timeline.close)  # a failure may close the runtime before the program's end
        return timeline

    def _end_timeline(self, closing: bool) -> Dict[str, Any]:
        """Return the trace of every rank; of the master alone if the runtime is closed or fails."""
        lifecycle, rank = self._lifecycle, self._rank
        recorder = rank.flight.recorder  # which has its spans also if the order fails at its end
        recorded: Dict[int, Recorded] = {}
        # The end waits neither for an order under way nor for workers that start.
        leaves = closing and (self.orders.lock.running or not lifecycle.joined)
        if not lifecycle.closed and not leaves:
            try:
                with self.orders.lock:
                    timeout_s = CLOSE_TIMEOUT_S if closing else None
                    spans = self.orders.perform_own(END, label=None, timeout_s=timeout_s)
                    recorded = dict(enumerate(spans))
            except Exception:
                if not lifecycle.closed:
                    raise
        recorded = recorded or {rank.rank: recorder.stop()}
        return trace_of(recorded, rank.size, rank.master)


def trace_of(recorded: Mapping[int, Recorded], size: int, master: int) -> Dict[str, Any]:
    """Return Chrome's trace object, in microseconds from the first span on. A process stands for a
    rank, a thread for one of the master's threads (workers have one)."""
    events: List[Dict[str, Any]] = []
    for rank in range(size):
        about = {"ph": "M", "pid": rank, "tid": 0}
        name = f"rank {rank}{' (master)' if rank == master else ''}"
        events.append({**about, "name": "process_name", "args": {"name": name}})
        events.append({**about, "name": "process_sort_index", "args": {"sort_index": rank}})
    spans = [(rank, span) for rank, (several, _) in recorded.items() for span in several]
    spans += _waits(spans)
    start = min((span.begin for _, span in spans), default=0.0)
    threads: Dict[int, Dict[int, int]] = defaultdict(lambda: defaultdict(count().__next__))
    # Sort by beginning, then longest first, as viewers nest them.
    for rank, span in sorted(spans, key=lambda item: (item[1].begin, -item[1].end)):
        event: Dict[str, Any] = {
            "ph": "X",
            "name": span.name,
            "cat": span.kind,
            "ts": round((span.begin - start) * 1e6, 3),
            "dur": round((span.end - span.begin) * 1e6, 3),
            "pid": rank,
            "tid": threads[rank][span.thread],
        }
        if span.place is not None:
            event["args"] = {"order": span.place[0]}
        events.append(event)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "program": "synkhronos",
            "ranks": size,
            "missing ranks": sorted(set(range(size)) - set(recorded)),
            "lost spans": {rank: lost for rank, (_, lost) in recorded.items() if lost},
        },
    }


def _waits(spans: Sequence[Tuple[int, Span]]) -> Iterator[Tuple[int, Span]]:
    """Yield, for each shared activity, the time that early ranks waited for the last one."""
    shared = [(r, s) for r, s in spans if s.kind in WAITS and s.place is not None]
    last: Dict[Any, float] = {}
    for _, span in shared:
        last[span.place] = max(span.begin, last.get(span.place, span.begin))
    for rank, span in shared:
        end = min(last[span.place], span.end)
        if end > span.begin:
            yield rank, span._replace(kind="wait", name="for the last rank", end=end)


def write(path: Path, trace: Mapping[str, Any]) -> None:
    """Write the trace whole or not at all."""
    # One event a line: far quicker than `json.dump`, without a large text in memory.
    others = {key: value for key, value in trace.items() if key != "traceEvents"}
    separator = "\n"
    with whole_file(path) as file:
        file.write(f'{json.dumps(others)[:-1]}, "traceEvents": ['.encode())
        for event in trace["traceEvents"]:
            file.write(f"{separator}{json.dumps(event)}".encode())
            separator = ",\n"
        file.write(b"\n]}\n")
