"""What `theano.function` takes and does, `Runtime.function` takes and does: against Theano itself.

And what neither can use is refused: at once, by an error that names the fault, before the workers
are asked for anything. They are stopped while the wrong calls are made.
"""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import signal
import threading
import time
import warnings
from collections import OrderedDict
from functools import partial

import numpy as np
import pytest
import theano
import theano.tensor as T
from _busy import calling_in_threads
from _leaks import no_ranks_left
from theano.compile.ops import as_op
from theano.compile.profiling import ProfileStats
from theano.tensor import inplace

from synk_core import Runtime
from synk_core.exceptions import (
    BatchError,
    InputTypeError,
    InputValueError,
    SynkError,
    WorkerFailed,
)

NIGHTLY = pytest.mark.nightly
QUICK = {"mode": "FAST_COMPILE"}
AT_ONCE_S = 3
X = np.arange(12.0).reshape(6, 2)


@pytest.fixture
def x():
    return T.dmatrix("x")


@contextlib.contextmanager
def stopped(runtime):
    """Workers that do nothing for a while: what has to wait for them takes long."""

    def send(number):
        for pid in runtime.worker_pids:
            os.kill(pid, number)

    runtime.distribute()
    mercy = threading.Timer(2 * AT_ONCE_S, send, [signal.SIGCONT])
    begin = time.monotonic()
    send(signal.SIGSTOP)
    mercy.start()
    try:
        yield
        assert time.monotonic() - begin < AT_ONCE_S, "the workers were asked"
    finally:
        mercy.cancel()
        mercy.join()
        send(signal.SIGCONT)


# What comes back


def pairs_of(a, b, new_a, new_b):
    return [(a, new_a), (b, new_b)]


UPDATES = [
    pairs_of,
    lambda a, b, new_a, new_b: ((a, new_a), [b, new_b]),
    lambda a, b, new_a, new_b: [(a, new_a, "avg"), (b, new_b, "sum")],
    lambda a, b, new_a, new_b: [(a, new_a, None), (b, new_b)],
    lambda *args: dict(pairs_of(*args)),
    lambda *args: theano.OrderedUpdates(pairs_of(*args)),
]


def test_updates_and_givens_in_every_form_do_the_same(pair, x):
    for form in UPDATES:
        a, b = theano.shared(np.ones(2), "a"), theano.shared(np.zeros(2), "b")
        f = pair.function([x], updates=form(a, b, a * 2, a + x.sum(axis=0)), **QUICK)
        assert not f(X)
        assert a.get_value().tolist() == [2.0, 2.0]
        np.testing.assert_array_equal(pair.collectives.gather(b)[1], 1 + X[3:].sum(axis=0))
    a, s, c = T.dmatrix("a"), theano.shared(np.full(2, 3.0), "s"), T.dvector("c")
    for kind in (dict, OrderedDict, list, tuple):
        givens = kind([(a, x * s), (c, np.ones(2))])
        f = pair.function([x], (a + c, "gather"), givens=givens, **QUICK)
        np.testing.assert_array_equal(f(X), X * 3 + 1)


# Keywords of theano.function


@pytest.mark.parametrize(
    "mode",
    [
        *(pytest.param(mode, marks=NIGHTLY) for mode in (None, "FAST_RUN", "DebugMode")),
        "FAST_COMPILE",
        pytest.param(theano.Mode("py", "fast_run"), id="py", marks=NIGHTLY),
        pytest.param(theano.compile.get_default_mode().excluding("inplace"), id="not in place"),
    ],
)
def test_modes_by_name_or_object(pair, x, mode):
    w = theano.shared(np.ones(2), "w")
    f = pair.function([x], (x * w).mean(), updates=[(w, w / 2)], mode=mode)
    for step in (1.0, 0.5):
        np.testing.assert_allclose(f(X), (X * step).mean(), rtol=1e-14)
    np.testing.assert_array_equal(pair.collectives.gather(w), np.full((2, 2), 0.25))
    with pytest.raises(Exception, match="NO_SUCH_MODE"):
        pair.function([x], x.mean(), mode="NO_SUCH_MODE")


def test_nan_guard_mode_guards_on_every_rank(pair, x):
    from theano.compile.nanguardmode import NanGuardMode

    mode = NanGuardMode(nan_is_error=True, inf_is_error=False, big_is_error=False)
    f = pair.function([x], ((x * 2).sum(), "sum"), mode=mode)
    for row, error in ((0, AssertionError), (5, WorkerFailed)):
        bad = X.copy()
        bad[row] = np.nan
        with pytest.raises(error, match="NaN"):
            f(bad)
        assert f(X) == 2 * X.sum()


