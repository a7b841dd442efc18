"""Reductions over ranks in the middle of a graph, against NumPy on all rows."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from synk_core import Runtime, in_graph
from synk_core._graph.reduce_op import AllReduce, in_one_order, reductions_of
from synk_core._graph.transfer.flat import flatten, rebuild
from synk_core._plan.rows import split_rows
from synk_core._rank.in_graph import rounds_of
from synk_core.exceptions import InputValueError, OpError, SpecError, WorkerDied, WorkerFailed
from synk_testing.engine import NAME, T, as_op, engine, ifelse

x = T.dmatrix("x")

COUNTS = (11, 4, 2, 1)


def data(rows, seed=0):
    return np.random.RandomState(seed).randn(rows, 3)


def values_of(runtime, variable):
    return [runtime.collectives.get_value(rank, variable) for rank in range(runtime.size)]


def test_rows_of_all_ranks(runtime):
    total = in_graph.all_reduce(x.sum(axis=0))
    mean = in_graph.all_reduce(x.mean(axis=0), "avg")
    count = in_graph.all_reduce(x.shape[0])
    f = runtime.function([x], [(x - mean, "gather"), total, (count, "max"), (mean, "min")])
    for rows in COUNTS:
        value = data(rows)
        centred, got_total, got_count, got_mean = f(value)
        np.testing.assert_allclose(centred, value - value.mean(axis=0), atol=1e-14)
        np.testing.assert_allclose(got_total, value.sum(axis=0), atol=1e-13)
        np.testing.assert_allclose(got_mean, value.mean(axis=0), atol=1e-14)
        assert got_count == rows
        np.testing.assert_array_equal(f.as_theano(value)[1], value.sum(axis=0))


def numerical_gradient(cost, at, step=1e-6):
    gradient = np.zeros_like(at)
    for place in np.ndindex(*at.shape):
        for sign in (1, -1):
            moved = at.copy()
            moved[place] += sign * step
            gradient[place] += sign * cost(moved) / (2 * step)
    return gradient


@pytest.mark.parametrize(
    ("op", "cost"),
    [
        ("sum", "mean"),
        ("avg", "sum"),
        # Their adjoints are the operation itself.
        pytest.param("sum", "sum", marks=pytest.mark.nightly),
        pytest.param("avg", "mean", marks=pytest.mark.nightly),
    ],
)
def test_gradients_and_second_derivatives(runtime, op, cost):
    """Combined over ranks as costs are, they are those of the whole cost."""
    reduce_rows = {"sum": "sum", "avg": "mean"}[op]
    reduce_costs = {"sum": "sum", "mean": "mean"}[cost]
    combine = {"sum": "sum", "mean": "avg"}[cost]
    x, v = T.dmatrix("x"), np.random.RandomState(3).randn(3, 2)
    W = engine.shared(np.random.RandomState(1).randn(3, 2), name="W")

    def whole(weights, value):
        h = np.tanh(value @ weights)
        statistic = getattr(h**2, reduce_rows)(axis=0)
        return getattr((h * np.sin(statistic)).sum(axis=1) + statistic.sum(), reduce_costs)()

    h = T.tanh(T.dot(x, W))
    statistic = in_graph.all_reduce(getattr(T.sqr(h), reduce_rows)(axis=0), op, cost=cost)
    own = getattr((h * T.sin(statistic)).sum(axis=1) + statistic.sum(), reduce_costs)()
    gradient = T.grad(own, W)
    hessian_v = T.grad((gradient * v).sum(), W)
    f = runtime.function([x], [(own, combine), (gradient, combine), (hessian_v, combine)])
    for rows in COUNTS:
        value = data(rows)
        got_cost, got, got_hv = f(value)
        at = W.get_value()
        np.testing.assert_allclose(got_cost, whole(at, value), rtol=1e-12)
        expected = numerical_gradient(lambda w, rows=value: whole(w, rows), at)
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)
        serial = f.as_theano(value)
        np.testing.assert_allclose(got, serial[1], rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(got_hv, serial[2], rtol=1e-11, atol=1e-11)
    # Without the way back through it, it would be another one: the comparison can fail.
    blind = T.grad(own, W, consider_constant=[statistic]).eval({x: value})
    assert abs(got - blind).max() > 1e-3


def test_the_adjoint_of_the_adjoint_is_the_operation():
    for op in ("sum", "avg"):
        for cost in ("mean", "sum"):
            adjoint = AllReduce(op, cost)._adjoint()
            assert adjoint._adjoint() == AllReduce(op, cost)
            assert adjoint.power == {("sum", "mean"): -1, ("avg", "sum"): 1}.get((op, cost), 0)


def test_directional_derivative(pair):
    x, t = T.dmatrix("x"), T.dmatrix("t")
    y = T.exp(in_graph.all_reduce(x.mean(axis=0), "avg"))
    f = pair.function([x, t], engine.gradient.Rop(y, x, t))
    value, direction = data(5), data(5, seed=1)
    expected = np.exp(value.mean(axis=0)) * direction.mean(axis=0)
    np.testing.assert_allclose(f(value, direction), expected, rtol=1e-12)


def test_many_reductions_meet_in_one_order(runtime):
    """Of one shape, most of them independent: any two could be taken for each other."""
    parts = [in_graph.all_reduce((x * (k + 1)).sum(axis=0)) for k in range(12)]
    nested = [in_graph.all_reduce((x - part).sum(axis=0)) for part in parts[::-1]]
    f = runtime.function([x], [*parts[::2], *nested, *parts[1::2]])
    value = data(7)
    total = value.sum(axis=0)
    expected = [total * (k + 1) for k in [*range(0, 12, 2)]]
    expected += [total - 7 * total * (k + 1) for k in range(11, -1, -1)]
    expected += [total * (k + 1) for k in range(1, 12, 2)]
    for got, wanted in zip(f(value), expected):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_each_reduction_depends_on_the_one_before():
    parts = [in_graph.all_reduce((x * k).sum()) for k in (1, 2, 3)]
    ordered = in_one_order(engine.function([x], parts))
    first, second, third = reductions_of(rebuild(flatten(ordered)))
    assert len(first.inputs) == 1
    assert second.inputs[1:] == [first.outputs[1]]
    assert third.inputs[1:] == [second.outputs[1]]
    np.testing.assert_allclose(ordered(np.ones((2, 2))), [4, 8, 12])


def test_updates_are_equal_on_all_ranks(runtime):
    """Also where a rank has no rows; what depends on a rank's own rows stays its own."""
    running = engine.shared(np.ones(3), name="running")
    steps = engine.shared(np.int64(0), name="steps")
    own = engine.shared(np.zeros(3), name="own")
    mean = in_graph.all_reduce(x.mean(axis=0), "avg")
    updates = [(running, 0.9 * running + 0.1 * mean), (steps, steps + 1), (own, x.mean(axis=0))]
    f = runtime.function([x], mean, updates=updates)
    runtime.distribute()
    expected = np.ones(3)
    for number, rows in enumerate(COUNTS, 1):
        value = data(rows)
        f(value)
        expected = 0.9 * expected + 0.1 * value.mean(axis=0)
        for got in values_of(runtime, running):
            np.testing.assert_allclose(got, expected, rtol=1e-13)
        assert [int(n) for n in values_of(runtime, steps)] == [number] * runtime.size
    np.testing.assert_array_equal(values_of(runtime, own)[0], data(1)[0])


