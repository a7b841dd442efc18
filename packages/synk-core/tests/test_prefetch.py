"""Rows that are taken before the call is made: the same results, whatever happens in between.

On processors nothing is taken before; here the first and the last of three ranks are made to do as
a GPU does, and the one between them is not.
"""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from _ops import FAST, picky

import synk_shm
from synk_core import BatchError, WorkerFailed
from synk_core.device import Device
from synk_testing.engine import T, as_op, engine


class Uploads:
    """Copies nothing."""

    def wait(self, _places):
        pass

    def start(self, _place, array):
        return array

    def forget(self, _function_id):
        pass


@as_op([T.dvector], [T.dvector])
def switch(values):
    """Have this rank take rows before, or not, by the sign of its first value."""
    Device.uploads = Uploads() if values[0] > 0 else None
    return values


@pytest.fixture(scope="module")
def made(trio):
    """Data, and functions whose results show which rows they were computed on.

    Two of the ranks take rows before, and one does not.
    """
    x, k = T.dmatrix("x"), T.lvector("k")
    tell = trio.function([x], (switch(x[:, 0]), "gather"), **FAST)
    tell(np.array([[1.0], [-1.0], [1.0]]))
    values, labels = np.random.RandomState(1).rand(50, 3), np.arange(50)
    f = trio.function([x, k], [(x * 2, "gather"), (k, "gather")], name="f", **FAST)
    g = trio.function([x, k], [(x + 1, "gather"), (k * k, "gather")], name="g", **FAST)
    data = trio.data(values), trio.data(labels)
    expected = {f: lambda v, n: (v * 2, n), g: lambda v, n: (v + 1, n * n)}
    yield SimpleNamespace(
        runtime=trio, f=f, g=g, data=data, values=values, labels=labels, expected=expected
    )
    tell(-np.ones((3, 1)))


def require(made, function, result, rows):
    """The result is that of these rows, by NumPy."""
    wanted = made.expected[function](made.values[rows], made.labels[rows])
    for got, right in zip(result, wanted):
        np.testing.assert_array_equal(got, right)


def test_rows_are_taken_once(made):
    """So a change of the data in between is not seen where they were taken before."""
    x = made.runtime.data(np.zeros((3, 3)))
    call = made.g.delayed(x, made.labels[:3], batch=[0, 1, 2])
    made.runtime.step(call.prefetch())
    x.data[...] = 1.0
    assert made.runtime.step(call)[0][0][:, 0].tolist() == [1.0, 2.0, 1.0]
    np.testing.assert_array_equal(made.runtime.step(call)[0][0], 2.0)


def test_calls_in_any_order_and_of_several_functions(made):
    """Prefetched, performed, forgotten at random: each gets its own rows."""
    random = np.random.RandomState(0)
    waiting = []
    for _ in range(100):
        what = random.randint(5)
        if what < 3:
            function = (made.f, made.g)[random.randint(2)]
            data = (made.data, (made.values, made.labels))[random.randint(2)]
            some = random.randint(0, 50, random.choice([0, 1, 5, 5, 8])).tolist()
            rows = [some, slice(2, 9), slice(40, 3, -4), slice(None)][random.randint(4)]
            slices = 1 + random.randint(2)
            call = function.delayed(*data, batch=rows, num_slices=slices)
            waiting.append((function, rows, call))
        if what < 2:
            made.runtime.step(waiting[-1][2].prefetch())
        elif what == 2 and len(waiting) > 1:
            acts = [waiting[0][2], waiting[-1][2].prefetch(), waiting[1][2]]
            results = made.runtime.step(*acts)
            for place in (0, 1):
                require(made, waiting[place][0], results[2 * place], waiting[place][1])
            del waiting[:2]
        elif what == 3 and waiting:
            function, rows, call = waiting.pop(random.randint(len(waiting)))
            require(made, function, made.runtime.step(call)[0], rows)
        elif what == 4 and waiting:
            waiting.pop(random.randint(len(waiting)))


