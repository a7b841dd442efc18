"""The first NaN or infinity: its rank, slice and row; and nothing else has changed."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings

import hypothesis
import numpy as np
import pytest
from _features import UNPROVED
from _ops import FAST
from hypothesis import strategies as st

from synk_core import Closed, InputTypeError, NestedCall, NotFinite, Runtime, WorkerFailed, in_graph
from synk_core._features.finite.search import last_of_bad
from synk_core._plan.rows import split_rows
from synk_testing.engine import STREAMS, T, as_op, engine

x = T.dvector("x")


@pytest.fixture
def watched(runtime):
    with runtime.watch_finite():
        yield runtime
    assert runtime._rank.check == [None]


@pytest.fixture
def watched_pair(pair):
    with pair.watch_finite():
        yield pair


def failure(call, *args, **kwargs):
    """The `NotFinite` that a call raises: directly in the master, as a cause elsewhere."""
    with pytest.raises((NotFinite, WorkerFailed)) as caught:
        call(*args, **kwargs)
    error = caught.value
    if isinstance(error, WorkerFailed):
        assert error.rank
        assert ", rows " not in error.doing, "the error has the row itself"
        assert "NotFinite: function " in str(error)
        error = error.__cause__
    else:
        assert error.rank == 0
    assert isinstance(error, NotFinite)
    assert isinstance(error, FloatingPointError)
    return error


def owner_of(row, count, size):
    return next(r for r, (start, stop) in enumerate(split_rows(count, size)) if start <= row < stop)


def logs(runtime):
    """A function that cannot stand negative rows, and the variables that it updates."""
    x = T.dmatrix("x")
    w = engine.shared(np.ones(3), name="w")
    calls = engine.shared(np.zeros((), "int64"), name="calls")
    cost = T.log(x.dot(w)).mean()
    cost.name = "cost"
    updates = [(w, w + cost), (calls, calls + 1)]
    f = runtime.function([x], cost, updates=updates, name="logs", **UNPROVED, **FAST)
    return f, w, calls


def good(count):
    return np.random.default_rng(count).uniform(0.5, 2, (count, 3))


@pytest.mark.parametrize(("row", "num_slices"), [(0, 3), (17, 1)])
def test_a_row_that_the_function_cannot_stand_is_found(watched, row, num_slices):
    f, w, calls = logs(watched)
    rows, bad = good(29), good(29)
    assert np.isfinite(f(rows, num_slices=num_slices))
    before = watched.collectives.gather([w, calls])
    owner = owner_of(row, 29, watched.size)
    start, stop = split_rows(29, watched.size)[owner]
    bad[[row, stop - 1]] = -1
    error = failure(f, bad, num_slices=num_slices)
    assert (error.rank, error.share) == (owner, (start, stop))
    assert error.row == row
    assert f"rows {start} to {stop - 1}" in str(error)
    assert (error.piece is None) == (", slice" not in str(error)) == (num_slices == 1)
    if error.piece:
        first, last = split_rows(stop - start, 3)[error.piece - 1]
        assert first <= row - start < last
        assert f", slice {error.piece}:" in str(error)
    assert error.what == "output 0 ('cost')"
    text = f"got nan in output 0 ('cost'), expected finite numbers. Caused by row {row} "
    assert text in str(error)
    for now, then in zip(watched.collectives.gather([w, calls]), before):
        np.testing.assert_array_equal(now, then)
    f(rows, num_slices=num_slices)


def test_the_row_is_counted_in_the_call(watched_pair):
    f, _, _ = logs(watched_pair)
    rows = good(100)
    rows[77] = -1
    data = watched_pair.data(rows)
    whole = watched_pair.data(rows[60:90], minibatch=True)
    index = [3, 9, 5, 7, 1, 2, 77, 50]
    for given, batch, row in (
        (rows, None, 77),
        (rows, slice(95, 70, -2), 9),
        (data, index, 6),
        (data, np.arange(100) % 7 == 0, 11),
        (whole, list(range(89, 59, -1)), 17),
        (rows, 80, 77),
    ):
        error = failure(f, given, batch=batch)
        assert error.row == row, (batch, str(error))
        assert error.share[0] <= row < error.share[1]


def test_an_input_that_is_not_finite_is_named_with_its_row(watched_pair):
    x, y, c = T.dmatrix("x"), T.fvector("second"), T.dvector("all")
    z = (x.sum(axis=1) * y).mean() + c.sum()
    f = watched_pair.function([x, y], z, bcast_inputs=[c], name="inputs")
    a, b, c0 = good(13), np.ones(13, "float32"), np.zeros(2)
    bad_a, bad_b = a.copy(), b.copy()
    bad_a[8, 2], bad_b[8] = np.nan, np.inf
    for given, num_slices, row, source in (
        ((a, bad_b, c0), 1, 8, "input 'second' has inf of it"),
        ((watched_pair.data(bad_a), b, c0), 2, 8, "input 'x' has nan at [2] of it"),
        ((a, b, np.array([0, -np.inf])), 1, None, "Broadcast input 'all' has inf at [1]"),
    ):
        error = failure(f, *given, num_slices=num_slices)
        assert (error.row, error.source) == (row, source)
        assert row is None or error.rank == owner_of(8, 13, 2)
    f(a, b, c0)


def test_a_shared_variable_that_was_not_finite_is_named(watched_pair):
    f, w, _ = logs(watched_pair)
    watched_pair.collectives.set_value(1, w, np.array([1.0, np.nan, 1.0]))
    error = failure(f, good(9))
    assert (error.rank, error.row) == (1, None)
    assert error.source == "Shared variable 'w' had nan at [1] before the call"
    np.testing.assert_array_equal(watched_pair.collectives.get_value(1, w), [1, np.nan, 1])


def test_the_new_value_of_a_variable(watched_pair):
    w = engine.shared(np.zeros(2), name="w")
    f = watched_pair.function([x], updates=[(w, w + T.sqrt(x).sum())], name="silent")
    f(np.ones(6))
    before = watched_pair.collectives.gather(w)
    for slices in (1, 2):
        error = failure(f, np.array([1.0, 1, 1, 1, 1, -1]), num_slices=slices)
        assert (error.what, error.rank, error.row) == ("the new value of 'w'", 1, 5)
        np.testing.assert_array_equal(watched_pair.collectives.gather(w), before)
    assert error.piece == 2


def test_rows_that_only_together_are_too_much(watched_pair):
    x = T.fvector("x")
    f = watched_pair.function([x], (x.sum(), "sum"), name="sum")
    big = np.zeros(20, "float32")
    assert f(big) == 0
    big[[12, 15, 19]] = np.float32(3e38)
    error = failure(f, big)
    assert (error.rank, error.row) == (1, 15)
    assert "on rank 1, rows 10 to 19: got inf in output 0" in str(error)
    assert "the rows before it give finite numbers, with it they do not" in error.source


def test_rows_of_sliceable_variables(watched_pair):
    s = engine.shared(np.zeros((0, 2)), name="s")
    f = watched_pair.function([], T.log(s).mean(), sliceable_shareds=[s], name="sliceable")
    rows = np.random.default_rng(0).uniform(1, 2, (30, 2))
    for bad, source in ((-3, "the rows before it"), (np.nan, "'s' had nan at [7, 1] before")):
        rows[22, 1] = bad
        watched_pair.collectives.scatter(s, rows)
        for settings, row in (
            ({}, None),
            ({"batch_s": slice(4, 12), "num_slices": 3}, 3),
            ({"batch_s": [14, 3, 7, 2], "num_slices": 2}, 2),
        ):
            error = failure(f, **settings)
            assert (error.rank, error.row) == (1, None if np.isnan(bad) else row), settings
            assert source in error.source or (
                row is None and "no rows can be searched" in error.source
            )
        np.testing.assert_array_equal(watched_pair.collectives.gather(s, nd_up=0), rows)
        assert np.isfinite(f(batch_s=slice(8, 15)))


def test_random_states_are_put_back(watched_pair):
    def drawing():
        noise = sum(streams(5).uniform(size=x.shape) for streams in STREAMS.values())
        return watched_pair.function([x], (T.log(x) + noise, "gather"), name="noisy", **FAST)

    ones, bad = np.ones(12), np.ones(12)
    bad[7] = -1
    f = drawing()
    assert failure(f, bad).row == 7
    noisy = f(ones)
    # A failed call has drawn nothing: the same numbers come as from a function without it.
    np.testing.assert_array_equal(drawing()(ones), noisy)


def test_a_nan_that_does_not_come_again(watched_pair):
    seen = []

    @as_op([T.dvector], [T.dvector])
    def once(values):
        seen.append(1)
        return values * (np.nan if len(seen) == 1 and values[-1] == 5 else 1)

    f = watched_pair.function([x], once(x).sum(), name="once", **FAST)
    error = failure(f, np.array([1.0, 2, 3, 5]))
    assert (error.rank, error.row) == (1, None)
    assert "the same rows computed again give finite numbers" in error.source


def test_functions_that_raise_on_fewer_rows(watched_pair):
    @as_op([T.dvector], [T.dvector])
    def whole(values):
        if len(values) != 4:
            raise ValueError("all four or nothing")
        return np.log(values)

    f = watched_pair.function([x], whole(x).sum(), name="whole", **FAST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        error = failure(f, np.array([1.0, 2, 3, -5, 1, 1, 1, 1]))
    assert error.row is None
    assert "for fewer rows the function raised ValueError" in error.source


def test_in_graph_reductions_name_the_rank_that_gave_it(watched_pair):
    x = T.dmatrix("x")
    logs = T.log(x)
    mean = in_graph.all_reduce(logs.mean(axis=0), "avg")
    spread = in_graph.all_reduce(T.sqr(logs - mean).mean(axis=0), "avg")
    f = watched_pair.function([x], [((logs - mean) / spread).mean(), (spread, "max")], name="norm")
    rows = good(24)
    first = f(rows)
    bad = rows.copy()
    bad[17, 1] = -1
    for slices in (1, 2):
        error = failure(f, bad, num_slices=slices)
        assert error.rank == owner_of(17, 24, watched_pair.size)
        assert error.row == 17
        assert error.what == "the input of in-graph all_reduce 0"
    for one, other in zip(f(rows), first):
        np.testing.assert_array_equal(one, other)


def test_only_wanted_outputs_and_floats_are_looked_at(watched_pair):
    outputs = [T.log(x).sum() / 4, x.mean(), (T.isnan(T.log(x)), "gather"), (T.ceil(x), "gather")]
    outputs[0] = (outputs[0], "sum")
    f = watched_pair.function([x], outputs, name="several", **FAST)
    values = np.array([1.0, 1, 1, -1])
    assert failure(f, values).what == "output 0"
    f(values, output_subset=[1, 2, 3])


def test_all_dtypes_of_floats(watched_pair):
    for dtype in ("float16", "float64", "complex64"):
        x = T.TensorType(dtype, (False,))("x")
        f = watched_pair.function([x], (x * 2, "gather"), name="double", **FAST)
        # Their sum overflows, they do not.
        large = np.full(64, np.finfo(dtype).max / 4, dtype)
        with np.errstate(all="raise"):
            np.testing.assert_array_equal(f(large), large * 2)
            np.testing.assert_array_equal(f(-large), -large * 2)
        for wrong in (np.nan, np.inf, -np.inf):
            large[40] = wrong
            assert failure(f, large).row == 40


def test_on_and_off(pair):
    f, _, _ = logs(pair)
    bad = good(8)
    bad[3] = -1
    f2, _, _ = logs(pair)
    assert np.isnan(f(bad))
    with pair.watch_finite() as watch:
        assert repr(watch) == "<FiniteWatch, on>"
        failure(f2, bad)
        with pair.watch_finite(False):
            f3, _, _ = logs(pair)
            assert np.isnan(f3(bad))
        with pair.watch_finite():
            pass
        failure(f2, bad)
        with pytest.raises(NestedCall), pair.orders.lock:
            pair.watch_finite(False)
    assert repr(watch) == "<FiniteWatch, stopped>"
    watch.stop()
    assert np.isnan(f2(bad))
    with pytest.raises(InputTypeError, match="expected True or False"):
        pair.watch_finite("yes")


def test_a_search_can_be_interrupted(watched_pair):
    @as_op([T.dvector], [T.dvector])
    def slow_log(values):
        with np.errstate(invalid="ignore"):
            logs = np.log(values)
        if np.isnan(logs).any():
            time.sleep(0.4)
        return logs

    w = engine.shared(np.zeros(()), name="w")
    f = watched_pair.function([x], updates=[(w, w + slow_log(x).sum())], name="slow", **FAST)
    values = np.ones(2000)
    f(values)
    values[1000] = -1
    # Another test's runtime may have taken Ctrl-C over: this one takes it from Python only.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            f(values)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, handler)
    np.testing.assert_array_equal(watched_pair.collectives.gather(w), [0, 0])
    assert failure(f, values[1000:1002]).row == 0
    f(np.ones(6))


@pytest.mark.feature("stats")
def test_without_atomic_calls_rows_are_not_looked_for():
    with Runtime(2, use_gpu=False, atomic=False) as runtime, runtime.watch_finite():
        f = runtime.function([x], T.log(x).mean(), name="plain")
        error = failure(f, np.array([1.0, 2, 3, -1]))
        assert (error.rank, error.row) == (1, None)
        assert "no rows can be searched" in error.source
        assert "Nothing has changed" not in str(error)
        error = failure(f, np.array([1.0, 2, np.nan, 1]))
        assert error.row == 2
        assert runtime.stats()["watch_finite()"].calls == 1
    with pytest.raises(Closed):
        runtime.watch_finite()


@hypothesis.given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_the_first_row_that_makes_it_bad_is_found(case):
    count, first = case
    looks = []

    def is_bad(stop):
        assert 0 < stop <= count
        looks.append(stop)
        return stop > first

    assert last_of_bad(is_bad, count) == (first if first < count else None)
    assert len(looks) <= count.bit_length() + 1
