"""Reductions over ranks in the middle of a graph, against NumPy on all rows."""

from __future__ import annotations

import functools
import os
import signal

import numpy as np
import pytest
from _features import UNPROVED

from synk_core import Runtime, in_graph
from synk_core._graph.reduce_op import AllReduce
from synk_core._plan.rows import split_rows
from synk_core.exceptions import InputValueError, OpError, SpecError, WorkerDied, WorkerFailed
from synk_testing.engine import NAME, T, as_op, engine, ifelse

x = T.dmatrix("x")

COUNTS = (11, 4, 2, 1)


def data(rows, seed=0):
    return np.random.RandomState(seed).randn(rows, 3)


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


def test_many_reductions_meet_in_one_order(trio):
    """Of one shape, most of them independent: any two could be taken for each other."""
    parts = [in_graph.all_reduce((x * (k + 1)).sum(axis=0)) for k in range(6)]
    nested = [in_graph.all_reduce((x - part).sum(axis=0)) for part in parts[::-1]]
    f = trio.function([x], [*parts[::2], *nested, *parts[1::2]])
    value = data(7)
    total = value.sum(axis=0)
    factors = [1, 3, 5, *(1 - 7 * k for k in (6, 5, 4, 3, 2, 1)), 2, 4, 6]
    for got, factor in zip(f(value), factors):
        np.testing.assert_allclose(got, factor * total, rtol=1e-12)


def test_updates_are_equal_on_all_ranks(trio):
    running = engine.shared(np.ones(3), name="running")
    steps = engine.shared(np.int64(0), name="steps")
    own = engine.shared(np.zeros(3), name="own")
    mean = in_graph.all_reduce(x.mean(axis=0), "avg")
    updates = [(running, 0.9 * running + 0.1 * mean), (steps, steps + 1), (own, x.mean(axis=0))]
    f = trio.function([x], mean, updates=updates)
    trio.distribute()
    expected = np.ones(3)
    for rows in COUNTS:
        value = data(rows)
        f(value)
        expected = 0.9 * expected + 0.1 * value.mean(axis=0)
        np.testing.assert_allclose(trio.collectives.gather(running), [expected] * 3, rtol=1e-13)
    assert [int(n) for n in trio.collectives.gather(steps)] == [len(COUNTS)] * 3
    np.testing.assert_array_equal(trio.collectives.gather(own)[0], data(1)[0])


def test_slices_are_reduced_together(trio):
    running = engine.shared(np.ones(3), name="running")
    mean = in_graph.all_reduce(x.mean(axis=0), "avg")
    f = trio.function([x], (x - mean, "gather"), updates=[(running, running + mean)])
    trio.distribute()
    held = np.ones(3)
    for rows in (11, 5, 2):
        value = data(rows)
        shares = split_rows(rows, trio.size)
        slices = [[(a + i, a + j) for i, j in split_rows(b - a, 2)] for a, b in shares]
        expected = value.copy()
        for pieces in zip(*slices):
            together = np.concatenate([value[a:b] for a, b in pieces])
            if len(together):
                for a, b in pieces:
                    expected[a:b] -= together.mean(axis=0)
                held = held + len(together) / rows * together.mean(axis=0)
        np.testing.assert_allclose(f(value, num_slices=2), expected, atol=1e-14)
        np.testing.assert_allclose(trio.collectives.gather(running), [held] * 3, rtol=1e-13)


def test_rows_of_sliceable_variables(trio):
    s = engine.shared(np.zeros((6, 3)), name="s")
    running = engine.shared(np.zeros(3), name="running")
    mean = in_graph.all_reduce(s.mean(axis=0), "avg")
    f = trio.function([], mean, updates=[(running, mean)], sliceable_shareds=[s])
    trio.distribute()
    value = data(18)
    trio.collectives.scatter(s, value)
    expected = value[[6, 12, 13]].mean(axis=0)
    np.testing.assert_allclose(f(batch_s=[[], [0], [0, 1]]), expected, rtol=1e-13)
    np.testing.assert_allclose(trio.collectives.gather(running), [expected] * 3, rtol=1e-13)


