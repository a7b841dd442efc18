"""`verify`: it passes what is right, catches what is not, and leaves no trace."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import scipy.sparse

from synk_core import Runtime, SynkError, VerifyError, WorkerDied, WorkerFailed
from synk_core._watch.verify import verify
from synk_core._watch.verify.report import measure
from synk_core._watch.verify.verify import combine
from synk_core.engine import TITLE, Assert
from synk_core.exceptions import InputTypeError, InputValueError
from synk_testing.engine import STREAMS, T, engine, softmax

x = T.matrix("x")

FAST = {"mode": "FAST_COMPILE"}
ALL = os.environ.get("SYNK_TESTS") == "all"


def rows(count, columns=3, dtype="float64", seed=0):
    return np.random.RandomState(seed).uniform(-1, 1, (count, columns)).astype(dtype)


def values_of(runtime, f):
    """Every rank's arrays, as bytes with their form."""
    arrays = [v for v in f.get_shared() if isinstance(v.get_value(borrow=True), np.ndarray)]
    if not arrays:
        return []
    fetched = [runtime.collectives.get_value(rank, arrays) for rank in range(runtime.size)]
    return [(a.dtype, a.shape, a.tobytes()) for ranks in fetched for a in ranks]


def check(runtime, f, *args, **kwargs):
    """Verify, and require that nothing has changed."""
    names = ("batch", "batch_s", "num_slices", "output_subset")
    options = {name: kwargs.pop(name) for name in names if name in kwargs}
    before, rows_before = values_of(runtime, f), f.rows
    report = verify(f, runtime, args, kwargs, **options)
    assert values_of(runtime, f) == before
    assert f.rows == rows_before
    return report


def right(runtime, f, *args, **kwargs):
    """Verify, and require that all is right."""
    report = check(runtime, f, *args, **kwargs)
    assert report.ok, str(report)
    return report


def reasons(report):
    return {c.what: c.reason for c in report.comparisons if c.reason}


def wrong(report):
    """What is wrong, without the names of outputs' variables."""
    return {c.what.partition(" (")[0] for c in report.wrong}


def training_step(runtime):
    x, y = T.matrix("x"), T.scalar("y")
    w = engine.shared(np.array([1.0, -0.5, 0.25]), name="w")
    velocity = engine.shared(np.zeros(3), name="velocity")
    steps = engine.shared(np.int32(0), name="steps")
    loss = (T.tanh(x.dot(w)) * y).mean()
    new = 0.9 * velocity - 0.1 * T.grad(loss, w)
    return runtime.function(
        [x],
        [
            loss,
            (x.sum(axis=0), "sum"),
            (x.max(axis=0), "max"),
            (x.min(), "min"),
            (T.exp(x).prod(axis=0), "prod"),
            (x * 2, "gather"),
            ((x > 0).sum(), "sum"),
            (T.any(x > 0.5, axis=0), "max"),
            (x.sum(axis=1), None),
        ],
        bcast_inputs=[y],
        updates=[(velocity, new), (w, w + new), (steps, steps + 1)],
        name="train",
        **FAST,
    )


def test_a_training_step_with_all_ops_is_right(pair):
    f = training_step(pair)
    report = right(pair, f, rows(7), 2.0)
    assert report.raise_if_wrong() is report
    assert (report.rows, report.notes) == ((4, 3), ())
    assert list(reasons(report)) == ["output 8"]
    compared = {
        (c.what.partition(" (")[0], c.run, c.against) for c in report.comparisons if c.difference
    }
    assert compared >= {
        ("update of velocity", "3 slices", "serial"),
        ("update of steps on rank 1", "2 slices", "serial"),
        ("update of w", "parallel", "serial"),
    }
    for i in range(8):
        for run in ("parallel", "2 slices", "3 slices"):
            assert (f"output {i}", run, "serial") in compared
    assert 0 < report.worst.difference.ulps < report.worst.limit
    lines = str(report).splitlines()
    assert lines[0] == f"'train' on 2 ranks with (4, 3) rows, against plain {TITLE}: ok"
    assert any("update of velocity" in line for line in lines)
    report = right(pair, f, pair.data(rows(9)), 2.0, batch=[5, 0, 0, 3, 2])
    assert report.rows == (3, 2)