def test_profiles_count_the_masters_calls(pair, x):
    stats = ProfileStats(atexit_print=False)
    f = pair.function([x], (x.sum(), "sum"), profile=stats, **QUICK)
    for _ in range(3):
        assert f(X) == X.sum()
    assert stats.fct_callcount == 3
    assert stats.compile_time > 0
    assert pair.function([x], (x.sum(), "sum"), profile=True, **QUICK)(X, num_slices=2) == X.sum()


def test_unused_inputs_are_an_error_a_warning_or_nothing(pair, x):
    unused = T.dvector("unused")
    for inputs in ({"inputs": [x, unused]}, {"inputs": [x], "bcast_inputs": [unused]}):
        build = dict(outputs=(x.sum(), "sum"), **inputs, **QUICK)
        with pytest.raises(theano.compile.UnusedInputError, match="unused"):
            pair.function(**build)
        with pytest.warns(UserWarning, match="unused"):
            f = pair.function(**build, on_unused_input="warn")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            g = pair.function(**build, on_unused_input="ignore")
        assert f(X, np.ones(6)) == g(X, np.ones(6)) == X.sum()


VALUES = [
    np.array([1.5, 2]),
    np.array([1.5, 2], "float32"),
    np.array([1.5], "float16"),
    np.array([1, 300]),
    np.array([1, 2], "int8"),
    np.array([1, 2], "uint8"),
    np.array([True, False]),
    np.array([1 + 2j]),
    [1.5, 2.0],
    [1, 2],
    [1, 300],
    (1, 2),
    range(3),
    [True, False],
    [1 + 2j],
    [0.1],
]


KINDS = ["bvector", "ivector", "fvector", "dvector", "zvector"]
BY_DAY = [("bvector", True), ("ivector", False), ("fvector", None)]


@pytest.mark.parametrize(
    ("variable", "downcast"),
    [
        pytest.param(kind, downcast, marks=() if (kind, downcast) in BY_DAY else NIGHTLY)
        for kind in KINDS
        for downcast in (None, False, True)
    ],
)
def test_values_convert_where_theano_converts_them(pair, variable, downcast):
    """The same values are taken, with the same result, and the same are refused by a TypeError."""
    x = getattr(T, variable)("x")
    options = dict(allow_input_downcast=downcast, **QUICK)
    serial = theano.function([x], theano.compile.deep_copy_op(x), **options)
    f = pair.function([x], (x, "gather"), **options)
    outcomes = set()
    for value in VALUES:
        results = []
        for function in (serial, f):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # complex numbers that lose their imaginary part
                try:
                    results.append(function(value))
                except InputTypeError:
                    results.append(TypeError)
                except TypeError as error:
                    results.append(TypeError if function is serial else error)
        expected, got = results
        outcomes.add(expected is TypeError)
        if expected is TypeError:
            assert got is TypeError, f"{value!r} gives {got!r}, expected InputTypeError"
        else:
            assert got is not TypeError, f"{value!r} was refused, Theano makes {expected!r} of it"
            np.testing.assert_array_equal(got, expected, err_msg=repr(value))
            assert got.dtype == expected.dtype
    assert False in outcomes


def test_downcasting_can_be_allowed_for_one_input(pair):
    x, y = T.fvector("x"), T.fvector("y")
    f = pair.function([theano.In(x, allow_downcast=True), y], (x + y, "gather"), **QUICK)
    wide, narrow = np.array([0.1, 0.2, 0.3]), np.ones(3, "float32")
    np.testing.assert_array_equal(f(wide, narrow), wide.astype("float32") + narrow)
    with pytest.raises(InputTypeError, match="input y"):
        f(wide, wide)


def test_a_strict_input_takes_its_own_dtype_only(pair):
    x = T.dvector("x")
    serial = theano.function([theano.In(x, strict=True)], x * 2, **QUICK)
    f = pair.function([theano.In(x, strict=True)], (x * 2, "gather"), **QUICK)
    for value in (np.arange(3), np.arange(3.0, dtype="float32"), [1.0, 2.0]):
        with pytest.raises(TypeError):
            serial(value)
        with pytest.raises(InputTypeError, match="input x"):
            f(value)
    np.testing.assert_array_equal(f(np.arange(3.0)), serial(np.arange(3.0)))


