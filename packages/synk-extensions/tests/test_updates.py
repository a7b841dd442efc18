"""Each update rule against its paper's formula in NumPy; its defaults are Lasagne's."""

from __future__ import annotations

import importlib
import inspect
import sys

import numpy as np
import pytest
from _update_problem import (
    CASES,
    FORMULAS,
    MODE,
    TOLERANCE,
    data,
    largest_difference,
    loss_of,
    made,
    make_params,
    numpy_gradients,
    run_split,
    start_values,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from synk_testing.engine import T, engine
from synkhronos.extensions import updates

# By day, the rest of what is the same for every rule: a flat gradient, state, and none of both.
SOME = [
    pytest.param(name, marks=[pytest.mark.nightly] * (name not in ("sgd", "adam", "sgd_nonflat")))
    for name in CASES
]


@pytest.mark.parametrize("name", CASES)
def test_ten_steps_equal_the_papers_formula(name):
    x = T.dmatrix("x")
    params = make_params()
    rule = getattr(updates, name)
    run_split(rule(loss_of(x, *params), params, **CASES[name]), x)

    trackers = [FORMULAS[name](value, **CASES[name]) for value in start_values()]
    current = [next(tracker) for tracker in trackers]
    for batch in data():
        grads = numpy_gradients(batch, *current)
        current = [tracker.send(grad) for tracker, grad in zip(trackers, grads)]

    assert largest_difference(params, current) <= TOLERANCE
    assert largest_difference(params, start_values()) > 1e-3  # they did move


@pytest.mark.parametrize("name", [name for name in CASES if name != "sgd_nonflat"])
def test_defaults_are_lasagnes(name):
    rules = pytest.importorskip("lasagne.updates", reason="needs Theano and Lasagne")
    if not hasattr(rules, name):
        pytest.skip("Lasagne 0.1 lacks adamax and amsgrad; 0.2 has them")
    theirs = inspect.signature(getattr(rules, name)).parameters
    ours = inspect.signature(getattr(updates, name)).parameters
    assert {n: ours[n].default for n in list(theirs)[2:]} == {
        n: theirs[n].default for n in list(theirs)[2:]
    }


@settings(max_examples=15, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=4),
    name=st.sampled_from(sorted(set(CASES) - {"sgd_nonflat"})),
)
def test_flat_vector_is_the_gradients_end_to_end_for_any_shapes(shapes, name):
    rng = np.random.RandomState(1)
    params = [engine.shared(np.asarray(rng.randn(*shape)), name="p") for shape in shapes]
    weights = [np.asarray(rng.randn(*shape)) for shape in shapes]
    loss = sum(T.sum(param * weight) for param, weight in zip(params, weights))
    split = getattr(updates, name)(loss, params, **CASES[name])

    engine.function([], updates=split.grad_updates, mode=MODE)()
    expected = np.concatenate([weight.ravel() for weight in weights])
    np.testing.assert_array_equal(split.flat_grad.get_value(), expected)

    engine.function([], updates=split.param_updates, mode=MODE)()
    assert [param.get_value().shape for param in params] == shapes


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("dtype, floatx", [("float32", "float64"), ("float64", "float32")])
def test_everything_has_the_parameters_dtype_and_pattern_and_a_name(name, dtype, floatx):
    params, split = made(floatx, dtype, getattr(updates, name), **CASES[name])
    targets = [target for target, _ in split.param_updates]
    assert all(target.name or target is params[-1] for target in targets)
    assert len({id(target) for target in targets}) == len(targets)
    for param in params[:-1]:
        states = [t for t in targets if t.name and t.name.endswith(f"({param.name})")]
        assert {s.broadcastable for s in states} <= {param.broadcastable}
        assert {s.get_value().shape for s in states} <= {param.get_value().shape}


def test_names_of_gradient_and_state():
    x = T.dmatrix("x")
    params = make_params()
    loss = loss_of(x, *params)
    grads, steps, flat = updates.momentum(loss, params, 0.1)
    assert flat.name == "flat_grad"
    assert flat.get_value().shape == (12 + 3 + 3 + 1 + 1,)
    assert [target for target, _ in grads] == [flat]
    assert {t.name for t, _ in steps} >= {"velocity(W)", "velocity(b)", "velocity(params[4])"}

    stores = updates.sgd_nonflat(loss, params, 0.1).flat_grad
    assert [s.name for s in stores][:2] == ["grad(W)", "grad(b)"]
    assert [s.broadcastable for s in stores] == [p.broadcastable for p in params]


