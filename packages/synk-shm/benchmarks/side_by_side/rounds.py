"""Taking turns: every round asks every contender once, so that all meet the same weather."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Callable, Dict

from .contender import Contender, NotOfferedError, Pair
from .results import COUNT, SECONDS, Cell, Row

LARGE = 16 << 20  # bytes from which on a round takes long
# From the name of a part (create, destroy, ...) to a number.
Parts = Dict[str, float]


class OutOfTimeError(Exception):
    """A metric took longer than it may."""


@dataclass
class Bench:
    """What a metric function gets.

    Attributes:
        contenders: those that take part.
        quick: fewer rounds and shorter loops; the ratios are rougher.
        large: bytes of the largest arrays.
        say: shows a line of progress.
    """

    contenders: list[Contender]
    quick: bool
    large: int
    say: Callable[[str], None]
    group: str = field(default="", init=False)

    def rounds(self, nbytes: int) -> int:
        """How many rounds an array size gets: enough for a median, not for a coffee."""
        if self.quick:
            return 2 if nbytes >= LARGE else 3
        return 9 if nbytes >= LARGE else 15

    def repeats(self, count: int) -> int:
        """How often a short act is repeated within one turn."""
        return max(1, count // 5) if self.quick else count


class Progress:
    """One line on stderr that replaces itself on a terminal, and is left out elsewhere.

    It is also where the run notices that it is to end: an exception that a signal handler
    raises may be lost, if it comes while Python runs a finalizer.
    """

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self.ended_by = 0

    def end_on(self, *signals: int) -> None:
        """Have these signals raise KeyboardInterrupt, now and at the next line."""
        for number in signals:
            signal.signal(number, self._end)

    def _end(self, number: int, _frame: Any) -> None:
        self.ended_by = number
        raise KeyboardInterrupt

    def __call__(self, text: str) -> None:
        """Show this in place of what was there."""
        if self.ended_by:
            raise KeyboardInterrupt
        self._replace(text[:100])

    def line(self, text: str) -> None:
        """A line that stays."""
        self._replace("")
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def _replace(self, text: str) -> None:
        if self._shown:
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()


@contextlib.contextmanager
def one_each(count: int, value: float) -> Iterator[Callable[[Contender], Pair]]:
    """A function that gives each contender's one array for the block, filled with a value."""
    made: dict[str, tuple[Contender, Pair]] = {}

    def get(contender: Contender) -> Pair:
        if contender.name not in made:
            pair = contender.create(count)
            made[contender.name] = contender, pair
            pair[0].fill(value)
        return made[contender.name][1]

    try:
        yield get
    finally:
        while made:
            _, (contender, pair) = made.popitem()
            keep = pair[1]
            del pair
            contender.destroy(keep)


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """End the block with `OutOfTimeError` if it takes longer, whatever it waits for."""

    def ring(_number: int, _frame: Any) -> None:
        raise OutOfTimeError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def take_turns(
    bench: Bench,
    label: str,
    rounds: int,
    measure: Callable[[Contender], Parts],
) -> dict[str, dict[str, Cell]]:
    """Ask every contender once in every round, beginning with another one each time.

    A first round does not count, except where there are only two.

    Args:
        measure: does its work with one contender and returns seconds (or anything else) by
            part. A contender for which it raises is out for the rest; the cell says why.

    Returns:
        From the name of a part to the cells of that part.
    """
    active = list(bench.contenders)
    samples: dict[str, list[Parts]] = {contender.name: [] for contender in active}
    notes: dict[str, str] = {}
    for contender, number in _turns(active, rounds):
        bench.say(f"{label}: round {number + 1}/{rounds}, {contender.name}")
        try:
            parts = measure(contender)
        except OutOfTimeError:
            raise
        except NotOfferedError as reason:
            notes[contender.name] = str(reason)
            active.remove(contender)
        except Exception as error:  # noqa: BLE001 (one that fails must not end the run)
            notes[contender.name] = f"failed: {type(error).__name__}: {error}"
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
            for contender in bench.contenders
        }
        for part in names
    }


def rows(
    bench: Bench,
    cells: dict[str, dict[str, Cell]],
    titles: dict[str, tuple[str, str]],
    unit: str = SECONDS,
) -> list[Row]:
    """Rows out of parts: `titles` gives each part its (key, label)."""
    return [
        Row(key, bench.group, label, unit, cells[part])
        for part, (key, label) in titles.items()
        if part in cells
    ]


def counts(bench: Bench, key: str, label: str, cells: dict[str, Cell], **options: Any) -> Row:
    """One row of plain numbers."""
    return Row(key, bench.group, label, COUNT, cells, **options)


def size_name(nbytes: int) -> str:
    """1 KB, 64 KB, 1 MB, 256 MB: what the rows are called (powers of two, as everywhere)."""
    kilo = nbytes >> 10
    return f"{kilo >> 10} MB" if kilo >= 1024 else f"{kilo} KB"


def _turns(active: list[Contender], rounds: int) -> Iterator[tuple[Contender, int]]:
    """Whose turn it is in which round. Garbage is collected between the rounds only."""
    enabled = gc.isenabled()
    try:
        for number in range(-1 if rounds > 2 else 0, rounds):
            gc.enable()
            gc.collect()
            gc.disable()
            first = number % max(1, len(active))
            for contender in active[first:] + active[:first]:
                yield contender, number
    finally:
        if enabled:
            gc.enable()