def test_givens_of_another_type_need_rebuild_strict_false(pair, x):
    narrow = T.fmatrix("narrow")
    build = dict(inputs=[narrow], outputs=(x * 2, "gather"), givens={x: narrow}, **QUICK)
    with pytest.raises(TypeError, match="Cannot convert"):
        pair.function(**build)
    result = pair.function(**build, rebuild_strict=False)(X.astype("float32"))
    np.testing.assert_array_equal(result, 2 * X.astype("float32"))
    assert result.dtype == np.float32


def test_default_updates_can_be_left_out(pair, x):
    def counter(name):
        variable = theano.shared(np.asarray(0), name)
        variable.default_update = variable + 1
        return variable

    a, b = counter("a"), counter("b")
    output = (x.sum() + 0 * (a + b), "sum")
    pair.function([x], output, no_default_updates=[a], **QUICK)(X, num_slices=2)
    assert (a.get_value(), b.get_value()) == (0, 1)
    pair.function([x], output, no_default_updates=True, **QUICK)(X, num_slices=2)
    assert (a.get_value(), b.get_value()) == (0, 1)
    pair.function([x], output, no_default_updates=False, **QUICK)(X, num_slices=2)
    assert (a.get_value(), b.get_value()) == (1, 2)
    assert pair.collectives.gather(b).tolist() == [2, 2]


def test_operations_in_place_are_accepted_on_request(pair, x):
    output = (inplace.exp_inplace(x + 0), "gather")
    with pytest.raises(TypeError, match="inplace"):
        pair.function([x], output, **QUICK)
    value = X.copy()
    result = pair.function([x], output, accept_inplace=True, **QUICK)(value)
    np.testing.assert_allclose(result, np.exp(X), rtol=1e-14)
    np.testing.assert_array_equal(value, X)


# Names


def test_inputs_go_by_the_names_of_in(pair):
    """As in Theano, where In(name=...) takes the place of the variable's own name."""
    x = T.dvector("x")
    inputs = [theano.In(x, name="rows")]
    serial = theano.function(inputs, x * 2, **QUICK)
    f = pair.function(inputs, (x * 2, "gather"), **QUICK)
    np.testing.assert_array_equal(f(rows=np.arange(3.0)), serial(rows=np.arange(3.0)))
    for function in (serial, f):
        with pytest.raises(TypeError, match="x"):
            function(x=np.arange(3.0))


def test_inputs_of_one_name_or_with_the_name_of_an_option_go_by_position(pair):
    a, b, batch = T.dvector("a"), T.dvector("a"), T.dvector("batch")
    f = pair.function([a, b, batch], (a - b + batch, "gather"), **QUICK)
    values = np.arange(4.0), np.ones(4), np.full(4, 10.0)
    np.testing.assert_array_equal(f(*values), values[0] + 9)
    np.testing.assert_array_equal(f(*values, batch=[2]), [11.0])
    with pytest.raises(InputTypeError):
        f(values[0], values[2], a=values[1])


# Values that can be used


def test_arrays_of_any_layout(pair, x):
    f = pair.function([x], [(x, "gather"), (x.sum(axis=1), "gather")], **QUICK)
    frozen = X.copy()
    frozen.setflags(write=False)
    for value in (
        np.asfortranarray(X),
        np.arange(12.0).reshape(2, 6).T,
        np.repeat(np.repeat(X, 2, axis=0), 3, axis=1)[::2, ::3],
        X[::-1, ::-1],
        frozen,
        np.broadcast_to(X[:1], (6, 2)),
        X.astype(">f8"),
        np.ma.array(X),
        np.ma.array(X, mask=np.zeros(X.shape, bool)),
        np.asmatrix(X),
        np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(float).reshape(X.shape),
    ):
        expected = np.array(value)
        for options in ({}, {"batch": [4, -1, 0]}, {"batch": slice(None, None, -2)}):
            chosen = expected[options.get("batch", slice(None))]
            rows, sums = f(value, **options)
            np.testing.assert_array_equal(rows, chosen)
            np.testing.assert_array_equal(sums, chosen.sum(axis=1))


def test_nan_and_infinities_pass_through(pair, x):
    value = X.copy()
    value[1], value[2], value[4], value[5] = np.nan, np.inf, -np.inf, -0.0
    f = pair.function([x], [(x, "gather"), (x.max(axis=0), "max"), (x.sum(), "sum")], **QUICK)
    serial = theano.function([x], [x, x.max(axis=0), x.sum()], **QUICK)
    with np.errstate(invalid="ignore"):
        for result, expected in zip(f(value), serial(value)):
            np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(np.signbit(f(value)[0]), np.signbit(value))