def test_fewer_rows_than_ranks_and_more_slices_than_rows(trio):
    f = training_step(trio)
    for count in (1, 2, 4):
        right(trio, f, rows(count), 1.0, num_slices=(2, 9))
    # Ranks without rows have to keep what they had, unless no row goes into it.
    report = check(trio, f, rows(1), 1.0, num_slices=5)
    kept = {c.what for c in report.comparisons if c.against == "before"}
    assert "update of w on rank 1" in kept
    assert "update of steps on rank 2" in {c.what for c in report.comparisons} - kept


def test_functions_without_inputs_or_outputs_or_anything(pair):
    s = engine.shared(np.arange(3.0), name="s")
    report = right(pair, pair.function([], [s.sum(), (s, "gather")], updates=[(s, s * 2)]))
    assert report.notes == ("not run in slices: the function has no rows to slice",)
    assert "nothing could be compared" in str(check(pair, pair.function([], [])))


def test_givens_subsets_and_kinds_of_numbers(pair):
    x, k = T.matrix("x"), T.ivector("k")
    s = engine.shared(np.ones(3), name="s")
    count = engine.shared(np.int8(0), name="count")
    outputs = [
        (x * s).mean(axis=0),
        (T.cast(k, "int8").sum(dtype="int8"), "sum"),
        (k.prod(dtype="int32"), "prod"),
        (x.sum(axis=1).astype("complex128") * 1j).mean(),
        (x.std(axis=0), "avg"),
    ]
    updates = [(count, T.cast(k.sum(), "int8"), "sum")]
    f = pair.function([x, k], outputs, updates=updates, givens={s: s * 3}, **FAST)
    k_value = np.arange(1, 8, dtype="int32") * 40  # the sum does not fit into an int8
    report = right(pair, f, rows(7), k_value, output_subset=[3, 0, 2, 1])
    assert not any(c.what.startswith("output 4") for c in report.comparisons)
    assert wrong(check(pair, f, x=rows(7), k=k_value)) == {"output 4"}


def test_sliceable_variables_are_each_ranks_own_rows(trio):
    data = engine.shared(np.zeros((1, 3)), name="data")
    w = engine.shared(np.array([1.0, -0.5, 0.25]), name="w")
    loss = T.tanh(data.dot(w)).mean()
    alone = trio.function(
        [],
        [loss, (data * 2, "gather")],
        updates=[(w, w - T.grad(loss, w))],
        sliceable_shareds=[data],
        **FAST,
    )
    beside = trio.function([x], ((data * x).sum(), "sum"), sliceable_shareds=[data], **FAST)
    trio.collectives.scatter(data, rows(11))
    report = right(trio, alone)
    assert report.rows == (4, 4, 3)
    assert report.notes == ()
    for batch_s in (2, [slice(0, 4), [3, 0], slice(2, 3)], [[0], [], [0, 0, 1]], slice(0, 0)):
        right(trio, alone, batch_s=batch_s)
    right(trio, beside, rows(11))
    right(trio, beside, rows(6), batch_s=2)
    wide = trio.function([x], (x.sum() * (data**2).mean(), "sum"), sliceable_shareds=[data], **FAST)
    assert wrong(check(trio, wide, rows(11))) == {"output 0"}


def test_row_shares_make_a_mean_a_sum(trio):
    g = engine.shared(np.zeros(3), name="g")
    share = trio.row_share()
    updates = [(g, share * (x**2).mean(axis=0), "sum")]
    f = trio.function([x], (share * x.mean(axis=0), "sum"), updates=updates, **FAST)
    right(trio, f, rows(7))
    assert share.get_value() == 1.0


def drawing(runtime):
    old, new = STREAMS["numpy"](seed=5), [*STREAMS.values()][-1](seed=6)
    noise = engine.shared(np.zeros(()), name="noise")
    return runtime.function(
        [x],
        [
            (x * old.uniform(size=x.shape), "gather"),
            (x * new.uniform(size=x.shape), "gather"),
            (x.sum(), "sum"),
        ],
        updates=[(noise, old.normal(size=(1,)).sum())],
        **FAST,
    )


def test_random_numbers_are_not_compared_and_streams_go_on_as_before(pair):
    value = rows(5)
    undisturbed = drawing(pair)
    expected = [undisturbed(value)[:2] for _ in range(3)]
    f = drawing(pair)
    for draws in expected:
        report = right(pair, f, value)
        for what in ("output 0", "output 1", "update of noise"):
            assert reasons(report)[what] == "it draws random numbers"
        states = [c for c in report.comparisons if c.reason == "it is the state of a random stream"]
        assert len(states) >= 2
        assert next(c.what for c in report.comparisons if c.difference) == "output 2"
        np.testing.assert_array_equal(f(value)[:2], draws)


