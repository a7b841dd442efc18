"""`Runtime.function` takes, does and refuses what `theano.function` does, and refuses it early."""

from __future__ import annotations

import contextlib
import threading
import warnings

import numpy as np
import pytest
import scipy.sparse
import theano
import theano.sparse
import theano.tensor as T
from _busy import calling_in_threads
from _leaks import no_ranks_left
from _ops import FAST
from theano.compile.ops import as_op
from theano.sandbox import rng_mrg
from theano.sandbox.rng_mrg import MRG_RandomStreams
from theano.tensor import inplace, raw_random
from theano.tensor.shared_randomstreams import RandomStreams

from synk_core import Runtime
from synk_core._graph import random_streams
from synk_core.exceptions import InputTypeError, InputValueError, SynkError, WorkerFailed

NIGHTLY = pytest.mark.nightly
X = np.arange(12.0).reshape(6, 2)
x = T.dmatrix("x")
ROWS = np.random.RandomState(0).uniform(-1, 1, (7, 3))


@pytest.mark.parametrize(
    "mode",
    [
        theano.compile.get_default_mode().excluding("inplace"),
        pytest.param("DebugMode", marks=NIGHTLY),
        pytest.param(theano.Mode("vm_nogc", "fast_run"), id="vm_nogc", marks=NIGHTLY),
    ],
)
def test_modes_by_name_or_object(pair, mode):
    w = theano.shared(np.ones(2), "w")
    f = pair.function([x], (x * w).mean(), updates=[(w, w / 2)], mode=mode)
    for step in (1.0, 0.5):
        np.testing.assert_allclose(f(X), (X * step).mean(), rtol=1e-14)
    np.testing.assert_array_equal(pair.collectives.gather(w), np.full((2, 2), 0.25))
    with pytest.raises(Exception, match="NO_SUCH_MODE"):
        pair.function([x], x.mean(), mode="NO_SUCH_MODE")


def test_nan_guard_mode_guards_on_every_rank(pair):
    from theano.compile.nanguardmode import NanGuardMode

    mode = NanGuardMode(nan_is_error=True, inf_is_error=False, big_is_error=False)
    f = pair.function([x], ((x * 2).sum(), "sum"), mode=mode)
    for row, error in ((0, AssertionError), (5, WorkerFailed)):
        bad = X.copy()
        bad[row] = np.nan
        with pytest.raises(error, match="NaN"):
            f(bad)
        assert f(X) == 2 * X.sum()


def test_unused_inputs_are_an_error_a_warning_or_nothing(pair):
    unused = T.dvector("unused")
    for inputs in ({"inputs": [x, unused]}, {"inputs": [x], "bcast_inputs": [unused]}):
        build = dict(outputs=(x.sum(), "sum"), **inputs, **FAST)
        with pytest.raises(theano.compile.UnusedInputError, match="unused"):
            pair.function(**build)
        with pytest.warns(UserWarning, match="unused"):
            pair.function(**build, on_unused_input="warn")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            f = pair.function(**build, on_unused_input="ignore")
        assert f(X, np.ones(6)) == X.sum()


def outcome(function, error, value):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complex numbers that lose their imaginary part
        try:
            return function(value)
        except error:
            return TypeError


def test_values_convert_where_theano_converts_them(pair):
    arrays = [("float64", 1.5), ("float32", 1.5), ("float16", 0.1), ("int64", 300), ("int8", 1)]
    arrays += [("uint8", 2), ("bool", True), ("complex128", 1 + 2j)]
    values = [np.array([1, value], dtype) for dtype, value in arrays]
    values += [[1.5, 2.0], [1, 2], [1, 300], range(3), [True, False], [1 + 2j]]
    for variable, downcast in (("bvector", True), ("ivector", False), ("fvector", None)):
        x = getattr(T, variable)("x")
        options = dict(allow_input_downcast=downcast, **FAST)
        serial = theano.function([x], theano.compile.deep_copy_op(x), **options)
        f = pair.function([x], (x, "gather"), **options)
        refused = 0
        for value in values:
            expected = outcome(serial, TypeError, value)
            got = outcome(f, InputTypeError, value)
            assert (got is TypeError) == (expected is TypeError), (variable, value)
            if expected is TypeError:
                refused += 1
            else:
                np.testing.assert_array_equal(got, expected, err_msg=repr(value))
                assert got.dtype == expected.dtype
        assert refused < len(values)


