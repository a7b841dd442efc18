"""Compiled functions survive the journey: same numbers, and variables stay shared."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from _replica import Replica

from synk_core._graph.shared import VariableRegistry, value_of
from synk_core._graph.transfer.pickling import RECURSION_LIMIT, deep_recursion, dumps
from synk_testing.engine import IS_THEANO, STREAMS, T, as_op, engine, ifelse, softmax, theano_only

x = T.matrix("x")
# Optimising the gradients of loops, or draws, would take most of a test's time.
QUICK = "FAST_COMPILE" if IS_THEANO else None
FUSING = engine.gof.Query(include=["fast_run", "fusion"], exclude=[]) if IS_THEANO else "fast_run"


def same(a, b):
    if isinstance(a, np.random.Generator):
        return a.bit_generator.state == b.bit_generator.state
    if isinstance(a, np.random.RandomState):
        return all(np.array_equal(p, q) for p, q in zip(a.get_state(), b.get_state()))
    return np.array_equal(a, b)


def check(function, *argument_lists):
    """The replica computes and updates as the original, step by step, bit by bit."""
    replica = Replica()
    (copy,) = replica.send(function)
    for arguments in argument_lists:
        expected, got = function(*arguments), copy(*arguments)
        assert type(expected) is type(got)
        np.testing.assert_equal(got, expected)
        for a, b in zip(replica.originals(), replica.values()):
            assert same(a, b)
            assert a is not b
    return copy


X = np.arange(12.0).reshape(4, 3)


def test_fused_graphs():
    """The tests' settings leave fusion out; users have it."""
    x, s = T.vector("x"), engine.shared(np.ones(3), "s")
    mode = engine.compile.mode.Mode("py", FUSING)
    f = engine.function([x], T.exp(x * s) - T.tanh(x + 1) / 2, updates=[(s, s * x - 1)], mode=mode)
    assert any("Composite" in str(node.op) for node in f.maker.fgraph.toposort())
    check(f, [X[0]], [X[1]])


def test_in_place_graphs_keep_their_order():
    s, x = engine.shared(np.ones(3), "s"), T.vector("x")
    f = engine.function([x], [s * 3, (s - 3) * 2, T.exp(s)], updates=[(s, s + x)])
    check(f, [np.ones(3)], [np.ones(3)])


@theano_only("inputs with values")
def test_givens_defaults_states_and_names():
    x, y, z = T.matrix("x"), T.scalar("y"), T.matrix("z")
    s = engine.shared(np.float64(2), "s")
    f = engine.function([x, engine.In(y, value=3.0)], z * y, givens=[(z, x + s)])
    copy = check(f, [X], [X, 5.0])
    np.testing.assert_array_equal(copy(X, y=7.0), f(X, y=7.0))
    state = engine.function([x, engine.In(y, value=1.0, update=y + 1)], x * y)
    state(X)
    check(state, [X], [X])


def test_scan_and_its_gradient():
    x, w = T.matrix("x"), engine.shared(np.float64(0.5), "w")
    states, _ = engine.scan(lambda row, h: T.tanh(row.sum() + w * h), x, T.zeros(()))
    f = engine.function([x], states[-1], updates=[(w, w - T.grad(states[-1], w))], mode=QUICK)
    check(f, [X / 10], [X / 7])


def test_ifelse_pooling_subtensors_and_sorting():
    x, i = T.matrix("x"), T.iscalar("i")
    check(engine.function([x, i], ifelse(T.gt(i, 0), x.sum(), x.max())), [X, 1], [X, 0])
    s = engine.shared(X.copy(), "s")
    out = x.sort(axis=0)[::-1]
    if IS_THEANO:
        pool_2d = pytest.importorskip("theano.tensor.signal.pool").pool_2d
        out = pool_2d(out * softmax(s), (2, 2), ignore_border=True)
    f = engine.function([x], [out, x.sum()], updates=[(s, T.set_subtensor(s[1], x[0]))])
    check(f, [X + 1], [X])


@pytest.mark.parametrize("streams", STREAMS.values(), ids=STREAMS)
def test_random_streams(streams):
    draw = streams(5).uniform(size=x.shape)
    check(engine.function([x], x * draw, mode=QUICK), [X], [X])


@theano_only("outputs by name")
def test_outputs_by_name():
    copy = check(engine.function([x], {"a": x.sum(), "b": x * 2}), [X])
    assert set(copy(X)) == {"a", "b"}


def test_a_deep_graph_travels_at_the_usual_recursion_limit():
    y = x
    for i in range(800):
        y = T.tanh(y) if i % 2 else T.sin(y) + i
    mode = engine.Mode("py", None)
    with deep_recursion():
        function = engine.function([x], y, mode=mode)
    assert sys.getrecursionlimit() < 5000
    (copy,) = Replica().send(function)
    np.testing.assert_array_equal(copy(X), function(X))


def test_overlapping_threads_restore_the_recursion_limit():
    before = sys.getrecursionlimit()
    first, second = deep_recursion(), deep_recursion()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getrecursionlimit() >= RECURSION_LIMIT
    second.__exit__(None, None, None)
    assert sys.getrecursionlimit() == before


def test_an_op_from_main_travels_by_value():
    def triple(a):
        return a * 3

    triple.__module__ = "__main__"
    check(engine.function([x], as_op([T.dmatrix], [T.dmatrix])(triple)(x)), [X])


def test_variables_stay_shared_over_functions_and_rounds():
    replica = Replica()
    s = engine.shared(np.zeros(1000), "s")
    add = engine.function([], updates=[(s, s + 1)])
    read = engine.function([], s.sum())
    (add_copy,) = replica.send(add)
    (read_copy,) = replica.send(read)
    add_copy()
    assert read_copy() == 1000
    assert read() == 0
    assert replica.receiver.end == 1


def test_only_new_variables_travel():
    registry = VariableRegistry()
    big = engine.shared(np.zeros(100_000), "big")
    f = engine.function([], big.sum())
    data, buffers = dumps([f], registry)
    assert sum(map(len, buffers)) + len(data) < 20_000
    assert len(registry.records(0, lambda _values: False)) == 1


def test_a_later_value_has_the_last_sent_shape():
    """Ranks keep a variable if the master alone takes back the order with it."""
    here, there = VariableRegistry(), VariableRegistry()
    v = engine.shared(np.zeros(3), "v")
    here.number_of(v)
    for size in (3, 5):
        v.set_value(np.zeros(size))
        (record,) = here.records(0, lambda _values: True)
        assert (record.value, record.shape) == (None, (size,))
        there.adopt(record, np.ones(record.shape))
        assert value_of(there[0]).tolist() == [1.0] * size


def test_values_that_are_not_equal_to_themselves_travel():
    s = engine.shared(np.array([np.nan, 1.0]), "s")
    (copy,) = Replica().send(engine.function([], s * 2))
    np.testing.assert_array_equal(copy(), [np.nan, 2.0])
