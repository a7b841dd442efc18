"""Take turns: every round asks everyone, so that all meet the same weather."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Dict, TypeVar

from .results import Cell, NotOfferedError, failure

MOST_CALLS = 2000
Parts = Dict[str, float]
"""A number for each part of a turn: create, destroy ..."""
T = TypeVar("T")


def turns(active: list[T], rounds: int, *, warm: bool = False) -> Iterator[tuple[int, T]]:
    """Yield the round and whose turn it is; each round begins with another one.

    Garbage is collected between the rounds only. A warm round is number -1, and not to be counted.
    What is removed from `active` takes no part from the next round on.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        for number in range(-1 if warm else 0, rounds):
            gc.collect()
            first = number % max(1, len(active))
            for one in active[first:] + active[:first]:
                yield number, one
    finally:
        if enabled:
            gc.enable()


def timed(call: Callable[[], object], calls: int) -> float:
    """Return the seconds of one call, out of many in a row."""
    numbers = range(calls)
    begin = time.perf_counter()
    for _ in numbers:
        call()
    return (time.perf_counter() - begin) / calls


def calls_for(budget_s: float, trial: Callable[[int], float], give_up_s: float = math.inf) -> int:
    """Return how many calls fill a turn, by two trials: the first of all is never a fair one.

    `trial` takes a number of calls and returns the seconds of one; one call of more than
    `give_up_s` is enough for a turn.
    """
    calls = 1
    for _ in range(2):
        seconds = trial(calls)
        if seconds > give_up_s:
            return 1
        calls = max(1, min(MOST_CALLS, int(budget_s / max(seconds, 1e-9))))
    return calls


def time_in_turns(
    ways: Mapping[str, Callable[[], object]],
    rounds: int,
    budget_s: float = 0.0,
    *,
    calls: int = 0,
    warm: int = 1,
    wait: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Time every way in every round; return by name the seconds of one call, for each round.

    The calls of a turn take `budget_s` together, as far as one is shorter, or are `calls`. Each way
    is called `warm` times before all rounds; `wait` ends each turn, within its time.
    """
    for way in ways.values():
        for _ in range(warm):
            way()

    def turn(way: Callable[[], object], count: int) -> float:
        # The first call of a turn wakes up what has been asleep: it is not counted.
        way()
        wait()
        begin = time.perf_counter()
        for _ in range(count):
            way()
        wait()
        return (time.perf_counter() - begin) / count

    counts = {
        name: calls or calls_for(budget_s, lambda count, way=way: turn(way, count))  # type: ignore[misc]
        for name, way in ways.items()
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _, name in turns(list(ways), rounds):
        samples[name].append(turn(ways[name], counts[name]))
    return samples


def take_turns(
    contenders: Sequence[Any],
    rounds: int,
    measure: Callable[[Any], Parts],
) -> dict[str, dict[str, Cell]]:
    """Ask every contender once in every round; return the cells by part, then by contender.

    A first round does not count, except where there are only two. `measure` returns seconds (or
    anything else) by part; a contender for which it raises is out for the rest, and its cell says
    why.
    """
    active = list(contenders)
    samples: dict[str, list[Parts]] = {contender.name: [] for contender in active}
    notes: dict[str, str] = {}
    for number, contender in turns(active, rounds, warm=rounds > 2):
        try:
            parts = measure(contender)
        except NotOfferedError as reason:
            notes[contender.name] = str(reason)
            active.remove(contender)
        except Exception as error:  # noqa: BLE001 - one that fails must not end the run
            notes[contender.name] = failure(error)
            samples[contender.name].clear()
            active.remove(contender)
        else:
            if number >= 0:
                samples[contender.name].append(parts)
    names = list(dict.fromkeys(part for taken in samples.values() for p in taken for part in p))
    return {
        part: {
            contender.name: Cell(
                tuple(parts[part] for parts in samples[contender.name] if part in parts),
                notes.get(contender.name, ""),
            )
            for contender in contenders
        }
        for part in names
    }
