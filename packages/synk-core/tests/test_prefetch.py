"""Rows that are taken before the call is made: the same results, whatever happens in between.

On processors nothing is taken before; here some ranks, or all, are made to do as a GPU does.
"""

from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest

import synk_shm
from synk_core import BatchError, WorkerFailed
from synk_core._graph.devices.device import Cpu
from synk_core._graph.devices.host_memory import LockedPages
from synk_core._graph.devices.uploads import Uploads
from synk_testing.engine import T, as_op, engine, theano_only

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FAST = {"mode": "FAST_COMPILE"}


@as_op([T.dvector], [T.dvector])
def switch(values):
    """Have this rank take rows before, or not, by the sign of its first value."""
    Cpu.prefetches = bool(values[0] > 0)
    return values


NIGHTLY = pytest.mark.nightly


@pytest.fixture(
    params=[*(pytest.param(who, marks=NIGHTLY) for who in ("no rank", "all ranks")), "some ranks"]
)
def ahead(runtime, request):
    """A runtime whose ranks take rows before, or do not."""
    x = T.dvector()
    tell = runtime.function([x], (switch(x), "gather"), **FAST)
    none = -np.ones(runtime.size)
    some = np.where(np.arange(runtime.size) % 2, -1.0, 1.0)
    tell({"no rank": none, "all ranks": -none, "some ranks": some}[request.param])
    yield runtime
    tell(none)


@pytest.fixture
def made(ahead):
    """Data, and functions whose results show which rows they were computed on."""
    x, k = T.dmatrix("x"), T.lvector("k")
    values = np.random.RandomState(1).rand(50, 3)
    labels = np.arange(50)
    f = ahead.function([x, k], [(x * 2, "gather"), (k, "gather")], name="f", **FAST)
    g = ahead.function([x, k], [(x + 1, "gather"), (k * k, "gather")], name="g", **FAST)
    data = ahead.data(values), ahead.data(labels)
    expected = {f: lambda v, n: (v * 2, n), g: lambda v, n: (v + 1, n * n)}
    return SimpleNamespace(
        runtime=ahead, f=f, g=g, data=data, values=values, labels=labels, expected=expected
    )


def require(made, function, result, rows):
    """The result is that of these rows, by NumPy."""
    wanted = made.expected[function](made.values[rows], made.labels[rows])
    for got, right in zip(result, wanted):
        np.testing.assert_array_equal(got, right)


SELECTIONS = [[3, 1, 4, 1, 5], slice(2, 9), slice(40, 3, -4), list(range(20)), slice(2, 9), [7]]


@pytest.mark.parametrize("num_slices", [1, 2])
def test_each_call_gets_its_own_rows(made, num_slices):
    for data in (made.data, (made.values, made.labels)):
        calls = [made.f.delayed(*data, batch=rows, num_slices=num_slices) for rows in SELECTIONS]
        for call, following, rows in zip(calls, [*calls[1:], None], SELECTIONS):
            acts = [call] if following is None else [call, following.prefetch()]
            require(made, made.f, made.runtime.step(*acts)[0], rows)


def test_a_call_without_batch_and_of_arrays_alone(made):
    values, labels = made.values[:10], made.labels[:10]
    first, second = (made.f.delayed(values + i, labels) for i in (0, 1))
    made.runtime.step(first, second.prefetch())
    np.testing.assert_array_equal(made.runtime.step(second)[0][0], (values + 1) * 2)


def test_rows_are_taken_once(made):
    """So a change of the data in between is not seen where they were taken before."""
    x = made.runtime.data(np.zeros((made.runtime.size, 3)))
    labels = made.labels[: made.runtime.size]
    call = made.g.delayed(x, labels, batch=list(range(made.runtime.size)))
    made.runtime.step(call.prefetch())
    x.data[...] = 1.0
    got = made.runtime.step(call)[0][0]
    assert got[0, 0] == (1.0 if Cpu.prefetches else 2.0)
    np.testing.assert_array_equal(made.runtime.step(call)[0][0], 2.0)


