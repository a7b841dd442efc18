"""Measure memory: create, share, compute and grow."""

from __future__ import annotations

import functools
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from synk_benchmarks.results import Row
from synk_benchmarks.text import size_name

from .bench import Bench, Parts, one_each, rows
from .contender import Contender

KIB = 1 << 10
MIB = 1 << 20


def create(bench: Bench) -> list[Row]:
    """Measure new arrays with a write to all pages, and their destruction."""
    made: list[Row] = []
    for size, key, repeats in _sizes(bench):
        measure = functools.partial(_create_and_hold, count=size // 8, repeats=repeats)
        label = f"create+touch {size_name(size)}"
        cells = bench.take_turns(label, bench.rounds(size), measure)
        titles = {
            "create": (f"create/{key}", label),
            "destroy": (f"destroy/{key}", f"destroy {size_name(size)}"),
        }
        made += rows(bench, cells, titles)
    return made


def again(bench: Bench) -> list[Row]:
    """Measure new arrays after one of the same size has been destroyed.

    Only here contenders that reuse freed memory have an advantage.
    """
    made: list[Row] = []
    for size, key, repeats in _sizes(bench)[:2]:
        measure = functools.partial(_create_again, count=size // 8, repeats=repeats)
        label = f"create+touch {size_name(size)}, again"
        cells = bench.take_turns(label, bench.rounds(size), measure)
        made += rows(bench, cells, {"create": (f"again/{key}", label)})
    return made


def share(bench: Bench) -> list[Row]:
    """Measure a copy into shared memory, and the first sum over the copy."""
    made: list[Row] = []
    for size, key, repeats in ((64 * KIB, "64K", 50), (MIB, "1M", 10), (bench.large, "large", 1)):
        source = np.arange(size // 8, dtype=np.float64)
        measure = functools.partial(_share_and_sum, source=source, repeats=bench.repeats(repeats))
        label = f"share+sum {size_name(size)}"
        cells = bench.take_turns(label, bench.rounds(size), measure)
        made += rows(bench, cells, {"share": (f"share/{key}", label)})
    return made


def compute(bench: Bench) -> list[Row]:
    """Measure NumPy's functions on the memory, beside ordinary memory."""
    return _compute_large(bench) + _compute_small(bench)


def growth(bench: Bench) -> list[Row]:
    """Measure growth to twice the length, while a view of the old array is alive."""
    count = bench.large // 8

    def measure(contender: Contender) -> Parts:
        array, keep = contender.growable(count // 2, count)
        array.fill(1)
        view = array[:8]
        begin = perf_counter()
        grown, new_keep = contender.grow(array, count)
        middle = perf_counter()
        grown[count // 2 :].fill(2)
        end = perf_counter()
        right = bool(view[0] == 1 and grown[0] == 1 and grown[-1] == 2 and len(grown) == count)
        del array, view
        contender.destroy(keep)
        del grown
        if new_keep is not None:
            contender.destroy(new_keep)
        if not right:
            raise RuntimeError("the values are wrong after growing")
        return {"grow": middle - begin, "both": end - begin}

    label = f"grow {size_name(bench.large // 2)} to {size_name(bench.large)}"
    cells = bench.take_turns(label, bench.rounds(bench.large), measure)
    titles = {
        "grow": ("grow/large", label),
        "both": ("grow+touch/large", f"{label}, touch"),
    }
    return rows(bench, cells, titles)


def _sizes(bench: Bench) -> list[tuple[int, str, int]]:
    """Return bytes, the name in keys, and the number of arrays alive at once."""
    return [
        (KIB, "1K", bench.repeats(100)),
        (MIB, "1M", bench.repeats(10)),
        (bench.large, "large", 1),
    ]


def _create_and_hold(contender: Contender, count: int, repeats: int) -> Parts:
    """Hold all arrays of a turn at once, so that none can be made of another's memory."""
    held: list[Any] = []
    made: list[float] = []
    destroyed: list[float] = []
    contender.forget()
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
            del keep
            destroyed.append(perf_counter() - begin)
    return {"create": median(made), "destroy": median(destroyed)}


def _create_again(contender: Contender, count: int, repeats: int) -> Parts:
    times: list[float] = []
    for _ in range(repeats + 1):
        begin = perf_counter()
        array, keep = contender.create(count)
        array.fill(1)
        times.append(perf_counter() - begin)
        del array
        contender.destroy(keep)
        del keep
    return {"create": median(times[1:])}  # the first one had nothing to reuse


def _share_and_sum(contender: Contender, source: Any, repeats: int) -> Parts:
    times: list[float] = []
    total = None
    for _ in range(repeats):
        begin = perf_counter()
        array, keep = contender.share(source)
        total = array.sum()
        times.append(perf_counter() - begin)
        del array
        contender.destroy(keep)
        del keep
    if total != source.sum():
        raise RuntimeError("the copy has another sum")
    return {"share": median(times)}


def _compute_large(bench: Bench) -> list[Row]:
    count = bench.large // 8
    other = np.ones(count)
    where = np.random.default_rng(0).integers(0, count, min(count, 2_000_000))
    taken = np.empty(where.size)

    def measure(contender: Contender) -> Parts:
        array, _ = arrays(contender)
        times = [perf_counter()]
        array.sum()
        times.append(perf_counter())
        array += other
        times.append(perf_counter())
        array.take(where, out=taken, mode="clip")
        times.append(perf_counter())
        array.fill(0)
        times.append(perf_counter())
        names = ("sum", "add", "gather", "fill")
        return dict(zip(names, (b - a for a, b in zip(times, times[1:]))))

    with one_each(count, 0) as arrays:
        label = f"compute {size_name(bench.large)}"
        cells = bench.take_turns(label, 3 if bench.quick else 21, measure)
    size = size_name(bench.large)
    titles = {
        "sum": ("compute/sum", f"a.sum() {size}"),
        "add": ("compute/add", f"a += b {size}"),
        "fill": ("compute/fill", f"a.fill(0) {size}"),
        "gather": ("compute/gather", f"a.take(2M) {size}"),
    }
    return rows(bench, cells, titles)


def _compute_small(bench: Bench) -> list[Row]:
    """Measure the overhead of a ufunc, which is larger for subclasses of ndarray."""
    repeats = bench.repeats(2000)

    def measure(contender: Contender) -> Parts:
        x, keep = contender.create(8)
        x.fill(1)
        times: list[float] = []
        for _ in range(10):
            begin = perf_counter()
            for _ in range(repeats):
                x + x
            times.append((perf_counter() - begin) / repeats)
        del x
        contender.destroy(keep)
        return {"small": median(times)}

    cells = bench.take_turns("x + x, 8 elements", bench.rounds(0), measure)
    return rows(bench, cells, {"small": ("compute/small", "x + x, 8 elements")})