@pytest.mark.parametrize("num_slices", [7, pytest.param(np.int64(50), marks=NIGHTLY)])
def test_more_slices_than_rows_leave_some_empty(pair, x, num_slices):
    s = theano.shared(np.zeros(2), "s")
    f = pair.function(
        [x],
        [x.mean(axis=0), (x.min(), "min"), (x, "gather")],
        updates=[(s, s + x.mean(axis=0))],
        **QUICK,
    )
    mean, lowest, rows = f(X[:5], num_slices=num_slices)
    np.testing.assert_allclose(mean, X[:5].mean(axis=0), rtol=1e-14)
    assert lowest == 0
    np.testing.assert_array_equal(rows, X[:5])
    own = np.array_split(X[:5], pair.size)[pair.master]
    np.testing.assert_allclose(s.get_value(), own.mean(axis=0), rtol=1e-14)


# What cannot be used


@pytest.fixture(scope="module")
def f(pair):
    """rows (scattered), factor (broadcast, 0-d) -> gathered rows and their sum."""
    rows, factor = T.dmatrix("rows"), T.dscalar("factor")
    product = rows * factor
    return pair.function(
        [rows], [(product, "gather"), (product.sum(), "sum")], bcast_inputs=[factor], **QUICK
    )


def masked():
    return np.ma.array(X, mask=X == 3)


BAD_CALLS = {
    "no inputs": (lambda: (), {}, InputTypeError, "0 inputs, expected 2: rows, factor"),
    "an input too many": (lambda: (X, 1, 1), {}, InputTypeError, "got 3 inputs, expected 2"),
    "None": (lambda: (None, 1), {}, InputTypeError, "input rows"),
    "a string": (lambda: ("rows", 1), {}, InputTypeError, "input rows"),
    "a ragged list": (lambda: ([[1.0, 2.0], [3.0]], 1), {}, SynkError, "input rows"),
    "too large a number": (lambda: ([[1e300]], [1e300]), {}, SynkError, "input factor"),
    "too few dimensions": (lambda: (X[0], 1), {}, InputTypeError, r"shape \(2,\)\), expected 2"),
    "too many dimensions": (lambda: (X[None], 1), {}, InputTypeError, "expected 2"),
    "0-d for rows": (lambda: (np.array(1.0), 1), {}, InputTypeError, "got 0 dimensions"),
    "a vector for a scalar": (lambda: (X, X[0]), {}, InputTypeError, "input factor"),
    "objects": (lambda: (X.astype(object), 1), {}, InputTypeError, "dtype object"),
    "records": (lambda: (np.zeros((2, 2), "f8,i4"), 1), {}, InputTypeError, "input rows"),
    "dates": (lambda: (np.zeros((2, 2), "M8[s]"), 1), {}, InputTypeError, "datetime64"),
    "words": (lambda: (np.array([["a", "b"]]), 1), {}, InputTypeError, "<U1"),
    "complex numbers": (lambda: (X * 1j, 1), {}, InputTypeError, "complex128"),
    "long doubles": (lambda: (X.astype("longdouble"), 1), {}, InputTypeError, "float128"),
    "masked entries": (lambda: (masked(), 1), {}, InputTypeError, "mask"),
    "a masked scalar": (lambda: (X, np.ma.masked), {}, InputTypeError, "mask"),
    "batch longer than data": (lambda: (X, 1), {"batch": 7}, BatchError, "only 6 rows"),
    "a slice past the end": (lambda: (X, 1), {"batch": slice(0, 7)}, BatchError, "only 6 rows"),
    "a start past the end": (lambda: (X, 1), {"batch": slice(7, None)}, BatchError, "6 rows"),
    "the length as index": (lambda: (X, 1), {"batch": [0, 6]}, BatchError, "index 6"),
    "a negative index": (lambda: (X, 1), {"batch": np.array([-7])}, BatchError, "index -7"),
    "a short mask": (lambda: (X, 1), {"batch": [True] * 5}, BatchError, "mask of 5 entries"),
    "a long mask": (lambda: (X, 1), {"batch": np.ones(7, bool)}, BatchError, "mask of 7 entries"),
    "indexes in 2-d": (lambda: (X, 1), {"batch": [[0]]}, InputValueError, "2 dimensions"),
    "fractions": (lambda: (X, 1), {"batch": [0.0, 1.0]}, InputValueError, "float64"),
    "a fraction": (lambda: (X, 1), {"batch": 2.0}, InputValueError, "expected an int, a slice"),
    "a truth": (lambda: (X, 1), {"batch": True}, InputValueError, "bool"),
    "a word": (lambda: (X, 1), {"batch": "all"}, InputValueError, "str"),
    "a step of 0": (lambda: (X, 1), {"batch": slice(0, 3, 0)}, InputValueError, "step"),
    "bounds of no int": (lambda: (X, 1), {"batch": slice(0.0, 3.0)}, InputValueError, "ints"),
    "batch_s for nothing": (lambda: (X, 1), {"batch_s": 2}, InputTypeError, "sliceable_shareds"),
    "no slices": (lambda: (X, 1), {"num_slices": 0}, InputValueError, "num_slices"),
    "negative slices": (lambda: (X, 1), {"num_slices": -1}, InputValueError, "num_slices"),
    "half a slice": (lambda: (X, 1), {"num_slices": 2.5}, InputValueError, "num_slices"),
    "a true slice": (lambda: (X, 1), {"num_slices": True}, InputValueError, "num_slices"),
    "an output too far": (lambda: (X, 1), {"output_subset": [2]}, InputValueError, "from 0 to 1"),
    "a negative output": (lambda: (X, 1), {"output_subset": [-1]}, InputValueError, "from 0 to 1"),
    "a true output": (lambda: (X, 1), {"output_subset": [True]}, InputValueError, "True"),
    "an output by name": (lambda: (X, 1), {"output_subset": ["a"]}, InputValueError, "'a'"),
    "a bare output": (lambda: (X, 1), {"output_subset": 1}, SynkError, "output_subset"),
    "a strange keyword": (lambda: (X, 1), {"rosw": 1}, InputTypeError, "unknown keyword 'rosw'"),
    "an input twice": (lambda: (X, 1), {"rows": X}, InputTypeError, "by position and by keyword"),
}