def test_a_call_that_is_never_made_leaves_nothing_to_others(made):
    for rows in SELECTIONS:
        made.runtime.step(made.f.delayed(*made.data, batch=[9] * 5).prefetch())
        call = made.f.delayed(*made.data, batch=rows)
        made.runtime.step(call.prefetch())
        require(made, made.f, made.f(*made.data, batch=[2, 3, 5, 7, 8]), [2, 3, 5, 7, 8])
        require(made, made.f, made.runtime.step(call)[0], rows)


def test_calls_in_any_order_and_of_several_functions(made):
    """Prefetched, performed, forgotten at random: each gets its own rows."""
    random = np.random.RandomState(0)
    waiting = []
    for _ in range(120):
        what = random.randint(5)
        if what < 3:
            function = (made.f, made.g)[random.randint(2)]
            rows = random.randint(0, 50, random.choice([0, 1, 5, 5, 8])).tolist()
            waiting.append((function, rows, function.delayed(*made.data, batch=rows)))
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


@as_op([T.dmatrix], [T.dmatrix])
def refuse(values):
    if (values < 0).any():
        raise ValueError("negative")
    return values


def test_after_a_failure_each_call_gets_its_own_rows(made):
    x = T.dmatrix("x")
    picky = made.runtime.function([x], (refuse(x), "gather"), name="picky", **FAST)
    good, bad = np.ones((6, 2)), np.ones((6, 2))
    bad[-1] = -1
    for _ in range(3):
        old = made.f.delayed(*made.data, batch=[1, 2, 3, 4])
        made.runtime.step(old.prefetch())
        del old
        call = made.f.delayed(*made.data, batch=[6, 7, 8, 9])
        with pytest.raises((WorkerFailed, ValueError), match="negative"):
            made.runtime.step(call.prefetch(), picky.delayed(bad))
        made.runtime.step(picky.delayed(good))
        require(made, made.f, made.runtime.step(call)[0], [6, 7, 8, 9])
        call = made.f.delayed(*made.data, batch=[5, 6])
        made.runtime.step(call.prefetch())
        with pytest.raises((WorkerFailed, ValueError), match="negative"):
            made.runtime.step(call, picky.delayed(bad))
        require(made, made.f, made.runtime.step(call)[0], [5, 6])


def test_data_that_move_in_between_are_read_where_they_are(made):
    x, labels = made.runtime.data(made.values[:5]), made.runtime.data(made.labels[:5])
    call = made.f.delayed(x, labels, batch=[0, 4])
    made.runtime.step(call.prefetch())
    x.set_value(made.values), labels.set_value(made.labels)
    require(made, made.f, made.runtime.step(call)[0], [0, 4])
    call = made.f.delayed(x, labels, batch=[0, 44])
    made.runtime.step(call.prefetch())
    x.free_memory()
    x.set_value(made.values)
    require(made, made.f, made.runtime.step(call)[0], [0, 44])


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


def test_finite_watch_between_prefetch_and_call(made):
    call = made.f.delayed(*made.data, batch=[3, 1])
    made.runtime.step(call.prefetch())
    made.runtime.watch_finite(True)
    try:
        require(made, made.f, made.runtime.step(call)[0], [3, 1])
    finally:
        made.runtime.watch_finite(False)


def test_bad_arguments_are_the_calls_own(made):
    good = made.f.delayed(*made.data, batch=[1, 2])
    bad = made.f.delayed(*made.data, batch=[99])
    require(made, made.f, made.runtime.step(good, bad.prefetch())[0], [1, 2])
    with pytest.raises(BatchError, match="99"):
        made.runtime.step(bad)


def test_updates_happen_once(made):
    x = T.dmatrix("x")
    total = engine.shared(np.zeros(3), name="total")
    add = made.runtime.function([x], updates=[(total, total + x.sum(axis=0))], **FAST)
    calls = [add.delayed(made.data[0], batch=[i]) for i in range(2, 6)]
    for call, following in zip(calls, [*calls[1:], None]):
        acts = [call, made.runtime.delayed.all_reduce(total, op="sum")]
        made.runtime.step(*acts, *([following.prefetch()] if following else []))
        total.set_value(np.zeros(3)), made.runtime.collectives.broadcast(total)
    made.runtime.step(calls[-1])
    np.testing.assert_array_equal(made.runtime.collectives.gather(total)[0], made.values[5])


