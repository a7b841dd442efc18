"""Parallel calls against the same function computed serially by plain Theano, or by NumPy."""

from __future__ import annotations

import importlib
import itertools
import re
import warnings

import numpy as np
import pytest
from _features import STAND_INS
from _ops import FAST, picky
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synk_core import DecompositionWarning, Runtime, in_graph
from synk_core._plan.rows import split_rows
from synk_core._rank.outputs import Accumulator
from synk_core.exceptions import (
    BatchError,
    Closed,
    InputTypeError,
    InputValueError,
    SpecError,
    SynkError,
    WorkerFailed,
)
from synk_testing.engine import NAME, STREAMS, T, engine

x = T.matrix("x")


def rows(count, columns=3, seed=0):
    return np.random.RandomState(seed + count).uniform(-2, 2, (count, columns))


@pytest.fixture(scope="module")
def all_ops(runtime):
    x, y = T.matrix("x"), T.vector("y")
    z = x * y
    outputs = [z.mean(axis=0), (z.mean(), "avg"), (z.sum(axis=0), "sum"), (z.max(axis=0), "max")]
    outputs += [(z.min(), "c_min"), (z.prod(axis=0), "prod"), (z.sum(axis=1), "gather")]
    outputs += [(T.cast(T.gt(z, 0).sum(), "int64"), "sum"), (T.gt(z, 0), "gather")]
    outputs += [(T.gt(z, 1).any(axis=0), "max"), (T.gt(z, -1).all(), "min")]
    return runtime.function([x], outputs, bcast_inputs=[y], name="all_ops")


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_batch_in_slices_gives_numpys_results(all_ops, runtime, data):
    count = data.draw(st.integers(1, 30), "rows")
    values, y = rows(count), np.array([1.0, -2.0, 0.5])
    x = data.draw(st.sampled_from([values, runtime.data(values)]), "array or Data")
    bound = st.none() | st.integers(-count, count)
    batch = data.draw(
        st.none()
        | st.integers(1, count)
        | st.builds(slice, bound, bound, st.none() | st.integers(-4, 4).filter(bool))
        | st.lists(st.integers(-count, count - 1), min_size=1, max_size=60)
        | st.lists(st.booleans(), min_size=count, max_size=count).map(np.array)
    )
    chosen = values[:batch] if batch is None or isinstance(batch, int) else values[batch]
    if not len(chosen):
        return
    results = all_ops(x, y, batch=batch, num_slices=data.draw(st.integers(1, 5)))
    z = chosen * y
    expected = [z.mean(axis=0), z.mean(), z.sum(axis=0), z.max(axis=0), z.min(), z.prod(axis=0)]
    expected += [z.sum(axis=1), (z > 0).sum(), z > 0, (z > 1).any(axis=0), (z > -1).all()]
    assert len(results) == len(expected)
    for result, value in zip(results, expected):
        assert np.shape(result) == np.shape(value)
        assert np.asarray(result).dtype == value.dtype
        np.testing.assert_allclose(result, value, rtol=1e-12, atol=1e-14)
    assert list(all_ops.rows) == [b - a for a, b in split_rows(len(chosen), runtime.size)]


def test_no_rows_are_computed_as_in_serial(runtime):
    outputs = [(x.sum(axis=0), "sum"), (x.prod(axis=0), "prod"), (x * 2, "gather"), x.mean()]
    f = runtime.function([x], outputs)
    for num_slices in (1, 2, 5):
        total, product, doubled, mean = f(np.empty((0, 3)), num_slices=num_slices)
        np.testing.assert_array_equal(total, np.zeros(3))
        np.testing.assert_array_equal(product, np.ones(3))
        assert doubled.shape == (0, 3)
        assert np.isnan(mean)
    assert f.rows == (0,) * runtime.size