def test_inputs_have_the_options_and_names_of_in(pair):
    x, y, z = T.fvector("x"), T.fvector("y"), T.fvector("z")
    inputs = [theano.In(x, allow_downcast=True), y, theano.In(z, strict=True, name="rows")]
    serial = theano.function(inputs, x + y + z, **FAST)
    f = pair.function(inputs, (x + y + z, "gather"), **FAST)
    wide, narrow = np.array([0.1, 0.2, 0.3]), np.ones(3, "float32")
    for function in (serial, f):
        result = function(wide, narrow, rows=narrow)
        np.testing.assert_array_equal(result, wide.astype("float32") + 2)
        for position, name in ((1, "input y"), (2, "input rows")):
            values = [narrow] * 3
            values[position] = wide
            with pytest.raises(TypeError, match=name if function is f else "."):
                function(*values)
        with pytest.raises(TypeError, match="z"):
            function(wide, narrow, z=narrow)
    with pytest.raises(InputTypeError, match="input rows"):
        f(wide, narrow, [1, 2, 3])


def test_givens_of_another_type_need_rebuild_strict_false(pair):
    narrow = T.fmatrix("narrow")
    build = dict(inputs=[narrow], outputs=(x * 2, "gather"), givens={x: narrow}, **FAST)
    with pytest.raises(TypeError, match="Cannot convert"):
        pair.function(**build)
    result = pair.function(**build, rebuild_strict=False)(X.astype("float32"))
    np.testing.assert_array_equal(result, 2 * X.astype("float32"))
    assert result.dtype == np.float32


def test_default_updates_can_be_left_out(pair):
    a, b, c = (theano.shared(np.asarray(0), name) for name in "abc")
    a.default_update, b.default_update, c.default_update = a + 1, b + 1, 5
    output = (x.sum() + 0 * (a + b + c), "sum")
    for left_out, counts in (([a], (0, 1)), (True, (0, 1)), (False, (1, 2))):
        pair.function([x], output, no_default_updates=left_out, **FAST)(X, num_slices=2)
        assert (a.get_value(), b.get_value()) == counts
    assert [pair.collectives.gather(s).tolist() for s in (b, c)] == [[2, 2], [5, 5]]


def test_operations_in_place_are_accepted_on_request_and_spoil_no_input(pair):
    """Inputs lie in memory that the ranks share: they are copied before they are written to."""
    outputs = [(inplace.exp_inplace(x + 0), "gather"), (x.sort(axis=1), "gather")]
    with pytest.raises(TypeError, match="inplace"):
        pair.function([x], outputs, **FAST)
    f = pair.function([x], outputs, accept_inplace=True, mode="FAST_RUN")
    value, data = X.copy(), pair.data(X)
    for given in (value, data, data):
        result = f(given, batch=[5, 0])[0]
        np.testing.assert_allclose(result, np.exp(X[[5, 0]]), rtol=1e-14)
    np.testing.assert_array_equal(value, X)
    np.testing.assert_array_equal(data.data, X)


def test_inputs_of_one_name_or_with_the_name_of_an_option_go_by_position(pair):
    a, b, batch = T.dvector("a"), T.dvector("a"), T.dvector("batch")
    f = pair.function([a, b, batch], (a - b + batch, "gather"), **FAST)
    values = np.arange(4.0), np.ones(4), np.full(4, 10.0)
    np.testing.assert_array_equal(f(*values), values[0] + 9)
    np.testing.assert_array_equal(f(*values, batch=[2]), [11.0])
    with pytest.raises(InputTypeError):
        f(values[0], values[2], a=values[1])


@pytest.fixture(scope="module")
def f(pair):
    """rows (scattered), factor (broadcast, 0-d) -> gathered rows and their sum."""
    rows, factor = T.dmatrix("rows"), T.dscalar("factor")
    product = rows * factor
    return pair.function(
        [rows], [(product, "gather"), (product.sum(), "sum")], bcast_inputs=[factor], **FAST
    )


def masked():
    return np.ma.array(X, mask=X == 3)


BAD_CALLS = {
    "no inputs": (lambda: (), {}, InputTypeError, "0 inputs, expected 2: rows, factor"),
    "an input too many": (lambda: (X, 1, 1), {}, InputTypeError, "got 3 inputs, expected 2"),
    "a ragged list": (lambda: ([[1.0, 2.0], [3.0]], 1), {}, SynkError, "input rows"),
    "too large a number": (lambda: ([[1e300]], [1e300]), {}, SynkError, "input factor"),
    "0-d for rows": (lambda: (np.array(1.0), 1), {}, InputTypeError, "got 0 dimensions"),
    "objects": (lambda: (X.astype(object), 1), {}, InputTypeError, "dtype object"),
    "long doubles": (lambda: (X.astype("longdouble"), 1), {}, InputTypeError, "float128"),
    "a masked scalar": (lambda: (X, np.ma.masked), {}, InputTypeError, "mask"),
    "batch_s for nothing": (lambda: (X, 1), {"batch_s": 2}, InputTypeError, "sliceable_shareds"),
    "no slices": (lambda: (X, 1), {"num_slices": 0}, InputValueError, "num_slices"),
    "a negative output": (lambda: (X, 1), {"output_subset": [-1]}, InputValueError, "from 0 to 1"),
    "a true output": (lambda: (X, 1), {"output_subset": [True]}, InputValueError, "True"),
    "a strange keyword": (lambda: (X, 1), {"rosw": 1}, InputTypeError, "unknown keyword 'rosw'"),
    "an input twice": (lambda: (X, 1), {"rows": X}, InputTypeError, "by position and by keyword"),
}


