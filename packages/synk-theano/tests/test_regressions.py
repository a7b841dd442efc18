"""What Synkhronos 1.0 did wrong, once each; and what a call has to survive.

`test_d01` to `test_d14` each name one fault of 1.0 and hold against it. The rest injects what
brings other systems to their knees. Kills, sleepers, interrupts and dying masters are in
`test_failures`.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import theano
import theano.tensor as T
from theano.compile.ops import as_op

import synk_comm
import synk_shm
import synk_theano
from synk_theano import Runtime
from synk_theano.exceptions import BatchError, InputValueError, OpError, SynkError, WorkerFailed
from synk_theano.testing import nothing_left

# Workers cannot import test modules by the names that pytest gives them.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

QUICK = {"mode": "FAST_COMPILE"}


def rows(count, *tail):
    """So many rows of small numbers; sums and products of a few of them are exact."""
    return np.random.RandomState(count).randint(-3, 4, (count, *tail)) + 0.5


@pytest.fixture
def x():
    return T.dmatrix("x")


@pytest.mark.c_code
def test_d01_slices_compute_updates_from_the_original_values_and_apply_them_once(pair, x):
    """1.0 ran the updating function per slice, so each slice started from the last one's result."""
    w = theano.shared(np.ones(2), "w")
    n = theano.shared(np.asarray(0), "n")
    updates = [(w, w * 2 + x.mean(axis=0)), (n, n + 1)]
    f = pair.function([x], (w.sum(), "max"), updates=updates, **QUICK)
    value = rows(11, 2)
    assert f(value, num_slices=3) == 2
    for rank, share in enumerate(np.array_split(value, 2)):
        got, count = pair.collectives.get_value(rank, [w, n])
        np.testing.assert_allclose(got, 2 + share.mean(axis=0), rtol=1e-14)
        assert count == 1


def test_d02_an_error_in_a_worker_reaches_the_master_at_once(pair):
    """1.0 relied on atexit handlers of forked children, which do not run: the master waited."""
    v, result = failing(ValueError, "from the worker")
    f = pair.function([v], (result, "gather"), name="touchy", **QUICK)
    np.testing.assert_array_equal(f(np.zeros(4)), np.zeros(4))
    begin = time.monotonic()
    with pytest.raises(WorkerFailed, match="from the worker") as caught:
        f(np.array([0.0, 0, 0, 1]))
    assert time.monotonic() - begin < 5
    assert "in fail_on_ones" in caught.value.traceback
    np.testing.assert_array_equal(f(np.zeros(4)), np.zeros(4))


def test_d03_averages_weigh_ranks_and_slices_by_their_rows(pair, x):
    """1.0 weighed a rank with one row like a rank with many, and slices too."""
    f = pair.function([x], x.mean(axis=0), **QUICK)
    value = np.array([[0.0, 1], [3, 4], [30, 7]])
    for num_slices in (1, 2, 3):
        np.testing.assert_allclose(f(value, num_slices=num_slices), [11.0, 4.0], rtol=1e-15)


@pytest.mark.parametrize("tail", [(), (2,), (2, 3), (2, 3, 1, 2)])
def test_d04_arrays_of_any_rank_are_reduced(trio, tail):
    """1.0 made its buffers with `np.empty(*shape)`: arrays of two or more dimensions failed."""
    v = T.TensorType("float64", (False,) * (1 + len(tail)))("v")
    f = trio.function([v], [(v.sum(axis=0), "sum"), (v.max(axis=0), "max"), v.mean(0)], **QUICK)
    value = rows(10, *tail)
    for result, expected in zip(f(value), [value.sum(0), value.max(0), value.mean(0)]):
        np.testing.assert_allclose(result, expected, rtol=1e-14)
    s = theano.shared(np.zeros(tail), "s")
    values = rows(3, *tail)
    for rank in range(3):
        trio.collectives.set_value(rank, s, values[rank])
    result = trio.collectives.reduce(s, op="sum", in_place=False)
    np.testing.assert_array_equal(result, values.sum(axis=0))
    trio.collectives.all_reduce(s, op="max")
    np.testing.assert_array_equal(trio.collectives.get_value(2, s), values.max(axis=0))


