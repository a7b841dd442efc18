"""Several acts in one order: results, weights by the rows of a call, failures, figures."""

from __future__ import annotations

import numpy as np
import pytest
from _ops import FAST

from synk_core import Runtime
from synk_core.exceptions import InputTypeError, InputValueError, WorkerFailed
from synk_testing.engine import T, engine

x = T.vector("x")


@pytest.mark.parametrize("rows", [1, 5])
def test_a_training_step_is_one_order_and_exact(runtime, rows):
    x, y = T.matrix("x"), T.vector("y")
    w = engine.shared(np.ones(3), name="w")
    g = engine.shared(np.zeros(3), name="g")
    loss = T.sqr(x.dot(w) - y).mean()
    gradient = runtime.function(
        [x, y], loss, updates=[(g, T.grad(loss, w))], name="gradient", **FAST
    )
    update = runtime.function([], updates=[(w, w - 0.1 * g)], name="update", **FAST)
    random = np.random.RandomState(rows)
    xs, ys = runtime.data(random.randn(20, 3)), random.randn(20)
    expected = np.ones(3)
    for start in range(4):
        batch = slice(start, start + rows)
        loss, *nothing = runtime.step(
            gradient.delayed(xs, ys, batch=batch),
            runtime.delayed.all_reduce(g, weights=gradient),
            update,
        )
        error = xs[batch].dot(expected) - ys[batch]
        expected = expected - 0.1 * 2 * xs[batch].T.dot(error) / len(error)
        np.testing.assert_allclose(loss, (error**2).mean(), rtol=1e-13)
        assert nothing == [None, None]
        assert sum(gradient.rows) == rows
    np.testing.assert_allclose(
        runtime.collectives.gather(w), np.tile(expected, (runtime.size, 1)), rtol=1e-13
    )


def test_rows_are_those_of_when_the_act_was_made(trio):
    f = trio.function([x], (x * 2, "gather"), **FAST)
    values, part = np.arange(5.0), engine.shared(np.zeros(0), name="part")
    index, mask, listed = np.array([4, 0, 1]), np.arange(5) > 2, [2, 2, 3]
    low, high, room = np.array(1), np.array(4), bytearray([3, 1])
    chosen = [index, mask, listed, tuple(index), slice(low, high), memoryview(room), np.int64(2)]
    chosen.append([*mask])
    expected = [f(values, batch=rows) for rows in chosen]
    acts = [f.delayed(values, batch=rows) for rows in chosen]
    acts.append(trio.delayed.scatter(part, values, batch=index))
    index[:], mask[:], low[...], room[:] = 0, True, 0, b"00"
    listed.clear()
    *results, _ = trio.step(*acts)
    for result, rows in zip(results, expected):
        np.testing.assert_array_equal(result, rows)
    gathered = trio.collectives.gather(part, nd_up=0)
    np.testing.assert_array_equal(gathered, values[[4, 0, 1]])


def test_all_collectives_can_be_acts(trio):
    size = 3
    s = engine.shared(np.arange(3.0), name="s")
    t = engine.shared(np.zeros(4), name="t")
    d = trio.delayed
    results = trio.step(
        d.broadcast(s, np.arange(3.0)),
        d.scatter(t, np.arange(4.0 * size)),
        d.gather(t, nd_up=0),
        d.set_value(size - 1, s, np.full(3, 7.0)),
        d.get_value(size - 1, s),
        d.get_shapes([s, t]),
        d.get_lengths(t),
        d.all_reduce(s, "max"),
        d.reduce(t, "sum", in_place=False),
        d.all_gather(t),
    )
    assert results[0] is None
    np.testing.assert_array_equal(results[2], np.arange(4.0 * size))
    np.testing.assert_array_equal(results[4], [7, 7, 7])
    assert results[5] == (((3,),) * size, ((4,),) * size)
    assert results[6] == (4,) * size
    blocks = np.arange(4.0 * size).reshape(size, 4)
    np.testing.assert_array_equal(results[8], blocks.sum(axis=0))
    np.testing.assert_array_equal(s.get_value(), [7, 7, 7])
    assert t.get_value().shape == (4 * size,)


def test_a_wrong_act_is_found_before_anything_is_sent(trio):
    s = engine.shared(np.zeros(()), name="s")
    count = trio.function([], updates=[(s, s + 1)], **FAST)
    f = trio.function([x], (x.sum(), "sum"), **FAST)
    for bad, error in [
        (f.delayed(np.zeros((2, 2))), InputTypeError),
        (f.delayed(np.zeros(2), batch=[5]), IndexError),
        (f, InputTypeError),
        (np.zeros(2), InputTypeError),
    ]:
        with pytest.raises(error):
            trio.step(count, bad)
    with pytest.raises(InputValueError, match="weights"):
        trio.step(count, trio.delayed.all_reduce(s, weights=[1.0] * 4))
    assert s.get_value() == 0
    assert trio.step(count) == [None]


def test_weights_of_a_function_need_a_call_with_rows(runtime):
    g = engine.shared(np.ones(2), name="g")
    f = runtime.function([x], (x.sum(), "sum"), name="f", **FAST)
    with pytest.raises(InputValueError, match="was not called yet"):
        runtime.collectives.all_reduce(g, weights=f)
    f(np.zeros(0))
    with pytest.raises(InputValueError, match="no rows in its last call"):
        runtime.collectives.all_reduce(g, weights=f)
    reduction = runtime.delayed.all_reduce(g, weights=f)
    with pytest.raises((InputValueError, WorkerFailed), match="no rows in this step"):
        runtime.step(f.delayed(np.zeros(0)), reduction)
    f(np.zeros(3))
    runtime.collectives.all_reduce(g, weights=f)
    runtime.step(f.delayed(np.zeros(3)), reduction)
    np.testing.assert_array_equal(g.get_value(), [1, 1])


def test_functions_of_another_runtime_are_refused(pair):
    with Runtime(1) as other:
        f = other.function([x], x.sum(), **FAST)
        with pytest.raises(InputTypeError, match="another runtime"):
            pair.step(f.delayed(np.zeros(2)))
        with pytest.raises(InputValueError, match="another runtime"):
            pair.collectives.all_reduce(engine.shared(1.0), weights=f)
        with pytest.raises(InputTypeError):
            pair.check(f)


def test_an_act_is_known_by_the_names_of_its_arguments_too():
    """``through_host=True`` and ``weights_of=1`` are equal values of different arguments."""
    with Runtime(2) as runtime:
        x, s = T.dvector(), engine.shared(np.zeros(()), name="s")
        runtime.function([], [])
        f = runtime.function([x], x.sum())
        assert f.number == 1

        def set_to_rank():
            for rank in range(2):
                runtime.collectives.set_value(rank, s, np.asarray(float(rank)))

        reduce = runtime.delayed.all_reduce
        set_to_rank()
        runtime.step(f.delayed(np.ones(3)), reduce(s, "avg", weights=f))
        assert s.get_value() == pytest.approx(1 / 3)
        set_to_rank()
        runtime.collectives.all_reduce(s, "c_avg")
        assert s.get_value() == 0.5