def test_slices_are_reduced_together(runtime):
    for rows in (11, 5, 2):
        running = engine.shared(np.ones(3), name="running")
        mean = in_graph.all_reduce(x.mean(axis=0), "avg")
        f = runtime.function([x], (x - mean, "gather"), updates=[(running, running + mean)])
        runtime.distribute()
        value = data(rows)
        centred = f(value, num_slices=2)
        shares = split_rows(rows, runtime.size)
        slices = [[(a + i, a + j) for i, j in split_rows(b - a, 2)] for a, b in shares]
        expected, update = value.copy(), np.zeros(3)
        for pieces in zip(*slices):
            together = np.concatenate([value[a:b] for a, b in pieces])
            if len(together):
                for a, b in pieces:
                    expected[a:b] -= together.mean(axis=0)
                update += len(together) / rows * together.mean(axis=0)
        np.testing.assert_allclose(centred, expected, atol=1e-14)
        for got in values_of(runtime, running):
            np.testing.assert_allclose(got, 1 + update, rtol=1e-13)


def test_rows_of_sliceable_variables(runtime):
    """The master may be the one without rows."""
    s = engine.shared(np.zeros((6, 3)), name="s")
    running = engine.shared(np.zeros(3), name="running")
    mean = in_graph.all_reduce(s.mean(axis=0), "avg")
    f = runtime.function([], mean, updates=[(running, mean)], sliceable_shareds=[s])
    runtime.distribute()
    value = data(6 * runtime.size)
    for rank in range(runtime.size):
        runtime.collectives.set_value(rank, s, value[6 * rank : 6 * rank + 6])
    chosen = [list(range(rank)) for rank in range(runtime.size)]
    if runtime.size > 1:
        picked = [6 * rank + row for rank in range(runtime.size) for row in chosen[rank]]
        expected = value[picked].mean(axis=0)
        np.testing.assert_allclose(f(batch_s=chosen), expected, rtol=1e-13)
        for got in values_of(runtime, running):
            np.testing.assert_allclose(got, expected, rtol=1e-13)