@pytest.mark.parametrize("master", [pytest.param(0, marks=pytest.mark.nightly), 2])
def test_d05_one_rule_splits_rows_whichever_rank_is_the_master(x, master):
    """1.0 had two rules (4 rows over 3 ranks: 2, 2, 0 or 1, 1, 2), and rank 0's part went to the
    master whatever its rank was.
    """
    with Runtime(3, master_rank=master) as runtime:
        s = theano.shared(np.zeros((1, 2)), "s")
        f = runtime.function([x], [(x, None), (x, "gather")], **QUICK)
        for count in (4, 5, 9):
            value = rows(count, 2)
            parts = np.array_split(value, 3)
            own, all_rows = f(value)
            np.testing.assert_array_equal(own, parts[master])
            np.testing.assert_array_equal(all_rows, value)
            assert f.rows == tuple(map(len, parts))
            runtime.collectives.scatter(s, value)
            for rank, part in enumerate(parts):
                np.testing.assert_array_equal(runtime.collectives.get_value(rank, s), part)


def test_d06_all_outputs_come_back_after_some_were_wanted(pair, x):
    """1.0 raised AttributeError when a call without output_subset followed one with it."""
    f = pair.function([x], [(x.max(), "max"), (x.min(), "min"), (x.sum(), "sum")], **QUICK)
    value = rows(5, 2)
    every = [value.max(), value.min(), value.sum()]
    for num_slices in (1, 2):
        assert f(value, num_slices=num_slices) == every
        assert f(value, num_slices=num_slices, output_subset=[2, 0]) == [every[2], every[0]]
        assert f(value, num_slices=num_slices) == every
        assert f(value, num_slices=num_slices, output_subset=[]) == []
        assert f(value, num_slices=num_slices, output_subset=None) == every


def test_d07_a_function_tells_its_operations(pair, x):
    """1.0 read attributes that nothing ever set."""
    s, n = theano.shared(np.zeros(2), "s"), theano.shared(np.asarray(0), "n")
    f = pair.function(
        [x],
        [x.mean(), (x.sum(), "c_sum"), (x, None)],
        updates=[(s, s + 1), (n, n + 1, "max")],
        **QUICK,
    )
    assert f.output_modes == ("avg", "sum", None)
    assert f.update_modes == ("avg", "max")


def test_d08_rows_that_are_not_there_are_refused_and_all_others_taken(pair, x):
    """1.0 let an index equal to the length pass, read `slice.end`, and failed on an unset name
    for scattered inputs without batch_s.
    """
    s = theano.shared(np.zeros((1, 2)), "s")
    f = pair.function([x], ((x * s).sum(axis=1), "gather"), sliceable_shareds=[s], **QUICK)
    value = rows(6, 2)
    pair.collectives.scatter(s, value)
    np.testing.assert_array_equal(f(value), (value * value).sum(axis=1))
    got = f(value, batch=slice(1, 5), batch_s=slice(0, 2))
    np.testing.assert_array_equal(got, (value[1:5] * value[[0, 1, 3, 4]]).sum(axis=1))
    for act in (
        lambda: f(value, batch=[0, 6]),
        lambda: f(value, batch=np.array([6])),
        lambda: f(value, batch=slice(0, 7)),
        lambda: f(value, batch_s=[[0, 1, 3], [0, 1, 2]]),
        lambda: pair.collectives.scatter(s, value, batch=[6]),
        lambda: pair.collectives.set_value(1, s, value, batch=[0, 6]),
    ):
        with pytest.raises(SynkError, match=r"there are only [36] rows"):
            act()
    np.testing.assert_array_equal(f(value), (value * value).sum(axis=1))


def test_d09_errors_are_the_ones_that_are_meant(pair, x):
    """1.0 called exceptions that were instances already: a TypeError hid the real error."""
    s = theano.shared(np.zeros(2), "s")
    f = pair.function([x], x.mean(), **QUICK)
    for error, words, act in [
        (BatchError, "index 3", lambda: f(rows(3, 2), batch=[3])),
        (OpError, "'mean'", lambda: pair.collectives.all_reduce(s, op="mean")),
        (InputValueError, "rank", lambda: pair.collectives.get_value(5, s)),
        (TypeError, "expected 1", lambda: pair.collectives.set_value(0, s, np.zeros((2, 2)))),
    ]:
        with pytest.raises(error, match=words) as caught:
            act()
        assert isinstance(caught.value, SynkError)


def test_d10_several_variables_are_broadcast_from_data(pair):
    """1.0 unpacked a list of variables and a list of Data as if they were one list of pairs."""
    a, b = theano.shared(np.zeros(1), "a"), theano.shared(np.zeros((1, 1), "float32"), "b")
    one, other = np.arange(3.0), np.ones((2, 2), "float32")
    pair.collectives.broadcast([a, b], values=[pair.data(one), pair.data(other)])
    for rank in range(2):
        got = pair.collectives.get_value(rank, [a, b])
        np.testing.assert_array_equal(got[0], one)
        np.testing.assert_array_equal(got[1], other)