def test_what_cannot_be_split_is_found(pair):
    w, v, whole = (engine.shared(np.ones(3), name=name) for name in ("w", "v", "whole"))
    last = engine.shared(np.int64(3), name="last")
    gradient = T.grad(T.tanh(x.dot(w)).mean(), w)
    outputs = [(x.mean(axis=0), "sum"), x.std(axis=0), (softmax(x.T).T, "gather")]
    outputs += [(x.sum(), "avg"), x.mean(), (w.sum(), "sum")]
    updates = [(v, 0.9 * v + 0.1 * gradient**2), (w, w - gradient)]
    updates += [(last, last + x.shape[0]), (whole, whole + 1, "sum")]
    report = check(pair, pair.function([x], outputs, updates=updates, **FAST), rows(9))
    assert not report.ok
    found = {what.partition(" (")[0].partition(" on ")[0] for what in wrong(report)}
    assert found == {
        *(f"output {i}" for i in (0, 1, 2, 3, 5)),
        *(f"update of {name}" for name in ("v", "last", "whole")),
    }
    assert {c.against for c in report.wrong} == {"serial"}
    assert "of the ranks' parts is not the whole" in str(report)
    assert "update is not linear in the rows" in str(report)
    with pytest.raises(VerifyError, match="WRONG") as caught:
        report.raise_if_wrong()
    assert caught.value.report is report
    assert isinstance(caught.value, SynkError)
    assert isinstance(caught.value, AssertionError)


class Tampered:
    """A function whose calls go wrong in some way."""

    def __init__(self, function, tamper):
        vars(self).update(_function=function, _tamper=tamper)

    def __getattr__(self, name):
        return getattr(self._function, name)

    def __setattr__(self, name, value):
        setattr(self._function, name, value)

    def __call__(self, *args, **kwargs):
        return self._tamper(self._function, *args, **kwargs)


def test_ranks_that_compute_something_else_are_found(pair):
    w = engine.shared(np.ones(3), name="w")
    mean = T.tanh(x.dot(w)).mean()
    f = pair.function([x], mean, updates=[(w, w - T.grad(mean, w))], name="step", **FAST)

    def with_a_replica_off(function, *args, **kwargs):
        pair.collectives.set_value(1, w, np.ones(3) + 1e-9)
        return function(*args, **kwargs)

    report = verify(Tampered(f, with_a_replica_off), pair, (rows(5),), {})
    assert wrong(report) == {"output 0", "update of w"}
    np.testing.assert_array_equal(pair.collectives.get_value(1, w), np.ones(3))

    def updating_idle_ranks(function, *args, **kwargs):
        result = function(*args, **kwargs)
        pair.collectives.set_value(1, w, np.nextafter(np.ones(3), 2))
        return result

    report = verify(Tampered(f, updating_idle_ranks), pair, (rows(1),), {}, num_slices=())
    assert wrong(report) == {"update of w on rank 1"}
    assert report.worst.against == "before"
    assert report.worst.difference.ulps == 1
    assert "a rank without rows makes no update" in str(report)


def test_replicas_that_differ_are_named(pair):
    w = engine.shared(np.ones(3), name="w")
    state = engine.shared(np.zeros(()), name="state")
    unread = engine.shared(np.zeros(3), name="unread")
    updates = [(state, state + x.sum(), "sum"), (unread, x.mean(axis=0))]
    f = pair.function([x], x.dot(w).mean(), updates=updates, **FAST)
    off = np.array([1, 1, np.nextafter(1.0, 2)])
    for variable, value in ((w, off), (state, np.asarray(4.0)), (unread, np.ones(3))):
        pair.collectives.set_value(1, variable, value)
    report = check(pair, f, rows(6))
    assert not report.ok
    # The others are updated from each rank's own rows, or not read.
    assert wrong(report) == {"w on rank 1"}
    found = report.worst.difference
    assert (found.ulps, found.index) == (1, (2,))
    assert "w on rank 1: WRONG, 1 ulp at [2]" in str(report)
    assert "1.0000000000000002, not 1.0: a value set on the master stays there" in str(report)
    pair.collectives.set_value(1, w, np.full(3, 2.0))
    report = check(pair, f, rows(6))
    assert wrong(report) == {"w on rank 1"}, "the runs start from the master's values"
    pair.collectives.broadcast(w)
    right(pair, f, rows(6))