def test_bad_calls_are_refused_before_the_workers_are_asked(pair, f):
    f(X, 1)
    before = pair._lifecycle.rank.serial
    for case, (arguments, options, error, words) in BAD_CALLS.items():
        with pytest.raises(error, match=words) as caught:
            f(*arguments(), **options)
        assert isinstance(caught.value, SynkError), case
    assert pair._lifecycle.rank.serial == before
    with pytest.raises(InputTypeError, match="got 1 inputs, expected 0: none"):
        pair.function([], T.constant(1.0), **FAST)(1.0)
    rows, total = f(X, 2.0, batch=[5, 0])
    np.testing.assert_array_equal(rows, 2 * X[[5, 0]])
    assert total == rows.sum()


def test_masked_values_are_refused_wherever_they_come_in(pair):
    s = theano.shared(np.zeros((6, 2)), "s")
    data = pair.data(X)
    for act in (
        lambda: pair.data(masked()),
        lambda: data.set_value(masked()),
        lambda: pair.collectives.broadcast(s, masked()),
        lambda: pair.collectives.scatter(s, masked()),
        lambda: pair.collectives.set_value(1, s, masked()),
    ):
        with pytest.raises(InputTypeError, match="mask"):
            act()
    np.testing.assert_array_equal(data.data, X)


def test_a_shared_variable_of_two_runtimes_has_replicas_in_each(pair, trio):
    """They are replicas of the one value that it has here when each first needs it."""
    s = theano.shared(np.zeros(2), "s")
    add = pair.function([x], updates=[(s, s + x.sum(axis=0))], **FAST)
    add(X)
    here, there = X[:3].sum(axis=0), X[3:].sum(axis=0)
    read = trio.function([x], [(s, "gather"), (x, "gather")], **FAST)
    data = pair.data(X)
    for value in (trio.data(X + 1), data):
        held, rows = read(value)
        np.testing.assert_array_equal(held, np.tile(here, 3))
        np.testing.assert_array_equal(rows, value.data)
    trio.collectives.all_reduce(s, op="sum")
    np.testing.assert_array_equal(pair.collectives.gather(s), [3 * here, there])


AMID_CALLS = []
"""Acts, here only: it is empty when it travels."""


@as_op([T.dvector], [T.dvector])
def meet(values):
    for act in AMID_CALLS:
        act()
    return values * 2


def test_closing_inside_a_call_ends_it_with_an_error(monkeypatch):
    v = T.dvector("v")
    with no_ranks_left():
        with Runtime(2) as runtime:
            outer = runtime.function([v], (meet(v), "gather"), **FAST)
            outer(np.arange(4.0))
            monkeypatch.setitem(globals(), "AMID_CALLS", [runtime.close])
            with pytest.raises(SynkError):
                outer(np.arange(4.0))
        del outer


def test_only_one_thread_at_a_time_builds_a_function(pair, monkeypatch):
    """What Theano does is set for all threads: another one's functions would work in place."""
    both, met, built, build = threading.Barrier(2), [], [], theano.function

    def meet(*arguments, **options):
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)
            met.append(True)
        return build(*arguments, **options)

    monkeypatch.setattr(theano, "function", meet)
    work = lambda: built.append(pair.function([x], x.mean(), **FAST))  # noqa: E731
    with calling_in_threads([work] * 2):
        pass
    assert (len(built), met) == (2, [])


def test_test_values_are_the_users_alone(pair):
    """What a call adds to the graph to select rows has none."""
    rows = np.arange(16.0).reshape(-1, 2)
    with theano.change_flags(compute_test_value="raise"):
        x, s = T.dmatrix("x"), theano.shared(rows, name="s")
        x.tag.test_value = rows
        outputs = [(x.sum(axis=0), "sum"), (s.sum(axis=0), "sum")]
        f = pair.function([x], outputs, sliceable_shareds=[s], **FAST)
        for num_slices in (1, 2):
            total, resident = f(rows[:4], batch_s=[2, 0], num_slices=num_slices)
            np.testing.assert_allclose(total, rows[:4].sum(axis=0))
            np.testing.assert_allclose(resident, 2 * rows[[2, 0]].sum(axis=0))