def test_functions_without_rows(trio):
    s = engine.shared(np.arange(3.0), name="s")
    f = trio.function([], [(in_graph.all_reduce(s), "max"), in_graph.all_reduce(s, "avg")])
    np.testing.assert_allclose(f(), [np.arange(3.0) * 3, np.arange(3.0)], rtol=1e-15)
    g = trio.function([x], in_graph.all_reduce(x.sum(axis=0)))
    np.testing.assert_array_equal(g(np.zeros((0, 3))), np.zeros(3))


def test_dtypes(pair):
    for dtype in ("float32", "complex128", "int16", "uint8"):
        x = T.TensorType(dtype, (False, False))("x")
        y = in_graph.all_reduce(x.sum(axis=0, dtype=dtype))
        assert y.dtype == dtype
        value = (data(5) * 3).astype(dtype)
        f = pair.function([x], (y, "max" if dtype[0] in "iu" else "avg"))
        np.testing.assert_allclose(f(value), value.sum(axis=0, dtype=dtype), rtol=1e-5)


def test_numbers_and_nothing_are_reduced_to_arrays(pair):
    """Compiled code takes no NumPy scalar in their place. float16 has its range, not a factor's."""
    for shape, dtype in (((), "float64"), ((0,), "float64"), ((), "float16")):
        kind = T.TensorType(dtype, (False,) * len(shape))

        @as_op([kind], [kind])
        def checked(value, dtype=dtype):
            assert type(value) is np.ndarray
            assert value.dtype == dtype
            return value

        x = T.TensorType(dtype, (False,) * (1 + len(shape)))("x")
        for power in (-1, 0, 1):
            reduced = AllReduce("sum", "mean", power)(x.sum(axis=0, dtype=dtype))[0]
            f = pair.function([x], (checked(reduced), "max"), mode="FAST_COMPILE", **UNPROVED)
            wanted = np.full(shape, 4 * 2.0**-power)
            np.testing.assert_array_equal(f(np.ones((4, *shape), dtype)), wanted)
    large = T.TensorType("float16", (False,))("large")
    half_of_the_sum = AllReduce("sum", "sum", 1)(large)[0]
    f = pair.function([large], (half_of_the_sum, "max"), **UNPROVED)
    np.testing.assert_array_equal(f(np.full(2, 40_000, np.float16)), np.full(1, 40_000, np.float16))


def test_constants_are_not_folded(pair, recwarn):
    f = pair.function([x], (x.sum() * 0 + in_graph.all_reduce(T.constant(2.0)), "max"))
    assert f(data(4)) == 4


def touchy(act):
    @as_op([T.dmatrix], [T.dmatrix])
    def behave(value):
        if value.max() > 100:
            act()
        return value * 1

    return behave


def fail():
    raise ValueError("cannot stand it")


def test_a_rank_that_fails_lets_the_others_go(trio):
    bad = touchy(fail)
    before = trio.function([x], in_graph.all_reduce(bad(x).sum(axis=0)), name="before")
    h = bad(x - in_graph.all_reduce(x.mean(axis=0), "avg"))
    h = h - in_graph.all_reduce(h.mean(axis=0), "avg")
    between = trio.function([x], h.sum(axis=0), name="between")
    good = data(9)
    for f, num_slices, wanted in ((before, 2, good.sum(axis=0)), (between, 1, np.zeros(3))):
        for failing in (0, 2):
            spoiled = good.copy()
            spoiled[split_rows(9, 3)[failing][0]] = 1e6
            error = WorkerFailed if failing else ValueError
            with pytest.raises(error, match="cannot stand it") as caught:
                f(spoiled, num_slices=num_slices)
            if failing:
                assert caught.value.rank == failing
                assert "in fail" in caught.value.traceback
            np.testing.assert_allclose(f(good), wanted, atol=1e-12)


def test_shapes_that_differ(pair):
    f = pair.function([x], in_graph.all_reduce(x).sum())
    with pytest.raises(InputValueError, match=r"(?s)do not fit together.*\(2, 3\)"):
        f(data(3))
    assert np.isfinite(f(data(4)))