def test_after_a_failure_each_call_gets_its_own_rows(made):
    x = T.dvector("x")
    fails = made.runtime.function([x], (picky(x), "gather"), **FAST)
    good, bad = np.ones(6), np.append(np.ones(5), 200.0)
    for _ in range(2):
        call = made.f.delayed(*made.data, batch=[6, 7, 8, 9])
        with pytest.raises(WorkerFailed, match="not this"):
            made.runtime.step(call.prefetch(), fails.delayed(bad))
        made.runtime.step(fails.delayed(good))
        require(made, made.f, made.runtime.step(call)[0], [6, 7, 8, 9])
        call = made.f.delayed(*made.data, batch=[5, 6])
        made.runtime.step(call.prefetch())
        with pytest.raises(WorkerFailed, match="not this"):
            made.runtime.step(call, fails.delayed(bad))
        require(made, made.f, made.runtime.step(call)[0], [5, 6])


def test_data_that_move_in_between_are_read_where_they_are(made):
    x, labels = made.runtime.data(made.values[:5]), made.runtime.data(made.labels[:5])
    for rows in ([0, 4], [0, 44]):
        call = made.f.delayed(x, labels, batch=rows)
        made.runtime.step(call.prefetch())
        x.free_memory()
        x.set_value(made.values)
        labels.set_value(made.labels)
        require(made, made.f, made.runtime.step(call)[0], rows)


def test_memory_that_is_given_back_is_not_held_for_a_call_that_never_came(made):
    """Nor by the function, which knows the last prefetched call."""
    x, labels = made.runtime.data(made.values), made.runtime.data(made.labels)
    made.runtime.step(made.f.delayed(x, labels, batch=[1, 2]).prefetch())
    gc.collect()
    mapped = weakref.ref(synk_shm.segment(made.runtime._rank.arrays.get(x._ref())))
    del x, labels
    for _ in range(3):
        gc.collect()
        made.f(*made.data, batch=[1])
    assert mapped() is None


@pytest.mark.feature("finite")
def test_errors_and_the_search_for_nan_are_the_calls_own(made):
    good = made.f.delayed(*made.data, batch=[1, 2])
    bad = made.f.delayed(*made.data, batch=[99])
    require(made, made.f, made.runtime.step(good, bad.prefetch())[0], [1, 2])
    with pytest.raises(BatchError, match="99"):
        made.runtime.step(bad)
    made.runtime.step(good.prefetch())
    made.runtime.watch_finite(True)
    try:
        require(made, made.f, made.runtime.step(good)[0], [1, 2])
    finally:
        made.runtime.watch_finite(False)


def test_a_loop_needs_no_more_rooms_and_acts_as_it_goes_on(made):
    places, acts = made.f.orders.store._owners, made.runtime.orders.acts._acts
    call, counts = made.f.delayed(*made.data, batch=[0, 1, 2]), []
    made.runtime.step(call.prefetch())
    for i in range(12):
        following = made.f.delayed(*made.data, batch=[i, i, 7])
        made.runtime.step(call, following.prefetch())
        call = following
        counts.append((len(acts), len(places)))
    assert counts[2:] == counts[2:3] * 10
    del call, following
    gc.collect()
    assert not places


@pytest.mark.feature("stats")
def test_a_prefetch_updates_nothing_and_has_no_figures(made):
    x, total = T.dmatrix("x"), engine.shared(np.zeros(3), name="total")
    updates = [(total, total + x.sum(axis=0))]
    add = made.runtime.function([x], updates=updates, name="add", **FAST)
    call = add.delayed(made.values[:3])
    made.runtime.stats(reset=True)
    made.runtime.step(made.g.delayed(*made.data), call.prefetch())
    stats = made.runtime.stats()
    assert {name: stats[name].calls for name in stats if name != "distribute()"} == {"g": 1}
    assert stats["g"].reduce_s > 0
    made.runtime.step(call)
    np.testing.assert_array_equal(made.runtime.collectives.gather(total), made.values[:3])