def test_everything_is_put_back_when_a_rank_fails(pair):
    s = engine.shared(np.float32([1, 2]), name="s")
    checked = Assert("too large")(x, T.lt(x.max(), 10))
    f = pair.function([x], checked.mean(), updates=[(s, s + 1)], **FAST)
    pair.collectives.set_value(1, s, np.float32([[3, 4]])[0])
    value = rows(4)
    value[3] = 11.0  # on the second rank
    before = values_of(pair, f)
    for arguments, error in (((value,), WorkerFailed), ((value[0],), TypeError), ((), TypeError)):
        with pytest.raises(error):
            verify(f, pair, arguments, {})
        assert values_of(pair, f) == before
    assert wrong(check(pair, f, rows(4))) == {"s on rank 1"}


def test_another_master_and_a_worker_that_dies():
    w = engine.shared(np.ones(3), name="w")
    mean = T.tanh(x.dot(w)).mean()
    with Runtime(2, master_rank=1) as runtime:
        f = runtime.function([x], [mean, (x, None)], updates=[(w, w - T.grad(mean, w))], **FAST)
        report = right(runtime, f, rows(5))
        assert report.rows == (3, 2)
        right(runtime, f, np.empty((0, 3)), output_subset=[0])
        runtime.collectives.set_value(0, w, np.zeros(3))
        right(runtime, f, rows(5))  # from the master's value of w, which rows may update

        def dying(function, *args, **kwargs):
            function(*args, **kwargs)
            os.kill(runtime.worker_pids[0], signal.SIGKILL)
            return function(*args, **kwargs)

        with pytest.raises(WorkerDied):
            verify(Tampered(f, dying), runtime, (rows(5),), {})
        assert runtime.closed
        np.testing.assert_array_equal(w.get_value(), np.ones(3))


def test_variables_that_hold_no_arrays_are_left_alone(pair):
    structured_dot = pytest.importorskip("theano.sparse").structured_dot
    matrix = engine.shared(scipy.sparse.csr_matrix(np.diag([1.0, 2.0, 3.0])), name="matrix")
    g = pair.function([x], (structured_dot(matrix, x.T).T, "gather"))
    right(pair, g, rows(5))
    np.testing.assert_array_equal(g(rows(5)), rows(5) * [1.0, 2.0, 3.0])


def test_what_is_zero_but_for_rounding_is_not_judged_by_its_digits(pair):
    c = engine.shared(np.float64(0), name="c")
    centred = x + c
    centred = centred - centred.mean(axis=1, keepdims=True)
    gradient = T.grad(T.exp(centred).sum(axis=1).mean(), c)
    f = pair.function([x], gradient, **FAST)
    report = check(pair, f, rows(300, 7))
    assert report.ok, str(report)
    assert max(c.limit for c in report.comparisons) > 1e6 * 16, "the case is not what it should be"
    # The excuse holds for nothing else.
    assert wrong(check(pair, pair.function([x], x.std(axis=0), **FAST), rows(300, 7)))


def test_sums_that_cancel_are_not_judged_by_their_digits(pair):
    terms = x * T.constant(1 / 3)
    f = pair.function([x], [(terms.sum(), "sum"), terms.mean()], **FAST)
    whole = np.round(rows(1000) * 10)  # whole numbers, which are not disturbed
    for value in (rows(1000) * 1e6, whole):
        right(pair, f, value - value.mean(axis=0).round())
        right(pair, f, np.concatenate([value, -value[::-1]]))