def test_outputs_come_back_as_from_theano(pair):
    value = rows(5)
    assert pair.function([x], x.mean())(value).shape == ()
    assert isinstance(pair.function([x], [x.mean()])(value), list)
    s = engine.shared(np.zeros(3))
    assert pair.function([x], updates=[(s, x.sum(axis=0))])(value) is None
    f = pair.function([x], [x.mean(), (x.sum(), "sum"), (x.max(), "max")], name="three")
    every = np.array([value.mean(), value.sum(), value.max()])
    for num_slices in (1, 2):
        for subset in (None, [2, 0], []):
            results = f(value, num_slices=num_slices, output_subset=subset)
            np.testing.assert_allclose(results, every if subset is None else every[subset])
            np.testing.assert_allclose(f(value, num_slices=num_slices), every)
    assert (f.name, f.output_modes, f.update_modes) == ("three", ("avg", "sum", "max"), ())
    assert repr(f) == "<synkhronos function three(x) on 2 ranks>"


def test_inputs_by_name_and_of_other_kinds(pair):
    x, y, z = T.matrix("x"), T.scalar("y"), T.vector("z")
    f = pair.function([x, z], ((x * y).sum(axis=0) - 2 * z.sum(), "sum"), bcast_inputs=[y])
    value, other = rows(6), np.arange(6.0)
    expected = value.sum(axis=0) * 2.0 - 2 * other.sum()
    for arguments, named in [
        ((value, other, 2.0), {}),
        ((value, other), {"y": 2}),
        ((value,), {"y": 2.0, "z": other}),
        ((), {"y": np.float32(2), "z": pair.data(other), "x": value}),
        (({"x": value, y: 2.0, "z": other},), {}),
        (({x: value, z: other},), {"y": 2.0}),
        ((value.tolist(), other, pair.data(2.0)), {}),
    ]:
        np.testing.assert_allclose(f(*arguments, **named), expected)
        np.testing.assert_allclose(f.as_theano(*arguments, **named), expected)


def test_a_function_without_inputs_averages_ranks_equally(runtime):
    s = engine.shared(np.zeros(()), "s")
    f = runtime.function([], [s * 1.0, (s * 1.0, "sum")], updates=[(s, s + 1)])
    runtime.collectives.scatter(v := engine.shared(np.zeros(1)), np.arange(float(runtime.size)))
    g = runtime.function([], [v[0], (v, "gather")])
    assert f()[1] == 0
    assert f() == [1.0, runtime.size]
    mean, gathered = g()
    assert mean == (runtime.size - 1) / 2
    np.testing.assert_array_equal(gathered, np.arange(runtime.size))