@pytest.mark.c_code
def test_d11_sliceables_are_replaced_wherever_they_are_used(pair):
    """1.0 replaced them in their own given only: where they fed another given, or were used
    twice, or in an update, slices met whole variables.
    """
    s, q = theano.shared(np.zeros(1), "s"), theano.shared(np.zeros(()), "q")
    a, b = T.dvector("a"), T.dvector("b")
    f = pair.function(
        [],
        [((a * b * s).sum(), "sum"), ((s - s).sum() + s.shape[0], "sum")],
        givens=[(a, s * 2), (b, s + 1)],
        updates=[(q, q + (s * s).sum(), "sum")],
        sliceable_shareds=[s],
        **QUICK,
    )
    value = np.arange(1.0, 9.0)
    pair.collectives.scatter(s, value)
    for batch_s, kept in [
        (None, value),
        (slice(1, 3), value[[1, 2, 5, 6]]),
        ([2, 0], value[[2, 0, 6, 4]]),
    ]:
        for num_slices in (1, 2):
            pair.collectives.broadcast(q, np.zeros(()))
            product, count = f(batch_s=batch_s, num_slices=num_slices)
            np.testing.assert_allclose(product, (2 * kept * (kept + 1) * kept).sum())
            assert count == len(kept)
            by_rank = [(half * half).sum() for half in np.split(kept, 2)]
            assert pair.collectives.gather(q).tolist() == by_rank


@pytest.mark.c_code
def test_d12_each_update_accumulates_by_its_own_operation(pair, x):
    """1.0 numbered the updates of a sliced function wrongly when their number and that of the
    outputs differ.
    """
    ops = ["avg", "sum", "max", "min", "prod", "last"]
    meanings = [np.mean, np.sum, np.max, np.min, np.prod]
    value = rows(10, 2)
    for n_outputs in (0, 1, 3, 9):
        shareds = [theano.shared(np.zeros(2), op) for op in ops]
        news = [x.mean(0), x.sum(0), x.max(0), x.min(0), x.prod(0), shareds[5] + 1]
        f = pair.function(
            [x],
            [(x.sum() * (i + 1), "sum") for i in range(n_outputs)],
            updates=list(zip(shareds, news, ops)),
            **QUICK,
        )
        wanted = list(range(n_outputs))[::-2]
        for options in ({}, {"output_subset": wanted}):
            numbers = options.get("output_subset", range(n_outputs))
            got = f(value, num_slices=2, **options)
            assert got == [value.sum() * (i + 1) for i in numbers]
        for rank, share in enumerate(np.array_split(value, 2)):
            held = pair.collectives.get_value(rank, shareds)
            for result, meaning in zip(held, meanings):
                np.testing.assert_allclose(result, meaning(share, axis=0), rtol=1e-14)
            np.testing.assert_array_equal(held[5], [2, 2])


def test_d13_nothing_is_written_into_the_installed_packages(x):
    """1.0 wrote its pickles there, left out a package, and could not allocate 2-d arrays."""
    folders = [Path(package.__file__).parent for package in (synk_theano, synk_comm, synk_shm)]

    def files():
        found = [path for folder in folders for path in folder.rglob("*")]
        return {path for path in found if "__pycache__" not in path.parts}

    before = files()
    with Runtime(2) as runtime:
        f = runtime.function([x], (x.sum(), "sum"), **QUICK)
        data = runtime.data(shape=(3, 2), dtype="float64")
        assert f(data) == 0
        assert files() <= before
    assert files() <= before


def counted(calls, name, method):
    """`method`, which counts its calls."""

    def spy(*args, **kwargs):
        calls[name] += 1
        return method(*args, **kwargs)

    return spy


def test_d14_results_are_collected_in_the_master_only(trio, x, monkeypatch):
    """1.0 gave every worker every result, with an all_reduce where a reduce is enough."""
    calls = Counter()
    kinds = [synk_comm.Communicator]
    for kind in kinds:
        kinds += kind.__subclasses__()
        for name in {"all_reduce", "all_gather"} & set(vars(kind)):
            monkeypatch.setattr(kind, name, counted(calls, name, vars(kind)[name]))
    f = trio.function([x], [x.mean(axis=0), (x.sum(), "sum"), (x, "gather")], **QUICK)
    value = rows(9, 2)
    for options in ({}, {"num_slices": 2}, {"batch": [8, 0, 1]}):
        chosen = value[options.get("batch", slice(None))]
        np.testing.assert_array_equal(f(value, **options)[2], chosen)
    s = theano.shared(np.zeros(2), "s")
    for rank in range(3):
        trio.collectives.set_value(rank, s, np.full(2, rank + 1.0))
    trio.collectives.reduce(s, op="sum")
    assert not calls
    expected = [[6.0, 6], [2, 2], [3, 3]]
    assert trio.collectives.gather(s).tolist() == expected
    trio.collectives.all_reduce(s, op="max")
    assert calls["all_reduce"], "the spy would see one"


