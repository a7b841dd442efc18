"""What is measured: synkhronos's way of each case. A turn is some calls; it returns seconds."""

from __future__ import annotations

import functools
from time import perf_counter
from typing import Any, Callable, NamedTuple

import numpy as np
import theano
import theano.tensor as T
from synk_benchmarks.rounds import timed

import synkhronos as synk

ROW = 1024
"""Numbers of a row, 4 bytes each."""
BATCH_ROWS = 256

Turn = Callable[[int], float]


class Ways(NamedTuple):
    """A case of some size.

    Attributes:
        ours: takes a number of calls, returns the seconds of one.
        bare: the name of mpi4py's way in `bare`; empty if it has none.
        single: whether a turn is one call: each one needs something new.
    """

    ours: Turn
    bare: str = ""
    single: bool = False


def _variable(nbytes: int) -> Any:
    value = np.ones(nbytes // 4, np.float32)
    return theano.shared(value, name=f"s{nbytes}")


@functools.cache
def _held(nbytes: int) -> Any:
    """Return a shared variable that all ranks have: of a function that uses it."""
    variable = _variable(nbytes)
    synk.function([], variable[0])
    synk.distribute()
    return variable


@functools.cache
def _scattered() -> Any:
    x = T.fmatrix("x")
    return synk.function([x], (x.shape[0], "sum"))


@functools.cache
def _broadcast_input() -> Any:
    x = T.fmatrix("x")
    return synk.function([], bcast_inputs=[x], outputs=x[0, 0])


@functools.cache
def _values(nbytes: int) -> np.ndarray:
    return np.ones((nbytes // 4 // ROW, ROW), np.float32)


def _order(_nbytes: int) -> Ways:
    empty = synk.function([])
    return Ways(lambda calls: timed(empty, calls), "order")


def _all_reduce(nbytes: int) -> Ways:
    held = _held(nbytes)
    return Ways(lambda calls: timed(lambda: synk.all_reduce(held), calls), "all_reduce")


def _broadcast(nbytes: int) -> Ways:
    held = _held(nbytes)
    return Ways(lambda calls: timed(lambda: synk.broadcast(held), calls), "broadcast")


def _sent(function: Callable[[], Any], bare: str, *, new: bool) -> Callable[[int], Ways]:
    """Return a case in which a `Data` of which the other hosts have nothing yet is an input."""

    def case(nbytes: int) -> Ways:
        values, call = _values(nbytes), function()
        kept = None if new else synk.data(values)

        def turn(_calls: int) -> float:
            data = synk.data(values) if kept is None else kept
            data[...] = values
            began = perf_counter()
            call(data)
            return perf_counter() - began

        return Ways(turn, bare, single=True)

    return case


def _batch(nbytes: int) -> Ways:
    """Random rows of what all hosts have."""
    data, call = synk.data(_values(nbytes)), _scattered()
    draw = np.random.default_rng(1)

    def turn(calls: int) -> float:
        batches = [draw.integers(len(data), size=BATCH_ROWS) for _ in range(calls)]
        began = perf_counter()
        for batch in batches:
            call(data, batch=batch)
        return (perf_counter() - began) / calls

    for _ in range(3):
        turn(8 * len(data) // BATCH_ROWS)  # until each host has nearly all rows
    return Ways(turn)


CASES: dict[str, Callable[[int], Ways]] = {
    "order": _order,
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "Data, new": _sent(_broadcast_input, "whole", new=True),
    "Data, written again": _sent(_broadcast_input, "whole", new=False),
    "rows, written again": _sent(_scattered, "rows", new=False),
    "batch": _batch,
    "link": lambda _nbytes: Ways(lambda _calls: 0.0, "link"),
}
"""By the name of a row's group."""
