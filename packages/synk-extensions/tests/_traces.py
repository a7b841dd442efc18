"""A trace as the runtime writes it, made by hand: what two ranks do in calls of a function."""

from __future__ import annotations

from typing import Any


def span(rank: int, name: str, category: str, start: float, length: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": start,
        "dur": length,
        "pid": rank,
        "tid": 0,
        "args": {},
    }


def process_name(rank: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": name}}


def call(start: float, slow: float = 1.0, slices: int = 2) -> list[dict[str, Any]]:
    """One call of 2000 µs: the master scatters, both compute in slices, and reduce."""
    spans = [
        span(0, "train", "call", start, 2000),
        span(0, "scatter", "scatter", start + 10, 300),
        span(0, "x", "copy", start + 20, 200),
        span(1, "wait", "wait", start, 310),
    ]
    for rank, length in ((0, 1000.0), (1, 1000.0 * slow)):
        spans.append(span(rank, "compute", "compute", start + 310, length))
        part = length / slices
        spans += [
            span(rank, f"slice {k}", "slice", start + 310 + k * part, part) for k in range(slices)
        ]
    if slow < 1:
        spans.append(span(1, "wait", "wait", start + 310 + 1000 * slow, 1000 * (1 - slow)))
    return spans + [span(rank, "reduce", "reduce", start + 1310, 600) for rank in (0, 1)]


def trace(calls: int, ranks: int = 2, slow: float = 0.8) -> dict[str, Any]:
    """So many calls, one every 2500 µs, and an all_reduce after each."""
    events = [
        process_name(rank, f"rank {rank}" + (" (master)" if rank == 0 else ""))
        for rank in range(ranks)
    ]
    for number in range(calls):
        start = 2500.0 * number
        for event in call(start, slow):
            events.append(event)
            if event["pid"] == 1:
                events += [{**event, "pid": rank} for rank in range(2, ranks)]
        for rank in range(ranks):
            events.append(span(rank, "all_reduce()", "collective", start + 2000, 400))
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"ranks": ranks}}