@pytest.mark.c_code
def test_each_update_accumulates_by_its_own_operation(pair):
    x = T.dmatrix("x")
    ops = ["avg", "sum", "max", "min", "prod", "last"]
    meanings = [np.mean, np.sum, np.max, np.min, np.prod]
    value = np.round(rows(10, 2)) + 0.5  # sums of these are exact
    for n_outputs in (0, 9):
        shareds = [engine.shared(np.zeros(2), op) for op in ops]
        news = [x.mean(0), x.sum(0), x.max(0), x.min(0), x.prod(0), shareds[5] + 1]
        f = pair.function(
            [x],
            [(x.sum() * (i + 1), "sum") for i in range(n_outputs)],
            updates=list(zip(shareds, news, ops)),
            **FAST,
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


@pytest.mark.parametrize("dtype", ["float16", pytest.param("float64", marks=pytest.mark.nightly)])
def test_rounding_does_not_grow_with_the_number_of_slices(pair, dtype):
    """Sums of float16 are float32."""
    x = T.TensorType(dtype, (False, False))("x")
    ops = ("avg", "sum")
    shareds = [engine.shared(np.zeros(4, dtype), op) for op in ops]
    wide = "float32" if dtype == "float16" else dtype
    parts = [T.cast(x.mean(axis=0, dtype=wide), dtype), x.sum(axis=0, dtype=dtype)]
    f = pair.function([x], list(zip(parts, ops)), updates=list(zip(shareds, parts, ops)), **FAST)
    value = (1 + np.random.RandomState(4).rand(4000, 4)).astype(dtype)
    got = [*f(value, num_slices=2000), *pair.collectives.get_value(0, shareds)]
    for result, part, meaning in zip(
        got, (value, value, *[value[:2000]] * 2), [np.mean, np.sum] * 2
    ):
        exact = meaning(part.astype(np.longdouble), axis=0)
        assert result.dtype == dtype
        assert np.all(abs(result - exact) <= 4 * np.spacing(exact.astype(dtype)))


def test_infinite_complex_numbers_are_added_as_without_slices(pair):
    x = T.zmatrix("x")
    f = pair.function([x], [(x.sum(), "sum"), (x[:, 0].sum(), "sum")], **FAST)
    value = np.ones((8, 2), complex)
    value[0, 0] = np.inf
    np.testing.assert_equal(f(value, num_slices=2), [value.sum(), value[:, 0].sum()])


@pytest.mark.parametrize("reduces", [False, True])
def test_values_that_no_row_goes_into_are_not_averaged(trio, reduces):
    def build():
        a, b, c = (engine.shared(np.full(3, value)) for value in (0.1, 0.7, 1 / 3))
        return [a, b, c], [a * np.float64(0.93), a * b + np.float64(0.1), c * np.float64(0.7)]

    shareds, news = build()
    serial_shareds, serial_news = build()
    # JAX rounds otherwise, and does not compute what reduces in the graph.
    mode = {"mode": "CVM" if reduces else "JAX"} if STAND_INS else {}
    serial_updates = list(zip(serial_shareds, serial_news))
    serial = engine.function([], serial_shareds, updates=serial_updates, **mode)
    a = shareds[0]
    mean = in_graph.all_reduce(x.mean(), "avg") if reduces else x.mean()
    outputs = [*shareds, mean, (x.sum() * a, "sum")]
    f = trio.function([x], outputs, updates=list(zip(shareds, news, ("avg", "avg", "last"))))
    trio.distribute()
    for number, num_slices in itertools.product((7, 5, 2, 1), (1, 2, 3)):
        got, expected = f(np.ones((number, 2)), num_slices=num_slices), serial()
        np.testing.assert_array_equal(got[:3], expected)
        expected = [shared.get_value() for shared in serial_shareds]
        for rank in range(3):
            held = trio.collectives.get_value(rank, shareds)
            np.testing.assert_array_equal(held, expected, f"{number} rows, {num_slices} slices")
    for rank, value in enumerate((0.5, 2.0, 8.0)):
        trio.collectives.set_value(rank, a, np.full(3, value))
    np.testing.assert_array_equal(f(np.ones((4, 2)), num_slices=2)[0], np.full(3, 11 / 4))


@pytest.mark.feature("proof")
def test_updates_without_rows(trio):
    x, rate = T.vector("x"), T.scalar("rate")
    count, last, total = (engine.shared(0.0, name) for name in ("count", "last", "total"))
    noise = STREAMS["numpy"](5).uniform(size=(1,))[0]
    drawn = engine.shared(0.0, "drawn")
    f = trio.function(
        [x],
        [(x.sum(), "sum")],
        bcast_inputs=[rate],
        updates=[
            (count, count + 1),
            (last, last * 0.5 + rate),
            (total, x.sum(), "sum"),
            (drawn, noise),
        ],
        **FAST,
    )
    gather = trio.collectives.gather
    expected = np.zeros(3)
    for calls, rows in enumerate([1, 0, 3, 2], 1):
        values = np.arange(1.0, rows + 1)
        for num_slices in (1, 2):
            trio.collectives.broadcast([last, drawn], [np.asarray(1.0), np.asarray(0.0)])
            assert f(values, 7.0, num_slices=num_slices) == [values.sum()]
            expected[:rows] = values
            assert gather(count).tolist() == [2 * calls - 2 + num_slices] * 3
            assert gather(last).tolist() == [7.5] * 3
            assert gather(total).tolist() == expected.tolist()
            assert np.all(gather(drawn) != 0)
        report = f.verify(values, 7.0)
        assert report.ok, str(report)


def test_inputs_and_sliceables_of_different_lengths_are_refused_in_every_form_of_call(runtime):
    """The weights of an average are the rows of the inputs: others would be weighed wrongly."""
    x, q = T.vector("x"), engine.shared(0.0, "q")
    s = engine.shared(np.zeros(1), "s")
    f = runtime.function(
        [x],
        [(x.mean(), "avg"), (s.mean(), "avg")],
        updates=[(q, q + 1, "max")],
        sliceable_shareds=[s],
    )
    runtime.collectives.scatter(s, np.arange(11.0))
    np.testing.assert_allclose(f(np.arange(11.0)), [5.0, 5.0])
    last = runtime.size - 1
    runtime.collectives.set_value(last, s, np.arange(100.0))
    for how in ({}, {"num_slices": 2}, {"batch_s": slice(None)}, {"batch": np.arange(11)}):
        with pytest.raises((InputValueError, WorkerFailed), match="rows of the scattered inputs"):
            f(np.arange(11.0), **how)
    assert runtime.collectives.gather(q).tolist() == [1.0] * runtime.size


def test_minibatch_data_has_a_row_for_each_entry_or_begins_at_the_lowest_selected_row(pair):
    """As in 1.0; there, a list with entries far apart was refused."""
    x, y = T.vector("x"), T.vector("y")
    f = pair.function([x, y], [(x * y, "gather")])
    whole = pair.data(np.arange(20.0))
    mini = pair.data(np.array([1.0, 10.0, 100.0]), minibatch=True)
    mask = np.zeros(20, bool)
    mask[[2, 3, 19]] = True
    for batch in ([12, 10, 11], [10, 10, 10], np.array([5, 7, 9]), [-1, 3, -2], mask):
        for num_slices in (1, 2):
            (got,) = f(whole, mini, batch=batch, num_slices=num_slices)
            np.testing.assert_array_equal(got, whole[batch] * [1.0, 10.0, 100.0])
    (got,) = f(whole, mini, batch=slice(5, 8))
    np.testing.assert_array_equal(got, [5.0, 60.0, 700.0])
    (got,) = f(whole, mini, batch=2)
    np.testing.assert_array_equal(got, [0.0, 10.0])
    (got,) = f(whole.data, mini, batch=[4, 2])  # arrays are copied selected, Data are not
    np.testing.assert_array_equal(got, [4.0, 20.0])


def test_build_inputs_and_as_theano(pair):
    x, y = T.fmatrix("x"), T.ivector("y")
    f = pair.function([x, y], (x.sum(axis=1) * y).mean())
    value, labels = rows(6).astype("float32"), np.arange(6, dtype="int32")
    a, b = f.build_inputs(value, labels, oversize=1.5, minibatch=[True, False])
    assert (a.dtype, a.minibatch, a.alloc_size) == (np.float32, True, 27)
    assert (b.dtype, b.minibatch, b.name) == (np.int32, False, "y")
    np.testing.assert_allclose(f.as_theano(a, labels), f(a, b), rtol=1e-6)
    with pytest.raises(InputTypeError, match="True or False"):
        f.build_inputs(value, labels, minibatch=[np.ones((2, 2), bool), False])
    with pytest.raises(InputTypeError, match="got None, expected a value"):
        f.build_inputs(value, None)
    single = pair.function([x], x.mean()).build_inputs(value.astype(float), force_cast=True)
    np.testing.assert_array_equal(single.data, value)
    double = T.dmatrix("double")
    squares = pair.function([double], (double**2).mean(), **FAST)(single, batch=[0, 2])
    np.testing.assert_allclose(squares, (value[[0, 2]].astype(float) ** 2).mean(), rtol=1e-15)


@pytest.mark.c_code
def test_rows_in_the_byte_order_of_other_machines_are_converted(pair):
    x, factor = T.vector("x"), T.scalar("factor")
    f = pair.function([x], ((x * factor).sum(), "sum"), bcast_inputs=[factor])
    for dtype in (">f8", ">f4", ">i4"):
        values, twice = np.arange(1.0, 6.0).astype(dtype), np.array(2.0).astype(dtype)
        for argument in (values, pair.data(values)):
            assert f(argument, twice) == 30.0
            assert f(argument, pair.data(twice), batch=[0, 4, 4], num_slices=2) == 22.0


def test_results_are_collected_in_the_master_only(trio, monkeypatch):
    """No worker gets results: a reduce is enough where there could be an all_reduce."""
    trio.distribute()  # which has the ranks join
    x, comm, calls = T.dmatrix("x"), trio._rank.comm, []

    def spy(name, method):
        monkeypatch.setattr(comm, name, lambda *a, **k: (calls.append(name), method(*a, **k))[1])

    spy("all_reduce", comm.all_reduce)
    spy("all_gather", comm.all_gather)
    f = trio.function([x], [x.mean(axis=0), (x.sum(), "sum"), (x, "gather")], **FAST)
    for options in ({}, {"num_slices": 2}, {"batch": [8, 0, 1]}):
        f(rows(9, 2), **options)
    s = engine.shared(np.zeros(2), "s")
    for rank in range(3):
        trio.collectives.set_value(rank, s, np.full(2, rank + 1.0))
    trio.collectives.reduce(s, op="sum")
    assert not calls
    assert trio.collectives.gather(s).tolist() == [[6.0, 6], [2, 2], [3, 3]]
    trio.collectives.all_reduce(s, op="max")
    assert calls == ["all_reduce"], "the spy would see one"


def test_the_masters_own_result_needs_rows_there():
    x = T.vector("x")
    with Runtime(2, master_rank=1) as last:
        f = last.function([x], (x, None), **FAST)
        with pytest.raises(InputValueError, match="gets none of 1 rows"):
            f(np.ones(1))
        assert f(np.arange(3.0)).tolist() == [2.0]


def test_dropout_masks_differ_by_rank_and_follow_from_the_seed(pair):
    x = T.vector("x")
    for streams in STREAMS.values():
        draws = []
        for _ in range(2):
            f = pair.function([x], (streams(7).uniform(size=x.shape) + 0 * x, "gather"), **FAST)
            draws.append(np.array([f(np.zeros(200), num_slices=n) for n in (1, 1, 3)]))
        np.testing.assert_array_equal(draws[0], draws[1])
        first, second = draws[0][:, :100], draws[0][:, 100:]
        assert not np.intersect1d(first, second).size
        assert len(np.unique(draws[0])) == 600
        serial = engine.function([x], streams(7).uniform(size=x.shape), **FAST)
        for own in first[:2]:
            np.testing.assert_array_equal(serial(np.zeros(100)), own)


def test_default_updates_count_once_however_a_call_is_sliced(pair):
    x = T.vector("x")
    counter = engine.shared(np.zeros(()), "counter")
    counter.default_update = counter + 1
    other = engine.shared(np.ones(()), "other")
    other.default_update = other + 100
    total = (x.sum() + 0 * (counter + other), "sum")
    f = pair.function([x], total, updates=[(other, other * 2)])
    value = np.arange(8.0)
    for num_slices in (1, 4, 2):
        assert f(value, num_slices=num_slices) == value.sum()
    assert counter.get_value() == 3
    assert other.get_value() == 8


def test_explicit_updates_of_random_states_advance_with_every_slice(pair):
    x = T.vector("x")
    stream = STREAMS["numpy"](3)
    draw = stream.uniform(size=x.shape)
    f = pair.function([x], (draw + 0 * x, "gather"), updates=stream.updates())
    first, second = f(np.zeros(40), num_slices=4), f(np.zeros(40), num_slices=2)
    assert len(np.unique(np.concatenate([first, second]))) == 80


def test_row_share_is_one_again_after_a_failure_and_in_another_runtime(pair):
    x = T.dvector("x")
    with Runtime(1) as runtime:
        share = runtime.row_share()
        total = share * picky(x).sum()
        f = runtime.function([x], (total, "sum"))
        with pytest.raises(ValueError, match="not this"):
            f(np.array([0.0, 0, 0, 200]), num_slices=4)
        assert share.get_value() == 1
        assert f.as_theano(np.array([-1.0, -1])) == -2
    mean = pair.function([x], (share * x.mean(), "sum"))
    np.testing.assert_allclose(mean(np.arange(5.0)), 2.0)


@pytest.mark.feature("proof")
def test_outputs_that_do_not_fit_together_are_explained(runtime):
    x, value = T.vector("x"), np.arange(2.0 * runtime.size + 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", DecompositionWarning)
        f = runtime.function([x], x * 2, name="rowwise")
        g = runtime.function([x], (T.outer(x, x), "gather"))
    if runtime.size > 1:
        (of_f, _of_g) = (str(warning.message) for warning in caught)
        assert re.search("(?s)'rowwise'.*declare it 'gather'", of_f)
    failures = (InputValueError, WorkerFailed)
    for num_slices in (1, 2) if runtime.size > 1 else (2,):
        for function, match in ((f, "'rowwise'.*needs op 'gather'"), (g, "differ in more than")):
            with pytest.raises(failures, match=f"(?s){match}"):
                function(value, num_slices=num_slices)
    with pytest.raises(failures, match="needs op 'gather'"):
        f.verify(value)
    assert runtime.function([x], x.mean())(value) == runtime.size


def test_slices_may_lie_in_the_same_memory():
    """Some linkers keep their memory."""
    wanted = {"max": [4, 5], "min": [3, 1], "gather": [3, 5, 4, 1], "sum": [7, 6], "avg": [3.5, 3]}
    for op in (*wanted, "last", "rowless"):
        held, accumulator = np.empty(2), Accumulator(op, "f")
        for value in np.array([[3.0, 5.0], [4.0, 1.0]]):
            held[:] = value
            accumulator.add(held, 1)
        result = accumulator.result()
        held[:] = -1
        assert result.tolist() == wanted.get(op, [4, 1]), op


def test_sparse_inputs_are_refused_with_a_sentence(pair):
    sparse = importlib.import_module(f"{NAME}.sparse")
    x, m = T.vector("x"), sparse.csr_matrix("m")
    total = sparse.sp_sum(m)
    for inputs, whole in (([m], []), ([x], [m])):
        with pytest.raises(SpecError, match="expected a tensor, whose rows"):
            pair.function(inputs, (total, "sum"), bcast_inputs=whole, on_unused_input="ignore")


def test_variables_that_are_no_inputs_are_named(pair):
    x, y, z, v = T.vectors("x", "y", "z", "v")
    w = engine.shared(np.zeros(3), "w")
    before = len(pair._rank.functions)
    with pytest.raises(SpecError, match=r"function 'f' needs values of y, .*bcast_inputs="):
        pair.function([x], (x * y).sum(), name="f")
    with pytest.raises(SpecError, match=r"needs values of (y, z|z, y), expected"):
        pair.function([x], (v * w).sum(), updates=[(w, w + y)], givens=[(v, x * z)])
    assert len(pair._rank.functions) == before
    given = pair.function([x], (x + y).sum(), givens=[(y, x * 2)])
    assert given(np.ones(4)) == 6.0


def test_wrong_batch_s_is_refused_on_all_ranks_before_any_computes(pair):
    s = engine.shared(np.zeros(1), name="s")
    n = engine.shared(np.zeros(()), name="n")
    g = pair.function([], (s.sum(), "sum"), updates=[(n, n + 1)], sliceable_shareds=[s])
    pair.collectives.scatter(s, np.arange(5.0))
    with pytest.raises(SynkError, match="batch_s on rank 1") as caught:
        g(batch_s=slice(0, 3))
    assert isinstance(caught.value.__cause__, BatchError)
    with pytest.raises(BatchError, match="batch_s on rank 0"):
        g(batch_s=[[7], [0]])
    with pytest.raises(InputValueError, match="one for each of 2 ranks"):
        g(batch_s=[[0], [0], [0]])
    assert pair.collectives.gather(n).tolist() == [0.0, 0.0]


def test_a_closed_runtime_says_so():
    x = T.vector("x")
    runtime = Runtime(2)
    g = runtime.function([x], x.sum())
    data = runtime.data(np.ones(4))
    runtime.close()
    runtime.close()
    assert runtime.closed
    for act in (
        *(lambda how=how: g(data, **how) for how in ({}, {"num_slices": 2}, {"batch": [0]})),
        lambda: runtime.function([x], x.sum()),
        lambda: runtime.data(1.0),
        runtime.distribute,
        lambda: runtime.collectives.broadcast(engine.shared(1.0)),
    ):
        with pytest.raises(Closed, match=r"closed \(by close\(\)\); call fork\(\)"):
            act()
    np.testing.assert_array_equal(data.data, np.ones(4))