def test_bad_calls_are_refused_before_the_workers_are_asked(pair, f):
    f(X, 1)
    with stopped(pair):
        for case, (arguments, options, error, words) in BAD_CALLS.items():
            with pytest.raises(error, match=words) as caught:
                f(*arguments(), **options)
            assert isinstance(caught.value, SynkError), case
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


def test_a_shared_variable_of_two_runtimes_has_replicas_in_each(pair, trio, x):
    """They are replicas of the one value that it has here when each first needs it."""
    s = theano.shared(np.zeros(2), "s")
    add = pair.function([x], updates=[(s, s + x.sum(axis=0))], **QUICK)
    add(X)
    here, there = X[:3].sum(axis=0), X[3:].sum(axis=0)
    read = trio.function([], (s, "gather"), **QUICK)
    np.testing.assert_array_equal(read(), np.tile(here, 3))
    trio.collectives.all_reduce(s, op="sum")
    np.testing.assert_array_equal(read(), np.tile(3 * here, 3))
    np.testing.assert_array_equal(pair.collectives.get_value(1, s), there)
    data = pair.data(X)
    g = trio.function([x], (x, "gather"), **QUICK)
    for value in (trio.data(X + 1), data, trio.data(X + 2)):
        np.testing.assert_array_equal(g(value), value.data)
    np.testing.assert_array_equal(pair.collectives.gather(s), [3 * here, there])


# Calls that meet


def on_call(act):
    """A graph (variable, result) that calls `act` in the process that it was made in."""
    home = os.getpid()

    @as_op([T.dvector], [T.dvector])
    def meet(values):
        if os.getpid() == home:
            act()
        return values * 2

    v = T.dvector("v")
    return v, meet(v)


class Acts:
    """What is done during a call, here only: it does not travel."""

    now = staticmethod(lambda: None)

    def __call__(self):
        return Acts.now()