def test_a_loop_needs_no_more_rooms_and_acts_as_it_goes_on(made):
    executor, acts = made.f.executor, made.runtime._controller.acts._acts
    call, counts = made.f.delayed(*made.data, batch=[0, 1, 2]), []
    made.runtime.step(call.prefetch())
    for i in range(30):
        following = made.f.delayed(*made.data, batch=[i, i, 7])
        made.runtime.step(call, following.prefetch())
        call = following
        counts.append((len(acts), len(executor._places)))
    assert counts[2:] == counts[2:3] * 28
    del call, following
    gc.collect()
    assert not executor._places


def test_figures_belong_to_the_other_acts(made):
    made.runtime.stats(reset=True)
    call = made.f.delayed(*made.data, batch=[0, 1, 2])
    made.runtime.step(made.g.delayed(*made.data), call.prefetch())
    made.runtime.step(call.prefetch())
    stats = made.runtime.stats()
    assert {name: stats[name].calls for name in stats if name != "distribute()"} == {"g": 1}
    assert stats["g"].reduce_s > 0
    ours = {made.f.number, made.g.number}
    assert not [one for one in made.runtime.lint() if ours & set(one.functions)]


class Array:
    """Of pygpu, one that lies nowhere."""

    def __init__(self, shape, dtype, address):
        self.shape, self.dtype, self.gpudata = tuple(shape), np.dtype(dtype), address

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, rows):
        return Array((min(rows.stop, len(self)), *self.shape[1:]), self.dtype, self.gpudata)


class Driver:
    """Of CUDA's driver, one that writes down what it is asked for."""

    def __init__(self):
        self.asked, self.events = [], 100

    def entered(self, device):
        import contextlib

        assert device == 3
        return contextlib.nullcontext()

    def stream(self):
        return 22

    def event(self):
        self.events += 1
        return self.events

    def __getattr__(self, name):
        return lambda *arguments: self.asked.append((name, *arguments))

    def take(self):
        asked, self.asked = self.asked, []
        return asked


@theano_only("arrays on GPUs")
def test_copies_wait_for_what_reads_the_buffer_and_calls_for_the_copies(monkeypatch):
    sizes = []

    def empty(shape, dtype, context):
        assert context == "context"
        sizes.append(shape)
        return Array(shape, dtype, 1000 * len(sizes))

    monkeypatch.setitem(sys.modules, "pygpu", SimpleNamespace(empty=empty))
    driver = Driver()
    pages = LockedPages(driver, 3, 11)
    uploads = Uploads(driver, pages, "context")
    rows = np.zeros((8, 2))
    address = rows.__array_interface__["data"][0]
    first = uploads.start((5, 0, 1), rows)
    assert len(first) == 8
    copied, used = 101, 102
    copy = [
        ("wait_for", 22, used),
        ("upload_on", 22, 1000, address, 128),
        ("record", copied, 22),
    ]
    assert driver.take() == [("record", used, 11), *copy]
    assert uploads.take(first).gpudata == 1000
    assert driver.take() == [("wait_for", 11, copied)]
    assert uploads.release() == [copied]
    assert driver.take() == [("record", used, 11)]
    assert uploads.release() == []
    # Fewer rows take the same buffer; more, or others, a new one.
    fewer = uploads.start((5, 0, 1), rows[:3])
    assert (len(fewer), fewer.value.gpudata) == (3, 1000)
    assert driver.take()[:2] == [copy[0], ("upload_on", 22, 1000, address, 48)]
    for other in (np.zeros((9, 2)), np.zeros((9, 2), "f4"), np.zeros((9, 3), "f4")):
        assert uploads.start((5, 0, 1), other).value.shape == other.shape
        assert driver.take()[0] == ("record", used, 11)
    assert sizes == [(8, 2), (9, 2), (9, 2), (9, 3)]
    # What locked memory has to outlive.
    second = uploads.start((6, 0, 1), rows)
    assert pages.uploads == [copied, second.buffer.copied]
    assert uploads.events([(5, 0, 1), (7, 0, 1)]) == [copied]
    assert uploads.forget(5) == [copied]
    assert pages.uploads == [second.buffer.copied]