def test_a_worker_that_dies():
    die = touchy(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with Runtime(2) as runtime:
        f = runtime.function([x], in_graph.all_reduce(die(x).sum(axis=0)), **UNPROVED)
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
    with pytest.raises(OpError, match="got cost 'median'"):
        in_graph.all_gather(x, cost="median")
    for make in (in_graph.all_gather, in_graph.positions):
        with pytest.raises(SpecError, match="a scalar, which has no rows"):
            make(x.sum())
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


@pytest.mark.feature("proof", "stats")
def test_check_verify_and_stats(pair):
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
        name="normalized",
    )
    pair.distribute()
    verdicts = pair.check(f)
    assert [verdict.verdict for verdict in verdicts] == ["exact"] * 4
    assert "in-graph all_reduce" in verdicts[0].reason
    for rows in (9, 1):
        report = f.verify(data(rows))
        assert report.ok, str(report)
        assert "not run in slices" in str(report)
    f(data(4))
    assert "normalized" in str(pair.stats())


def test_verdicts_of_check(pair, recwarn):
    for make, verdict in (
        (lambda x: in_graph.all_reduce(x.mean(axis=0), "sum").sum(), "wrong"),
        (lambda x: in_graph.all_reduce(x.sum(axis=0), "avg").sum(), "wrong"),
        (lambda x: in_graph.all_reduce(T.constant(1.0)) + 0 * x.sum(), "wrong"),
        (lambda x: in_graph.all_reduce(x.max(axis=0), "avg").sum(), "unknown"),
        (lambda x: in_graph.all_reduce(x.sum(axis=0)).sum(), "exact"),
        (lambda x: (x / in_graph.all_reduce(x.shape[0])).sum() * 0, "exact"),
        (lambda x: in_graph.all_reduce(T.constant(1.0), "avg") + 0 * x.sum(), "exact"),
        (lambda x: T.tanh(T.dot(x, in_graph.all_gather(x).T)).max(axis=1).mean(), "exact"),
        (lambda x: (x / in_graph.all_gather(x).shape[0]).sum(), "wrong"),
        (lambda x: in_graph.all_gather(x.sum(axis=0)).sum() + 0 * x.sum(), "unknown"),
        (lambda x: in_graph.all_gather(x[::-1])[0].sum() + 0 * x.sum(), "unknown"),
    ):
        (found,) = pair.check(pair.function([x], make(x)))
        assert found.verdict == verdict, found.reason


def test_ctrl_c_while_ranks_reduce_is_raised_right_after(pair, monkeypatch):
    """A signal does nothing in a collective, and does not come again."""
    s = engine.shared(np.zeros(3), name="s")
    f = pair.function([x], updates=[(s, s + in_graph.all_reduce(x.sum(axis=0)))])
    value = data(4)
    f(value)
    comm, rank = pair._rank.comm, pair._rank
    plain = comm.all_reduce

    def struck(*arguments, **settings):
        result = plain(*arguments, **settings)
        signal.raise_signal(signal.SIGINT)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(comm, "all_reduce", struck)
        with pytest.raises(KeyboardInterrupt):
            f(value)
        assert rank.flight.interrupted == rank.serial
    # It was not waited for the end: nothing of the call is left.
    for count in (1, 2):
        np.testing.assert_allclose(pair.collectives.gather(s), [count * value.sum(axis=0)] * 2)
        f(value)


def test_gathered_rows_and_positions(runtime, monkeypatch):
    monkeypatch.setattr(engine.config, "on_opt_error", "raise")
    flags = T.TensorType("bool", (False,))("flags")
    everything = in_graph.all_gather(x)
    outputs = [
        (T.dot(x, everything.T), "gather"),
        (everything, None),
        (in_graph.positions(x), "gather"),
        (in_graph.all_gather(flags).astype("int8"), "max"),
    ]
    f = runtime.function([x, flags], outputs)
    for rows in COUNTS:
        value, flag = data(rows), np.arange(rows) % 3 == 0
        expected = [value @ value.T, value, np.arange(rows), flag]
        for got, wanted in zip(f(value, flag), expected):
            np.testing.assert_allclose(got, wanted, atol=1e-14)
        for got, wanted in zip(f.as_theano(value, flag), expected):
            np.testing.assert_allclose(got, wanted, atol=1e-14)
    g = runtime.function([x], (in_graph.all_gather(x).sum(axis=0), "max"))
    np.testing.assert_array_equal(g(np.zeros((0, 3))), np.zeros(3))