def test_a_function_without_rows(runtime):
    s = engine.shared(np.arange(3.0), name="s")
    f = runtime.function([], [(in_graph.all_reduce(s), "max"), in_graph.all_reduce(s, "avg")])
    total, mean = f()
    np.testing.assert_array_equal(total, np.arange(3.0) * runtime.size)
    np.testing.assert_allclose(mean, np.arange(3.0), rtol=1e-15)


def test_no_rows_at_all(runtime):
    f = runtime.function([x], in_graph.all_reduce(x.sum(axis=0)))
    np.testing.assert_array_equal(f(np.zeros((0, 3))), np.zeros(3))


def test_dtypes(pair):
    for dtype in ("float32", "complex128", "int16", "uint8"):
        x = T.TensorType(dtype, (False, False))("x")
        y = in_graph.all_reduce(x.sum(axis=0, dtype=dtype))
        assert y.dtype == dtype
        value = (data(5) * 3).astype(dtype)
        np.testing.assert_allclose(pair.function([x], (y, "max" if dtype[0] in "iu" else "avg"))(
            value), value.sum(axis=0, dtype=dtype), rtol=1e-5)  # fmt: skip


@pytest.mark.c_code
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((), "float64"),
        pytest.param((0,), "float64", marks=pytest.mark.nightly),
        pytest.param((), "float16", marks=pytest.mark.nightly),
    ],
)
def test_gradients_of_a_number_and_of_nothing_are_arrays(pair, shape, dtype):
    """Compiled code takes no NumPy scalar in their place. float16 has its range, not a factor's."""
    for op, cost, combine in (("sum", "mean", "avg"), ("avg", "sum", "sum")):
        x = T.TensorType(dtype, (False,) * (1 + len(shape)))("x")
        w = engine.shared(np.full(shape, 2, dtype), name="w")
        statistic = getattr(T.sqr(x * w), {"sum": "sum", "avg": "mean"}[op])(axis=0, dtype=dtype)
        y = x / in_graph.all_reduce(statistic, op, cost=cost)
        loss = y.sum(dtype=dtype) / (5 if cost == "sum" else T.cast(x.shape[0], dtype))
        outputs = [T.cast(loss, dtype), T.grad(T.cast(loss, dtype), w)]
        value = np.arange(1, 6).reshape(5, *[1] * len(shape)) * np.ones((5, *shape))
        mode = engine.Mode("cvm", "fast_compile")
        expected = engine.function([x], outputs, mode=mode)(value.astype(dtype))
        f = pair.function([x], [(output, combine) for output in outputs], mode=mode)
        for got, wanted in zip(f(value.astype(dtype)), expected):
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_allclose(got, wanted, rtol=1e-2 if dtype == "float16" else 1e-5)
    large = T.TensorType("float16", (False,))("large")
    half_of_the_sum = AllReduce("sum", "sum", 1)(large)[0]
    f = pair.function([large], (half_of_the_sum, "max"))
    np.testing.assert_array_equal(f(np.full(2, 40_000, np.float16)), np.full(1, 40_000, np.float16))


