"""Take turns: every round asks everyone, so that all meet the same weather."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Dict, TypeVar

from .results import Cell, NotOfferedError, failure

MOST_CALLS = 2000
"""Calls of one turn, at most."""
Parts = Dict[str, float]
"""A number for each part of a turn: create, destroy ..."""
T = TypeVar("T")


def turns(active: list[T], rounds: int, *, warm: bool = False) -> Iterator[tuple[int, T]]:
    """Yield the round and whose turn it is; each round begins with another one.

    Garbage is collected between the rounds only.

    Args:
        active: who takes part; from the next round on without those that are removed meanwhile.
        rounds: how many.
        warm: begin with a round -1, which is not to be counted.
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

    Args:
        budget_s: how long the calls of a turn may take together, as far as one is shorter.
        trial: takes a number of calls, returns the seconds of one.
        give_up_s: one call that takes longer is enough for a turn.
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

    Args:
        ways: what to call, by name.
        rounds: how many.
        budget_s: how long the calls of a turn take together, as far as one is shorter.
        calls: of a turn, in place of `budget_s`.
        warm: calls of each before all rounds, for caches and devices.
        wait: what the calls have ordered; called at the end of each turn, within its time.
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
    """Ask every contender once in every round.

    A first round does not count, except where there are only two.

    Args:
        contenders: have a name each.
        rounds: how many.
        measure: does its work with one contender and returns seconds (or anything else) by
            part. A contender for which it raises is out for the rest; the cell says why.

    Returns:
        From the name of a part to the cells of that part.
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