def test_slices_are_gathered_together(trio):
    f = trio.function([x], [(in_graph.all_gather(x).sum(axis=0), "avg"), (x, "gather")])
    value = data(5)  # shares of 2, 2 and 1 rows
    got, _ = f(value, num_slices=2)
    first, second = value[[0, 2, 4]].sum(axis=0), value[[1, 3]].sum(axis=0)
    np.testing.assert_allclose(got, (3 * first + 2 * second) / 5, rtol=1e-13)


labels = T.lvector("labels")


def of_statistics(z, gather, positions, reduce):
    total, mean = reduce(T.sqr(z).sum(axis=0), "sum"), reduce(T.tanh(z).mean(axis=0), "avg")
    return (z * T.sin(total)).sum(axis=1) * mean.sum()


def in_batch_negatives(z, gather, positions, reduce):
    logits = T.dot(z, gather(T.tanh(z * 2)).T)
    top = logits.max(axis=1, keepdims=True)
    lse = T.log(T.exp(logits - top).sum(axis=1)) + top[:, 0]
    return lse - logits[T.arange(z.shape[0]), positions(z)]


def hardest_triplets(z, gather, positions, reduce):
    z_all, same = gather(z), T.eq(labels.dimshuffle(0, "x"), gather(labels))
    distance = T.sqr(z.dimshuffle(0, "x", 1) - z_all).sum(axis=2)
    farthest = (distance * same).max(axis=1)
    nearest = (distance + 1e6 * same).min(axis=1)
    return T.maximum(farthest - nearest + 1.0, 0.0)


def whole_on_every_rank(z, gather, positions, reduce):
    z_all = gather(z)
    return T.sqr(z_all.dimshuffle(0, "x", 1) - z_all).sum(axis=2).mean() + 0 * z[:, 0]


@pytest.mark.parametrize(
    ("loss", "cost"),
    [
        *((of_statistics, cost) for cost in ("mean", "sum")),
        *((in_batch_negatives, cost) for cost in ("mean", "sum")),
        *((hardest_triplets, cost) for cost in ("mean", "sum")),
        (whole_on_every_rank, "mean"),  # it is no sum of the ranks' costs
    ],
)
def test_gradients_through_exchanged_values(pair, trio, loss, cost):
    W, v = engine.shared(np.random.RandomState(1).randn(3, 2)), np.random.RandomState(3).randn(3, 2)
    settings = {"on_unused_input": "ignore", "mode": "FAST_COMPILE"}

    def outputs(*exchanges):
        value = getattr(loss(T.tanh(T.dot(x, W)), *exchanges), cost)()
        gradient = T.grad(value, W)
        twice = [] if loss is hardest_triplets else [T.grad((gradient * v).sum(), W)]
        return [value, gradient, *twice]

    serial = outputs(lambda z: z, lambda z: T.arange(z.shape[0]), lambda z, op: z)
    plain = engine.function([x, labels], serial, **settings)
    gather = functools.partial(in_graph.all_gather, cost=cost)
    reduce = functools.partial(in_graph.all_reduce, cost=cost)
    ops = {"mean": "avg", "sum": "sum"}
    for runtime in (pair, trio):
        made = [(output, ops[cost]) for output in outputs(gather, in_graph.positions, reduce)]
        f = runtime.function([x, labels], made, **settings)
        for rows in (5, 12, 2):
            value, classes = data(rows), np.arange(rows) % 3
            for got, wanted in zip(f(value, classes), plain(value, classes)):
                np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-11)