def test_constants_are_not_folded(pair, recwarn):
    f = pair.function([x], (x.sum() * 0 + in_graph.all_reduce(T.constant(2.0)), "max"))
    assert f(data(4)) == 4


def test_rounds():
    assert rounds_of([4, 3, 1], 2) == [(2, 2, 1), (2, 1, 0)]
    assert rounds_of([1, 1, 0], 3) == [(1, 1, 0)]
    assert rounds_of([0, 0], 3) == []


def touchy(act):
    @as_op([T.dmatrix], [T.dmatrix])
    def behave(value):
        if value.max() > 100:
            act()
        return value * 1

    return behave


def fail():
    raise ValueError("cannot stand it")


@pytest.mark.parametrize(
    "where",
    ["between", *(pytest.param(w, marks=pytest.mark.nightly) for w in ("before", "after"))],
)
def test_a_rank_that_fails_lets_the_others_go(runtime, where):
    s = engine.shared(np.zeros(()), name="s")
    bad = touchy(fail)
    h = bad(x) if where == "before" else x
    h = h - in_graph.all_reduce(h.mean(axis=0), "avg")
    h = bad(h) if where == "between" else h
    h = h - in_graph.all_reduce(h.mean(axis=0), "avg")
    h = bad(h) if where == "after" else h
    f = runtime.function([x], (h.sum(), "sum"), updates=[(s, s + 1)], name="touchy")
    good = data(9)
    for failing in {0, runtime.size - 1}:
        spoiled = good.copy()
        spoiled[split_rows(9, runtime.size)[failing][0]] = 1e6
        expected = WorkerFailed if failing else ValueError
        with pytest.raises(expected, match="cannot stand it") as caught:
            f(spoiled)
        if failing:
            assert caught.value.rank == failing
            assert "in fail" in caught.value.traceback
        assert abs(f(good)) < 1e-12


def test_a_rank_that_fails_in_a_slice(pair):
    h = touchy(fail)(x)
    f = pair.function([x], in_graph.all_reduce(h.sum(axis=0)))
    spoiled = data(8)
    spoiled[-1] = 1e6
    with pytest.raises(WorkerFailed, match="cannot stand it"):
        f(spoiled, num_slices=2)
    np.testing.assert_allclose(f(data(8), num_slices=1), data(8).sum(axis=0), rtol=1e-13)


def test_shapes_that_differ(pair):
    f = pair.function([x], in_graph.all_reduce(x).sum())
    with pytest.raises(InputValueError, match=r"(?s)do not fit together.*\(2, 3\)"):
        f(data(3))
    assert np.isfinite(f(data(4)))


