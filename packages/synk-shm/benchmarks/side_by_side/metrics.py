"""The metrics: functions from a Bench to rows."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Callable

import numpy as np
from synk_benchmarks.results import BYTES, SECONDS, Row
from synk_benchmarks.rounds import Parts, take_turns

from .child import FIRST, Child
from .contender import Contender, Pair

KIB, MIB = 1 << 10, 1 << 20
LARGE = 16 * MIB


@dataclass
class Bench:
    """What is measured; if it is quick, by fewer rounds and shorter loops: ratios are rougher."""

    contenders: list[Contender]
    quick: bool
    large: int

    def rows(
        self,
        group: str,
        titles: dict[str, str],
        nbytes: int,
        measure: Callable[[Contender], Parts],
        unit: str = SECONDS,
    ) -> Iterator[Row]:
        """Measure every contender once in every round; yield the row of each part with a title."""
        rounds = (2, 3, 9, 15)[2 * (not self.quick) + (nbytes < LARGE)]
        cells = take_turns(self.contenders, rounds, measure)
        for part, label in titles.items():
            if part in cells:
                yield Row(group, label, cells[part], unit)

    def repeats(self, count: int) -> int:
        """Return the number of repetitions of a short act within one turn."""
        return max(1, count // 5) if self.quick else count

    def sizes(self) -> list[tuple[int, str, int]]:
        """Return bytes, a name, and how many arrays a turn makes."""
        small = [(KIB, "1 KB", self.repeats(100)), (MIB, "1 MB", self.repeats(10))]
        return [*small, (self.large, "large", 1)]


@contextlib.contextmanager
def one_each(count: int, value: float) -> Iterator[Callable[[Contender], Pair]]:
    """Yield a function that returns one array of a contender, filled with a value."""
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


def create(bench: Bench) -> Iterator[Row]:
    """Measure new arrays with a write to all pages, and their destruction."""
    for nbytes, name, repeats in bench.sizes():
        titles = {"create": f"create+touch {name}", "destroy": f"destroy {name}"}
        measure = functools.partial(_create, count=nbytes // 8, repeats=repeats)
        yield from bench.rows("create", titles, nbytes, measure)


def _create(contender: Contender, count: int, repeats: int) -> Parts:
    """Hold all arrays of a turn at once, so that none can be made of another's memory."""
    held: list[Pair] = []
    made: list[float] = []
    destroyed: list[float] = []
    try:
        for _ in range(repeats):
            begin = perf_counter()
            pair = contender.create(count)
            pair[0].fill(1)
            made.append(perf_counter() - begin)
            held.append(pair)
        del pair
    finally:
        while held:
            array, keep = held.pop()
            begin = perf_counter()
            del array  # the last reference: destroys the memory of some contenders
            contender.destroy(keep)
            destroyed.append(perf_counter() - begin)
    return {"create": median(made), "destroy": median(destroyed)}


def share(bench: Bench) -> Iterator[Row]:
    """Measure a copy into shared memory, and the first sum over the copy."""
    for nbytes, name, repeats in bench.sizes()[1:]:
        source = np.arange(nbytes // 8, dtype=np.float64)

        def measure(
            contender: Contender, source: Any = source, repeats: int = repeats
        ) -> dict[str, float]:
            times: list[float] = []
            total = None
            for _ in range(repeats):
                begin = perf_counter()
                array, keep = contender.share(source)
                total = array.sum()
                times.append(perf_counter() - begin)
                del array
                contender.destroy(keep)
            if total != source.sum():
                raise RuntimeError("the copy has another sum")
            return {"share": median(times)}

        yield from bench.rows("share", {"share": f"share+sum {name}"}, nbytes, measure)


def compute(bench: Bench) -> Iterator[Row]:
    """Measure NumPy's functions on the memory, beside ordinary memory."""
    other = np.ones(bench.large // 8)
    repeats = bench.repeats(2000)

    def large(contender: Contender) -> Parts:
        array, _ = arrays(contender)
        times = [perf_counter()]
        for act in (array.sum, lambda: array.__iadd__(other), lambda: array.fill(0)):
            act()
            times.append(perf_counter())
        return dict(zip(("sum", "add", "fill"), (b - a for a, b in zip(times, times[1:]))))

    def small(contender: Contender) -> Parts:
        x, _ = arrays(contender)
        times: list[float] = []
        for _ in range(10):
            begin = perf_counter()
            for _ in range(repeats):
                x + x
            times.append((perf_counter() - begin) / repeats)
        return {"small": median(times)}

    titles = {"sum": "a.sum() large", "add": "a += b large", "fill": "a.fill(0) large"}
    with one_each(other.size, 0) as arrays:
        yield from bench.rows("compute", titles, bench.large, large)
    # The overhead of a ufunc, which is larger for subclasses of ndarray.
    with one_each(8, 1) as arrays:
        yield from bench.rows("compute", {"small": "x + x, 8 elements"}, 64, small)


def attach(bench: Bench) -> Iterator[Row]:
    """Measure attach, and detach, in a child."""
    for nbytes, name in ((KIB, "1 KB"), (bench.large, "large")):
        with one_each(nbytes // 8, FIRST) as arrays, contextlib.closing(Child()) as child:
            measure = functools.partial(
                _attach, child=child, arrays=arrays, repeats=bench.repeats(100)
            )
            titles = {"attach": f"attach {name}", "detach": f"detach {name}"}
            yield from bench.rows("attach", titles, KIB, measure)


def _attach(contender: Contender, child: Child, arrays: Any, repeats: int) -> Parts:
    address = contender.address(*arrays(contender))
    parts: Parts = child.ask("attach", contender, address, repeats)
    return parts


def passing(bench: Bench) -> Iterator[Row]:
    """Measure a round trip through a Pipe (send, attach, read, acknowledge), and its bytes."""
    for nbytes, name, _ in bench.sizes():
        repeats = bench.repeats(50) if nbytes < LARGE else 1 if bench.quick else 3
        with one_each(nbytes // 8, FIRST) as arrays, contextlib.closing(Child()) as child:
            measure = functools.partial(_trip, child=child, arrays=arrays, repeats=repeats)
            yield from bench.rows("pass", {"trip": f"pass {name}"}, nbytes, measure)
            if nbytes == KIB:
                titles = {"bytes": "bytes of a message"}
                yield from bench.rows("pass", titles, nbytes, measure, BYTES)


def _trip(contender: Contender, child: Child, arrays: Any, repeats: int) -> Parts:
    seconds, size = child.trips(contender, arrays(contender), repeats)
    return {"trip": seconds, "bytes": size}