@pytest.mark.parametrize("name", SOME)
def test_lr_is_learning_rate_and_may_be_a_shared_variable(name):
    x = T.dmatrix("x")
    rest = {key: value for key, value in CASES[name].items() if key != "learning_rate"}
    rule = getattr(updates, name)
    by_number, by_shared = make_params(), make_params()
    rate = engine.shared(np.float32(99.0), name="rate")
    run_split(rule(loss_of(x, *by_number), by_number, lr=0.25, **rest), x)
    split = rule(loss_of(x, *by_shared), by_shared, rate, **rest)
    rate.set_value(np.float32(0.25))
    run_split(split, x)
    assert largest_difference(by_number, [p.get_value() for p in by_shared]) <= TOLERANCE
    for first, more in (((0.1,), {}), ((), {"learning_rate": 0.1})):
        with pytest.raises(TypeError, match="both lr and learning_rate"):
            rule(loss_of(x, *by_number), by_number, *first, lr=0.1, **more)


def test_list_of_gradients_is_taken_as_it_is():
    x = T.dmatrix("x")
    params, twins = make_params(), make_params()
    clipped = [T.clip(g, -0.01, 0.01) for g in T.grad(loss_of(x, *params), params)]
    split = updates.sgd(clipped, params, 1.0)
    engine.function([x], updates=split.grad_updates, mode=MODE)(data()[0])
    engine.function([], updates=split.param_updates, mode=MODE)()
    expected = [
        twin.get_value() - np.clip(grad, -0.01, 0.01)
        for twin, grad in zip(twins, numpy_gradients(data()[0], *start_values()))
    ]
    assert largest_difference(params, expected) <= TOLERANCE


@pytest.mark.parametrize(
    "rule, turn", [(updates.sgd, lambda g: g.T), (updates.sgd_nonflat, lambda g: g[:1])]
)
def test_given_gradients_of_another_shape_are_refused(rule, turn):
    """End to end in a vector, the elements of a transposed one would fit, in other places."""
    W, b = engine.shared(np.ones((2, 3)), name="W"), engine.shared(np.ones(3), name="b")
    x = T.dmatrix("x")
    grads = T.grad(T.sum(T.sqr(x.dot(W)) + b), [W, b])
    split = rule([turn(grads[0]), grads[1]], [W, b], 0.1)
    f = engine.function([x], updates=split.grad_updates, mode=MODE)
    with pytest.raises(AssertionError, match=r"parameter W has another shape.*expected \(2, 3\)"):
        f(np.ones((4, 2)))


def _wrong(w):
    used, unused, cut, narrow = (
        engine.shared(np.ones(3, dtype), name=name)
        for name, dtype in [("u", "float64"), ("v", "float64"), ("c", "float64"), ("n", "float32")]
    )
    loss = T.sum(used * engine.gradient.disconnected_grad(cut))
    integers = engine.shared(np.arange(3), name="i")
    disconnected = (loss, [used, unused, cut], 0.1)
    yield ValueError, r"not use params\[1\] \(v\), params\[2\] \(c\)", disconnected
    yield ValueError, "params is empty", (T.sum(w), [], 0.1)
    yield TypeError, "shared variable", (T.sum(w), [T.dvector("v")], 0.1)
    yield ValueError, "w is listed twice", (T.sum(w), [w, w], 0.1)
    yield TypeError, "i has dtype int64", (T.sum(w), [integers], 0.1)
    yield TypeError, "with 1 dimensions; expected a scalar", (w * 2, [w], 0.1)
    yield ValueError, "got 2 gradients for 1 parameters", ([w, w], [w], 0.1)
    yield ValueError, "w has 0 dimensions; expected 1", ([T.sum(w)], [w], 0.1)
    yield ValueError, "learning_rate .* expected a scalar", (T.sum(w), [w], w)
    yield TypeError, "learning_rate is '0.1' of type str", (T.sum(w), w, "0.1")
    mixed = T.sum(narrow * w)
    yield TypeError, "n: float32, w: float64.*sgd_nonflat", (mixed, [narrow, w], 0.1)


def test_errors_name_the_given_and_the_expected():
    for rule in (updates.sgd, updates.sgd_nonflat, updates.adam):
        for error, message, arguments in _wrong(engine.shared(np.ones(3), name="w")):
            if rule is updates.sgd_nonflat and "sgd_nonflat" in message:
                continue  # it takes parameters of several dtypes
            with pytest.raises(error, match=message):
                rule(*arguments)


def test_lasagnes_extension_without_lasagne_names_the_pythons_that_it_is_for(monkeypatch):
    name = "synkhronos.extensions.lasagne"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "lasagne", None)
    with pytest.raises(ImportError, match=r"Python 3\.9 to 3\.11: pip install .*neither on newer"):
        importlib.import_module(name)