def test_a_worker_that_dies():
    die = touchy(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with Runtime(2) as runtime:
        f = runtime.function([x], in_graph.all_reduce(die(x).sum(axis=0)))
        spoiled = data(4)
        spoiled[-1] = 1e6
        with pytest.raises(WorkerDied, match="SIGKILL"):
            f(spoiled)


def test_refusals(pair):
    for error, words, arguments, options in (
        (OpError, "got reduce op 'max'", (x, "max"), {}),
        (OpError, "got cost 'median'", (x,), {"cost": "median"}),
        (SpecError, "'avg' for dtype int64", (x.shape[0], "avg"), {}),
        (SpecError, "'sum' for dtype bool", (T.TensorType("bool", ())(),), {}),
    ):
        with pytest.raises(error, match=words):
            in_graph.all_reduce(*arguments, **options)
    scanned, _ = engine.scan(in_graph.all_reduce, sequences=[x])
    twice, _ = engine.scan(lambda row: engine.scan(in_graph.all_reduce, [row])[0].sum(), [x])
    total = in_graph.all_reduce(x.sum())
    for words, output, options in (
        ("move it out of there", scanned.sum(), {}),
        ("move it out of there", twice.sum(), {}),
        (rf"{NAME}\.tensor\.switch", ifelse(T.gt(total, 0), total, -total), {}),
        ("use another mode", total, {"mode": "DebugMode"}),
    ):
        with pytest.raises(SpecError, match=words):
            pair.function([x], output, **options)
    for mode in ("FAST_COMPILE", engine.Mode("c|py", "fast_run"), engine.Mode("vm", None)):
        value = data(5)
        f = pair.function([x], [total, in_graph.all_reduce(T.sqr(x).sum())], mode=mode)
        np.testing.assert_allclose(f(value), [value.sum(), (value**2).sum()], rtol=1e-12)


def test_check_verify_lint_and_stats(pair):
    W = engine.shared(data(3), name="W")
    running = engine.shared(np.zeros(3), name="running")
    flat = engine.shared(np.zeros((3, 3)), name="flat")
    h = T.dot(x, W)
    mean = in_graph.all_reduce(h.mean(axis=0), "avg")
    loss = T.sqr(T.tanh(h - mean)).mean()
    f = pair.function(
        [x],
        [loss, (h - mean, "gather"), mean, (in_graph.all_reduce(x.sum(axis=0)), "max")],
        updates=[(running, 0.9 * running + 0.1 * mean), (flat, T.grad(loss, W))],
        name="f",
    )
    reader = pair.function([x], (x * running).sum(axis=1).mean(), name="reader")
    pair.distribute()
    assert [verdict.verdict for verdict in pair.check(f)] == ["exact"] * 4
    assert "in-graph all_reduce" in pair.check(f)[0].reason
    for rows in (9, 1):
        report = f.verify(data(rows))
        assert report.ok, str(report)
        assert "not run in slices" in str(report)
    f(data(5))
    reader(data(5))
    # The running average is equal on all ranks, the gradient of each rank's rows is not.
    found = [finding for finding in pair.lint() if reader.number in finding.functions]
    assert found == []
    assert "f" in str(pair.stats())


def test_what_check_says(pair, recwarn):
    for make, verdict in (
        (lambda x: in_graph.all_reduce(x.mean(axis=0), "sum").sum(), "wrong"),
        (lambda x: in_graph.all_reduce(x.sum(axis=0), "avg").sum(), "wrong"),
        (lambda x: in_graph.all_reduce(T.constant(1.0)) + 0 * x.sum(), "wrong"),
        (lambda x: in_graph.all_reduce(x.max(axis=0), "avg").sum(), "unknown"),
        (lambda x: in_graph.all_reduce(x.sum(axis=0)).sum(), "exact"),
        (lambda x: (x / in_graph.all_reduce(x.shape[0])).sum() * 0, "exact"),
        (lambda x: in_graph.all_reduce(T.constant(1.0), "avg") + 0 * x.sum(), "exact"),
    ):
        (found,) = pair.check(pair.function([x], make(x)))
        assert found.verdict == verdict, found.reason


def test_verify_can_fail(pair, recwarn):
    """A rank's own mean in place of all ranks' is found to be another result."""
    loss = abs(x - x.mean(axis=0)).mean()
    assert not pair.function([x], loss).verify(data(5)).ok
    mean = in_graph.all_reduce(x.mean(axis=0), "avg")
    assert pair.function([x], abs(x - mean).mean()).verify(data(5)).ok


def test_ctrl_c_while_ranks_reduce_is_heeded_right_after(monkeypatch):
    """A signal does nothing in a collective, and does not come again."""
    total = in_graph.all_reduce(x.sum(axis=0))
    with Runtime(2) as runtime:
        s = engine.shared(np.zeros(3), name="s")
        f = runtime.function([x], updates=[(s, s + total)])
        value = data(4)
        f(value)
        comm, rank = runtime._rank.comm, runtime._rank
        plain = comm.all_reduce

        def struck(*arguments, **settings):
            result = plain(*arguments, **settings)
            signal.raise_signal(signal.SIGINT)
            return result

        monkeypatch.setattr(comm, "all_reduce", struck)
        with pytest.raises(KeyboardInterrupt):
            f(value)
        assert rank.flight.interrupted == rank.serial
        monkeypatch.undo()
        # It was not waited for the end: nothing of the call is left.
        for each in values_of(runtime, s):
            np.testing.assert_allclose(each, value.sum(axis=0))
        f(value)
        for each in values_of(runtime, s):
            np.testing.assert_allclose(each, 2 * value.sum(axis=0))
