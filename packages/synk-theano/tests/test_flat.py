"""Compiled functions survive the journey: same numbers, and variables stay shared."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import theano
import theano.tensor as T
from _replica import Replica
from theano.ifelse import ifelse
from theano.sandbox.rng_mrg import MRG_RandomStreams
from theano.tensor.shared_randomstreams import RandomStreams
from theano.tensor.signal.pool import pool_2d

from synk_theano._graph.shared import VariableRegistry
from synk_theano._graph.transfer.pickling import RECURSION_LIMIT, deep_recursion, dumps

x = T.matrix("x")


def same(a, b):
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


def test_gradient_step_of_a_network():
    x, w, b = T.matrix("x"), theano.shared(np.ones((3, 5)) / 9, "w"), theano.shared(np.zeros(5))
    cost = T.nnet.softmax(T.tanh(x.dot(w) + b))[:, 0].mean()
    updates = [(p, p - 0.1 * T.grad(cost, p)) for p in (w, b)]
    check(theano.function([x], cost, updates=updates, name="step"), [X], [X + 1], [X])


@pytest.mark.c_code
def test_fused_graphs():
    """The tests' settings leave fusion out; users have it."""
    x, s = T.vector("x"), theano.shared(np.ones(3), "s")
    mode = theano.Mode("cvm", theano.gof.Query(include=["fast_run", "fusion"], exclude=[]))
    f = theano.function([x], T.exp(x * s) - T.tanh(x + 1) / 2, updates=[(s, s * x - 1)], mode=mode)
    assert any("Composite" in str(node.op) for node in f.maker.fgraph.toposort())
    check(f, [X[0]], [X[1]])


@pytest.mark.c_code
def test_in_place_graphs_keep_their_order():
    s, x = theano.shared(np.ones(3), "s"), T.vector("x")
    f = theano.function([x], [s * 3, (s - 3) * 2, T.exp(s)], updates=[(s, s + x)])
    check(f, [np.ones(3)], [np.ones(3)])


def test_givens_defaults_states_and_names():
    x, y, z = T.matrix("x"), T.scalar("y"), T.matrix("z")
    s = theano.shared(np.float64(2), "s")
    f = theano.function([x, theano.In(y, value=3.0)], z * y, givens=[(z, x + s)])
    copy = check(f, [X], [X, 5.0])
    np.testing.assert_array_equal(copy(X, y=7.0), f(X, y=7.0))
    state = theano.function([x, theano.In(y, value=1.0, update=y + 1)], x * y)
    state(X)
    check(state, [X], [X])


def test_pooling():
    x, w = T.tensor4("x"), theano.shared(np.ones((8, 8)), "w")
    out = pool_2d(x * w, (2, 2), ignore_border=True).sum()
    f = theano.function([x], out, updates=[(w, w - T.grad(out, w))])
    check(f, [np.random.RandomState(1).randn(2, 1, 8, 8)])


def test_scan_and_its_gradient():
    x, w = T.matrix("x"), theano.shared(np.float64(0.5), "w")
    states, _ = theano.scan(lambda row, h: T.tanh(row.sum() + w * h), x, T.zeros(()))
    f = theano.function([x], states[-1], updates=[(w, w - T.grad(states[-1], w))])
    check(f, [X / 10], [X / 7])


def test_ifelse_subtensors_and_sorting():
    x, i = T.matrix("x"), T.iscalar("i")
    check(theano.function([x, i], ifelse(T.gt(i, 0), x.sum(), x.max())), [X, 1], [X, 0])
    s = theano.shared(X.copy(), "s")
    f = theano.function([x], x.sort(axis=0)[::-1], updates=[(s, T.set_subtensor(s[1], x[0]))])
    check(f, [X + 1])


@pytest.mark.parametrize("streams", [RandomStreams, MRG_RandomStreams])
def test_random_streams(streams):
    check(theano.function([x], x * streams(5).uniform(x.shape)), [X], [X])


def test_outputs_of_all_kinds():
    check(theano.function([x], x.sum()), [X])
    check(theano.function([x], [x.sum(), x]), [X])
    copy = check(theano.function([x], {"a": x.sum(), "b": x * 2}), [X])
    assert set(copy(X)) == {"a", "b"}


def test_a_deep_graph_travels_at_the_usual_recursion_limit():
    y = x
    for i in range(800):
        y = T.tanh(y) if i % 2 else T.sin(y) + i
    mode = theano.Mode("py", None)
    with deep_recursion():
        function = theano.function([x], y, mode=mode)
    assert sys.getrecursionlimit() < 5000
    (copy,) = Replica().send(function)
    np.testing.assert_array_equal(copy(X), function(X))


def test_the_recursion_limit_is_that_of_before_however_threads_come_and_go():
    before = sys.getrecursionlimit()
    first, second = deep_recursion(), deep_recursion()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getrecursionlimit() >= RECURSION_LIMIT
    second.__exit__(None, None, None)
    assert sys.getrecursionlimit() == before


def test_an_op_from_main_travels_by_value():
    from theano.compile.ops import as_op

    def triple(a):
        return a * 3

    triple.__module__ = "__main__"
    check(theano.function([x], as_op([T.dmatrix], [T.dmatrix])(triple)(x)), [X])


def test_variables_stay_shared_over_functions_and_rounds():
    replica = Replica()
    s = theano.shared(np.zeros(1000), "s")
    add = theano.function([], updates=[(s, s + 1)])
    read = theano.function([], s.sum())
    (add_copy,) = replica.send(add)
    (read_copy,) = replica.send(read)
    add_copy()
    assert read_copy() == 1000
    assert read() == 0
    assert replica.receiver.end == 1


def test_only_new_variables_travel():
    registry = VariableRegistry()
    big = theano.shared(np.zeros(100_000), "big")
    f = theano.function([], big.sum())
    data, buffers = dumps([f], registry)
    assert sum(map(len, buffers)) + len(data) < 20_000
    assert len(registry.records(0)) == 1


def test_values_that_are_not_equal_to_themselves_travel():
    s = theano.shared(np.array([np.nan, 1.0]), "s")
    (copy,) = Replica().send(theano.function([], s * 2))
    np.testing.assert_array_equal(copy(), [np.nan, 2.0])