def test_random_runs_stay_within_the_limits_and_wrong_weights_never(trio):
    dtype = "float32"
    x = T.fmatrix("x")
    w = engine.shared(rows(3, 4, dtype, seed=1), name="w")
    v = engine.shared(np.zeros((3, 4), dtype), name="v")
    loss = T.tanh(x.dot(w)).sum(axis=1).mean()
    new = np.float32(0.9) * v - np.float32(0.1) * T.grad(loss, w)
    f = trio.function(
        [x],
        [loss, (T.exp(x.dot(w)), "gather"), (x.sum(axis=0), "sum"), (x**2).mean(axis=0)],
        updates=[(v, new), (w, w + new)],
    )

    def with_equal_weights(function, *args, **kwargs):
        results = function(*args, **kwargs)
        counts = function.rows
        parts = np.split(args[0], np.cumsum(counts)[:-1])
        results[3] = np.mean([(p**2).mean(axis=0) for p in parts if len(p)], axis=0).astype(dtype)
        return results

    unweighted = Tampered(f, with_equal_weights)
    random = np.random.RandomState(3)
    worst = {"serial": 0.0, "before": 0.0}
    for _ in range(100 if ALL else 25):
        count = int(random.choice([1, 2, 4, 5, 7, 8, 31, 100, 400]))
        value = random.standard_normal((count, 3)) * random.choice([0.01, 1.0, 3.0])
        value = (value + random.choice([0.0, 1.0])).astype(dtype)
        report = verify(f, trio, (value,), {}, num_slices=(2,))
        assert report.ok, str(report)
        for comparison in report.comparisons:
            part = comparison.severity
            worst[comparison.against] = max(worst[comparison.against], part)
        if count % 3 and 1 < count < 32 and np.ptp([r for r in report.rows if r]):
            report = verify(unweighted, trio, (value,), {}, num_slices=())
            assert "output 3" in wrong(report), f"{count} rows: {report}"
    # A wide margin, but one that means something.
    assert 0.005 < worst["serial"] < 0.5
    assert worst["before"] == 0.0


def test_differences_are_counted_in_ulps_of_the_largest_number():
    for dtype in ("float16", "float32", "float64"):
        one = np.asarray(1.0, dtype)
        found = measure(np.nextafter(one, np.asarray(2, dtype)), one)
        assert (found.ulps, found.index) == (1.0, ())
        assert measure(np.asarray(-0.0, dtype), np.asarray(0.0, dtype)).ulps == 0
    found = measure(np.array([1.0, 2.0, 1e-20]), np.array([1.0, 2.0, 3e-20]))
    assert found.index == (2,)
    assert found.ulps == pytest.approx(2e-20 / 2 / 2.220446049250313e-16)
    assert measure(np.array([1e-20]), np.array([3e-20]), scale=2.0).ulps == found.ulps


def test_differences_of_what_is_no_number_or_no_float():
    nan, inf = np.nan, np.inf
    for got, expected, error in (
        ([nan, inf, -inf, 1.0], [nan, inf, -inf, 1.0], 0),
        ([nan], [1.0], inf),
        ([1.0], [nan], inf),
        ([inf], [-inf], inf),
        ([1.0], [inf], inf),
        ([nan], [inf], inf),
        (np.zeros(0, "float32"), np.zeros(0, "float32"), 0),
        ([True], [False], inf),
        (np.zeros(2), np.zeros(2, "float32"), inf),
        ([1 + 1j], [1 + 1j], 0),
        (5e-324, 0.0, 1.0),
    ):
        assert measure(np.array(got), np.array(expected)).ulps == error, (got, expected)
    assert measure(np.array([1 + 2j]), np.array([1 + 1j])).ulps > 1e15
    assert measure(np.zeros(2), np.zeros(3)).expected == "float64 of shape (3,)"
    found = measure(np.int64([2**62, 1]), np.int64([2**62, 4]))
    assert (found.ulps, found.index) == (inf, (1,))


def test_parts_are_combined_by_their_weights():
    parts = [np.array([1.0, 4.0]), np.array([4.0, 1.0])]
    for op, expected in (
        ("avg", [2.0, 3.0]),
        ("sum", [5.0, 5.0]),
        ("prod", [4.0, 4.0]),
        ("max", [4.0, 4.0]),
        ("min", [1.0, 1.0]),
        ("gather", [1.0, 4.0, 4.0, 1.0]),
        ("last", [4.0, 1.0]),
    ):
        np.testing.assert_array_equal(combine(op, parts, [2, 1]), expected)
    small = [np.int8([100]), np.int8([100])]
    assert combine("sum", small, [1, 1]).dtype == np.int8
    np.testing.assert_array_equal(combine("sum", small, [1, 1]), np.add(*small))


def test_wrong_settings_are_refused_before_anything_runs(pair):
    x = T.dmatrix("x")
    f = pair.function([x], (x.sum(), "sum"), **FAST)
    for name, values in {
        "num_slices": (range(10**12), [2, 0], "23", 1.5, None),
        "limit": ("much", float("nan"), -1),
    }.items():
        for value in values:
            with pytest.raises((InputValueError, InputTypeError), match=f"{name}: got"):
                f.verify(np.ones((4, 2)), **{name: value})
    assert f.verify(np.ones((4, 2)), num_slices=np.int64(2), limit=np.float32(64)).ok
