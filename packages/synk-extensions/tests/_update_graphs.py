"""The problem of _update_problem.py as Theano graphs, and how a rule is run on it."""

from __future__ import annotations

import numpy as np
from _update_problem import NAMES, data, start_values

from synk_testing.engine import IS_THEANO, T, change_flags, engine

# NumPy computes, so that hundreds of small graphs need no C compiler; what is under test are the
# graphs, and these are the same. test_train.py runs the rules compiled.
MODE = engine.Mode(linker="py", optimizer="fast_compile")
TOLERANCE = 1e-10


def make_params(dtype="float64"):
    patterns = [None, None, (False, True), (), (True, True)]
    if IS_THEANO:
        kinds = [{"broadcastable": pattern} for pattern in patterns]
    else:
        kinds = [{"shape": p and tuple(1 if is_one else None for is_one in p)} for p in patterns]
    return [
        engine.shared(value, name=name, **kind)
        for value, name, kind in zip(start_values(dtype), NAMES, kinds)
    ]


def loss_of(x, W, b, column, scale, last):
    hidden = T.tanh(T.dot(x, W) + b)
    out = T.dot(hidden, column) * scale + last
    return T.mean(T.sqr(out - T.sin(x.sum(axis=1, keepdims=True))))


def run_split(rule_updates, x):
    f_grad = engine.function([x], updates=rule_updates.grad_updates, mode=MODE)
    f_step = engine.function([], updates=rule_updates.param_updates, mode=MODE)
    for batch in data():
        f_grad(batch)
        f_step()


def made(floatx, dtype, rule, **settings):
    """Parameters of a dtype, and a rule's updates of them, made with this floatX: all have the
    parameters' dtype, and no number was rounded to float32 on the way."""
    x = T.matrix("x", dtype=dtype)
    with change_flags(floatX=floatx):
        params = make_params(dtype)
        split = rule(loss_of(x, *params), params, **settings)
    for target, expression in split.grad_updates + split.param_updates:
        assert expression.dtype == target.dtype == dtype
    if dtype == "float64":
        run_split(split, x)
        twins = make_params(dtype)
        run_split(rule(loss_of(x, *twins), twins, **settings), x)
        assert largest_difference(params, [t.get_value() for t in twins]) <= TOLERANCE
    return params, split


def largest_difference(params, expected):
    return max(np.abs(p.get_value() - e).max() for p, e in zip(params, expected))