@pytest.mark.parametrize(
    "kind",
    ["function", "collective", *(pytest.param(k, marks=NIGHTLY) for k in ("sliced", "distribute"))],
)
def test_a_call_inside_a_call_is_refused(pair, kind, monkeypatch):
    """The workers are busy with the outer one; what they answered would be taken for another's."""
    v, result = on_call(Acts())
    outer = pair.function([v], (result, "gather"), **QUICK)
    inner = pair.function([v], (v + 1, "gather"), **QUICK)
    s = theano.shared(np.zeros(2), "s")
    acts = {
        "function": lambda: inner(np.arange(3.0)),
        "sliced": lambda: inner(np.arange(3.0), num_slices=2),
        "collective": lambda: pair.collectives.gather(s),
        "distribute": pair.distribute,
    }
    inner(np.arange(3.0), num_slices=2)
    np.testing.assert_array_equal(outer(np.arange(4.0)), 2 * np.arange(4.0))
    if kind == "distribute":
        pair.function([v], (v - 1, "gather"), **QUICK)
    monkeypatch.setattr(Acts, "now", staticmethod(acts[kind]))
    with pytest.raises(SynkError, match="inside a call"):
        outer(np.arange(4.0))
    monkeypatch.undo()
    for _ in range(2):
        np.testing.assert_array_equal(outer(np.arange(4.0)), 2 * np.arange(4.0))
        np.testing.assert_array_equal(inner(np.arange(3.0)), np.arange(3.0) + 1)


def test_closing_inside_a_call_ends_it_with_an_error(monkeypatch):
    v, result = on_call(Acts())
    with no_ranks_left():
        with Runtime(2) as runtime:
            outer = runtime.function([v], (result, "gather"), **QUICK)
            outer(np.arange(4.0))
            monkeypatch.setattr(Acts, "now", staticmethod(runtime.close))
            with pytest.raises(SynkError):
                outer(np.arange(4.0))
        del outer


def test_calls_and_collectives_of_several_threads_take_turns(pair, x):
    s = theano.shared(np.zeros(2), "s")
    f = pair.function([x], [(x, "gather"), (x.sum(), "sum")], updates=[(s, s + 1)], **QUICK)
    g = pair.function([x], (x * 2, "gather"), **QUICK)
    counts = 5

    def work(number):
        for i in range(counts):
            value = np.full((7 + i, 2), 100.0 * number + i)
            rows, total = f(value, num_slices=1 + i % 2)
            np.testing.assert_array_equal(rows, value)
            assert total == value.sum()
            np.testing.assert_array_equal(g(value, batch=[0, 5]), 2 * value[[0, 5]])
            assert pair.collectives.get_lengths(s) == (2, 2)
            assert pair.function([x], (x.sum(), "sum"), **QUICK)(value) == value.sum()

    with calling_in_threads([partial(work, number) for number in range(3)]):
        pass
    np.testing.assert_array_equal(pair.collectives.gather(s), np.full((2, 2), 3.0 * counts))


def test_only_one_thread_at_a_time_builds_a_function(pair, x, monkeypatch):
    """What Theano does is set for all threads: another one's functions would work in place."""
    both, met, built, build = threading.Barrier(2), [], [], theano.function

    def meet(*arguments, **options):
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)
            met.append(True)
        return build(*arguments, **options)

    monkeypatch.setattr(theano, "function", meet)
    work = lambda: built.append(pair.function([x], x.mean(), **QUICK))  # noqa: E731
    with calling_in_threads([work] * 2):
        pass
    assert (len(built), met) == (2, [])


@pytest.mark.parametrize("value", ["raise", pytest.param("warn", marks=NIGHTLY)])
def test_test_values_are_the_users_alone(runtime, value):
    """What a call adds to the graph to select rows has none."""
    rows = np.arange(4.0 * runtime.size + 8).reshape(-1, 2)
    with theano.change_flags(compute_test_value=value), warnings.catch_warnings():
        warnings.simplefilter("error")
        x, s = T.dmatrix("x"), theano.shared(rows, name="s")
        x.tag.test_value = rows
        f = runtime.function(
            [x], [(x.sum(axis=0), "sum"), (s.sum(axis=0), "sum")], sliceable_shareds=[s], **QUICK
        )
        for selection in (slice(1, 3), [2, 0]):
            for num_slices in (1, 2):
                count = 2 * runtime.size
                total, resident = f(rows[:count], batch_s=selection, num_slices=num_slices)
                np.testing.assert_allclose(total, rows[:count].sum(axis=0))
                np.testing.assert_allclose(resident, runtime.size * rows[selection].sum(axis=0))
        with pytest.raises(ValueError, match=r"[Ss]hape"):
            x.dot(T.constant(np.ones(3)))  # Theano tells of a wrong graph as it is written


def test_functions_cannot_be_copied_or_pickled(runtime, x):
    f = runtime.function([x], (x.sum(), "sum"), name="total", **QUICK)
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"function total.*build it again with"):
            act(f)