# What a call has to survive


def failing(kind, text):
    """A vector, and a graph that raises ``kind(text)`` on every rank with a value above 0."""

    @as_op([T.dvector], [T.dvector])
    def fail_on_ones(values):
        if values.size and values.max() > 0:
            raise kind(text)
        return values * 2

    v = T.dvector("v")
    return v, fail_on_ones(v)


@pytest.mark.parametrize(
    "kind",
    [MemoryError, *(pytest.param(k, marks=pytest.mark.nightly) for k in (RuntimeError, KeyError))],
)
def test_all_ranks_agree_that_a_call_failed_when_one_rank_did(trio, kind):
    """Out of memory on one rank only, whichever it is: an error within a second, no hang, and
    the next call is in step.
    """
    v, result = failing(kind, "no room left")
    s = theano.shared(np.zeros(()), "s")
    f = trio.function([v], [(result, "gather"), (result.sum(), "sum")], **QUICK)
    count = trio.function([], updates=[(s, s + 1)], **QUICK)
    f(np.full(6, -1.0))
    for rank in range(3):
        for num_slices in (1, 2):
            bad = np.full(6, -1.0)
            bad[2 * rank + 1] = 1
            begin = time.monotonic()
            with pytest.raises((kind, WorkerFailed)) as caught:
                f(bad, num_slices=num_slices)
            assert time.monotonic() - begin < 5
            if rank:
                assert caught.value.rank == rank
                assert isinstance(caught.value.__cause__, kind)
            else:
                assert isinstance(caught.value, kind)
            gathered, total = f(np.full(6, -1.0))
            assert (gathered.tolist(), total) == ([-2.0] * 6, -12.0)
            count()
    assert trio.collectives.gather(s).tolist() == [6.0] * 3


def test_a_runtime_closes_after_a_failure():
    v, result = failing(ValueError, "first")
    with nothing_left():
        with Runtime(2) as runtime:
            f = runtime.function([v], (result, "gather"), **QUICK)
            with pytest.raises(WorkerFailed, match="first"):
                f(np.array([0.0, 0, 1]))
            begin = time.monotonic()
        assert time.monotonic() - begin < 5
        del f


@pytest.mark.parametrize("count", [13, 4, 2, 1, 0])
def test_batches_that_do_not_divide_by_the_ranks(trio, x, count):
    """13 rows over 3 ranks, 2 over 3, none: each operation gives what serial Theano gives; no
    row is lost, doubled or moved.
    """
    outputs = {
        "avg": x.mean(axis=0),
        "sum": x.sum(axis=0),
        "prod": x.prod(axis=0),
        "gather": x * 2,
    }
    if count:
        outputs.update(max=x.max(axis=0), min=x.min(axis=0))
    options = {"mode": "FAST_COMPILE"}
    serial = theano.function([x], list(outputs.values()), **options)
    f = trio.function([x], [(output, op) for op, output in outputs.items()], **options)
    value = rows(count, 2)
    with np.errstate(invalid="ignore"):
        expected = serial(value)
        for num_slices in (1, 2, 5):
            for result, wanted in zip(f(value, num_slices=num_slices), expected):
                np.testing.assert_allclose(result, wanted, rtol=1e-13)
                assert result.dtype == wanted.dtype
    np.testing.assert_array_equal(f(value)[3], value * 2)
    assert sum(f.rows) == count


@pytest.mark.parametrize("num_slices", [2, 3, 4, 6])
def test_slices_that_do_not_divide_the_share_with_updates(trio, x, num_slices):
    """Momentum on the exact mean gradient: as one serial step on the whole batch."""

    def build():
        w, v = theano.shared(np.ones(2), "w"), theano.shared(np.full(2, 0.5), "v")
        cost = T.tanh(x.dot(w)).mean()
        step = 0.9 * v - 0.1 * T.grad(cost, w)
        return [w, v], cost, [(v, step), (w, w + step)]

    value = rows(19, 2)
    serial_variables, cost, updates = build()
    expected = theano.function([x], cost, updates=updates, **QUICK)(value)
    variables, cost, updates = build()
    f = trio.function([x], cost, updates=updates, **QUICK)
    np.testing.assert_allclose(f(value, num_slices=num_slices), expected, rtol=1e-13)
    trio.collectives.all_reduce(variables, weights=f.rows)
    for rank in range(3):
        held = trio.collectives.get_value(rank, variables)
        for result, variable in zip(held, serial_variables):
            np.testing.assert_allclose(result, variable.get_value(), rtol=1e-13)