def test_scan_that_updates_shared_variables(pair):
    n = theano.shared(np.asarray(0), "n")
    terms, updates = theano.scan(lambda row: (row.sum(), {n: n + 1}), x)
    f = pair.function([x], (terms, "gather"), updates=updates, **FAST)
    np.testing.assert_allclose(f(ROWS), ROWS.sum(axis=1), rtol=1e-14)
    assert pair.collectives.gather(n).tolist() == [4, 3]


def test_other_ranks_streams_are_as_far_apart_as_theanos(monkeypatch):
    for count in (0, 1, 2, 37):
        state = np.arange(6 * count, dtype="int32").reshape(count, 6) + 1
        serial = MRG_RandomStreams(1)
        with monkeypatch.context() as without:
            without.setattr(rng_mrg, "multMatVect", None)
            seeded = random_streams.reseed(state, rank=2)
        assert (seeded.dtype, seeded.shape) == (state.dtype, state.shape)
        assert not count or (seeded[0] != state[0]).all()
        if count:
            serial.rstate = seeded[0]
            expected = serial.get_substream_rstates(count, "float64")
            np.testing.assert_array_equal(seeded, np.asarray(expected))


@pytest.mark.filterwarnings("ignore:this function cannot be split")
def test_one_random_state_goes_on_over_functions_and_rounds(pair):
    def drawn():
        stream = RandomStreams(9)
        return stream.uniform((2,)), dict(stream.updates())

    draw, updates = drawn()
    f = pair.function([], [(draw, "gather")], updates=updates, **FAST)
    first = f()[0]
    g = pair.function([x], [(draw, "gather"), (x.sum(), "sum")], updates=updates, **FAST)
    numbers = np.array([first, g(ROWS)[0], f()[0], g(ROWS, num_slices=1)[0]])
    serial = theano.function([], drawn()[0])
    np.testing.assert_array_equal(numbers[:, :2], [serial() for _ in numbers])
    assert len(np.unique(numbers)) == 16
    own = theano.shared(np.random.RandomState(3))  # no stream's, and not marked as one
    state, draw = raw_random.uniform(own, (2,))
    f = pair.function([], [(draw, "gather")], updates=[(own, state)], **FAST)
    assert len(np.unique(f()[0])) == 4


def test_sparse_constants_and_sparse_variables(pair):
    matrix = scipy.sparse.random(3, 5, 0.5, "csr", random_state=1)
    constant = theano.sparse.as_sparse_variable(matrix)
    dense = T.as_tensor_variable(matrix.toarray())
    rows = theano.sparse.structured_dot(theano.sparse.csr_from_dense(x), dense)
    f = pair.function(
        [x], [(theano.sparse.dot(x, constant), "gather"), (rows, "gather")], mode="FAST_RUN"
    )
    for result in f(ROWS, num_slices=2):
        np.testing.assert_allclose(result, ROWS @ matrix.toarray(), rtol=1e-12, atol=1e-15)


@pytest.mark.filterwarnings("ignore:this function cannot be split")
def test_inputs_variables_and_doubles_as_outputs_are_the_callers_own(pair):
    s, c, total = theano.shared(np.arange(3.0), "s"), T.dscalar("c"), x.sum()
    outputs = [(x, "gather"), (x, "gather"), (s, "sum"), s, (c, "max"), (total, "sum")]
    outputs += [(total, "max"), (x * 1, None)]
    f = pair.function([x], outputs, bcast_inputs=[c], updates=[(s, s + 1)], **FAST)
    data, kept = pair.data(ROWS), []
    largest = max(ROWS[:4].sum(), ROWS[4:].sum())
    for step in range(2):
        held = np.arange(3.0) + step
        wanted = [ROWS, ROWS, 2 * held, held, 4, ROWS.sum(), largest, ROWS[:4]]
        kept.append((f(data, 4.0), wanted))
    last = f(data, 4.0)
    for result in (last[0], last[2], last[3]):
        result[...] = -99
    np.testing.assert_array_equal(f(data, 4.0, output_subset=[3])[0], np.arange(3.0) + 3)
    data[:] = 9
    f(data, 4.0)
    for results, wanted in kept:
        for result, expected in zip(results, wanted):
            np.testing.assert_allclose(result, expected, rtol=1e-14)
    np.testing.assert_array_equal(pair.collectives.gather(s), [np.arange(3.0) + 5] * 2)