def test_values_of_different_shapes_are_named_by_rank(trio):
    """Or, where that has a meaning, gathered as they are."""
    s = theano.shared(np.zeros((1, 2)), "ragged")
    for rank in range(3):
        trio.collectives.set_value(rank, s, np.full((rank + 1, 2), float(rank)))
    before = trio.collectives.gather(s, nd_up=0)
    np.testing.assert_array_equal(before[:, 0], [0, 1, 1, 2, 2, 2])
    for act in (
        lambda: trio.collectives.all_reduce(s),
        lambda: trio.collectives.reduce(s, op="sum"),
        lambda: trio.collectives.gather(s, nd_up=1),
    ):
        with pytest.raises(InputValueError) as caught:
            act()
        for rank in range(3):
            assert f"({rank + 1}, 2)" in str(caught.value)
    np.testing.assert_array_equal(trio.collectives.gather(s, nd_up=0), before)
    trio.collectives.all_gather(s)
    for rank in range(3):
        np.testing.assert_array_equal(trio.collectives.get_value(rank, s), before)


def test_a_second_master_at_the_same_time_does_not_interfere(trio, x, zygote):
    """Another program on this machine, with its own ranks, arrays and variables."""
    code = """
import sys
import numpy as np, theano, theano.tensor as T
from synk_theano import Runtime
x = T.dmatrix("x")
with Runtime(2) as runtime:
    s = theano.shared(np.zeros(2), "s")
    f = runtime.function([x], (x * -1, "gather"), updates=[(s, s + 1)], mode="FAST_COMPILE")
    data = runtime.data(np.ones((6, 2)))
    f(data)
    print("ready", flush=True)
    sys.stdin.readline()
    for i in range(100):
        data[:] = i
        assert (f(data, batch=[0, 1, 5]) == -i).all()
    print(runtime.collectives.gather(s).tolist())
"""
    with zygote.start(code) as second:
        f = trio.function([x], (x + 1, "gather"), **QUICK)
        data = trio.data(np.zeros((6, 2)))
        f(data)
        assert second.line() == "ready"
        second.send("go")
        for i in range(100):
            data[:] = i
            assert (f(data, batch=[0, 1, 5]) == i + 1).all()
        out = second.finish().out
    assert out.strip() == "[[101.0, 101.0], [101.0, 101.0]]"


def test_memory_that_is_not_there_is_an_error_before_anything_is_written(pair):
    """More than /dev/shm has in all: the error says what was asked for, what is free, the cure."""
    v = T.dvector("v")
    f = pair.function([v], (v.sum(), "sum"), **QUICK)
    stats = os.statvfs("/dev/shm")
    count = stats.f_blocks * stats.f_frsize // 8 + 10**9
    data = pair.data(np.arange(4.0))
    for act in (
        lambda: f(np.broadcast_to(np.float64(1), (count,))),
        lambda: pair.data(shape=(count,), dtype="float64"),
        lambda: data.set_length(count),
    ):
        with pytest.raises(MemoryError, match=r"(?s)asked for.*free.*--(shm-size|memory)"):
            act()
    assert f(data) == 6


def test_the_masters_own_result_needs_rows_of_sliceables_there(pair):
    s = theano.shared(np.zeros(1), "s")
    f = pair.function([], [(s, None), (s.sum(), "sum")], sliceable_shareds=[s], **QUICK)
    pair.collectives.scatter(s, np.arange(4.0))
    own, total = f(batch_s=[[1], [0, 1]])
    assert (own.tolist(), total) == ([1.0], 6.0)
    with pytest.raises(SynkError, match="master"):
        f(batch_s=[[], [0]])
    assert f(batch_s=[[], [0]], output_subset=[1]) == [2.0]


def test_shares_follow_the_ranks_whatever_was_called_before(trio, x):
    """Few rows, many, none, an error, few again: nothing of the last call is left."""
    f = trio.function([x], [(x, "gather"), (x.sum(axis=0), "sum")], **QUICK)
    for count in (2, 40, 0, 3, 1, 17):
        value = rows(count, 2)
        with pytest.raises(BatchError):
            f(value, batch=count + 1)
        gathered, total = f(value)
        np.testing.assert_array_equal(gathered, value)
        np.testing.assert_allclose(total, value.sum(axis=0))
