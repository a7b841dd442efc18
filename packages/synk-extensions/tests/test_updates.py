"""Each update rule against its paper's formula in NumPy, and against Lasagne in plain Theano."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import theano
import theano.tensor as T
from hypothesis import given, settings
from hypothesis import strategies as st

from synkhronos.extensions import updates

STEPS = 10
TOLERANCE = 1e-10

# NumPy computes, so that hundreds of small graphs need no C compiler; what is under test are the
# graphs, and these are the same. test_train.py runs the rules compiled.
MODE = theano.Mode(linker="py", optimizer="fast_compile")

# rule name -> the settings it is run with (those of Lasagne's signature are passed to both)
CASES = {
    "sgd": {"learning_rate": 0.05},
    "sgd_nonflat": {"learning_rate": 0.05},
    "momentum": {"learning_rate": 0.05, "momentum": 0.8},
    "nesterov_momentum": {"learning_rate": 0.05, "momentum": 0.8},
    "adagrad": {"learning_rate": 0.3, "epsilon": 1e-5},
    "rmsprop": {"learning_rate": 0.02, "rho": 0.7, "epsilon": 1e-5},
    "adadelta": {"learning_rate": 0.9, "rho": 0.8, "epsilon": 1e-4},
    "adam": {"learning_rate": 0.02, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6},
    "adamax": {"learning_rate": 0.02, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6},
}
DEFAULTS = {
    "sgd": {"learning_rate": 0.1},
    "momentum": {"learning_rate": 0.1},
    "nesterov_momentum": {"learning_rate": 0.1},
    "adagrad": {},
    "rmsprop": {},
    "adadelta": {},
    "adam": {},
    "adamax": {},
}


# ---- the formulas of the papers, for one parameter: a generator fed with gradients ----


def _sgd(p, learning_rate):
    while True:
        g = yield p
        p = p - learning_rate * g


def _momentum(p, learning_rate, momentum=0.9):
    v = np.zeros_like(p)
    while True:
        g = yield p
        v = momentum * v - learning_rate * g
        p = p + v


def _nesterov(p, learning_rate, momentum=0.9):
    # Nesterov's own form: the point x, and the look-ahead y at which the gradient is taken.
    x, y = p, p
    while True:
        g = yield y
        x_new = y - learning_rate * g
        y = x_new + momentum * (x_new - x)
        x = x_new


def _adagrad(p, learning_rate=1.0, epsilon=1e-6):
    history = []
    while True:
        history.append((yield p))
        p = p - learning_rate * history[-1] / np.sqrt(sum(g**2 for g in history) + epsilon)


def _rmsprop(p, learning_rate=1.0, rho=0.9, epsilon=1e-6):
    history = []
    while True:
        history.append((yield p))
        n = len(history)
        mean_square = sum((1 - rho) * rho ** (n - 1 - i) * g**2 for i, g in enumerate(history))
        p = p - learning_rate * history[-1] / np.sqrt(mean_square + epsilon)


def _adadelta(p, learning_rate=1.0, rho=0.95, epsilon=1e-6):
    mean_g2 = mean_dx2 = np.zeros_like(p)
    while True:
        g = yield p
        mean_g2 = rho * mean_g2 + (1 - rho) * g**2
        dx = -np.sqrt(mean_dx2 + epsilon) / np.sqrt(mean_g2 + epsilon) * g
        mean_dx2 = rho * mean_dx2 + (1 - rho) * dx**2
        p = p + learning_rate * dx


def _adam(p, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8):
    # Algorithm 1 of the paper with its bias-corrected averages; the form of section 2 has
    # epsilon beside the uncorrected root, hence the factor on epsilon.
    m = v = np.zeros_like(p)
    t = 0
    while True:
        g = yield p
        t += 1
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        p = p - learning_rate * m_hat / (np.sqrt(v_hat) + epsilon / np.sqrt(1 - beta2**t))


def _adamax(p, learning_rate=0.002, beta1=0.9, beta2=0.999, epsilon=1e-8):
    history = []
    while True:
        history.append((yield p))
        t = len(history)
        m = sum((1 - beta1) * beta1 ** (t - 1 - i) * g for i, g in enumerate(history))
        u = np.max([beta2 ** (t - 1 - i) * abs(g) for i, g in enumerate(history)], axis=0)
        p = p - learning_rate / (1 - beta1**t) * m / (u + epsilon)


FORMULAS = {
    "sgd": _sgd,
    "sgd_nonflat": _sgd,
    "momentum": _momentum,
    "nesterov_momentum": _nesterov,
    "adagrad": _adagrad,
    "rmsprop": _rmsprop,
    "adadelta": _adadelta,
    "adam": _adam,
    "adamax": _adamax,
}


# ---- a small problem: parameters of all kinds of shapes, a loss that is not quadratic ----


def _start_values(dtype="float64"):
    rng = np.random.RandomState(7)
    shapes = [(4, 3), (3,), (3, 1), (), (1, 1)]
    return [np.asarray(rng.randn(*shape), dtype) for shape in shapes]


def _params(dtype="float64"):
    patterns = [None, None, (False, True), (), (True, True)]
    names = ["W", "b", "column", "scale", None]
    return [
        theano.shared(value, name=name, broadcastable=pattern)
        for value, name, pattern in zip(_start_values(dtype), names, patterns)
    ]


def _data(dtype="float64"):
    return np.random.RandomState(8).randn(STEPS, 5, 4).astype(dtype)


def _loss(x, W, b, column, scale, last):
    hidden = T.tanh(T.dot(x, W) + b)
    out = T.dot(hidden, column) * scale + last
    return T.mean(T.sqr(out - T.sin(x.sum(axis=1, keepdims=True))))


def _numpy_gradients(x, W, b, column, scale, last):
    """Backpropagation by hand: nothing of Theano takes part."""
    hidden = np.tanh(x @ W + b)
    z = hidden @ column
    out = z * scale + last
    d_out = 2 * (out - np.sin(x.sum(axis=1, keepdims=True))) / out.size
    d_z = d_out * scale
    d_hidden = (d_z @ column.T) * (1 - hidden**2)
    return [
        x.T @ d_hidden,
        d_hidden.sum(axis=0),
        hidden.T @ d_z,
        (d_out * z).sum(),
        d_out.sum().reshape(1, 1),
    ]


def _run_split(rule_updates, x):
    f_grad = theano.function([x], updates=rule_updates.grad_updates, mode=MODE)
    f_step = theano.function([], updates=rule_updates.param_updates, mode=MODE)
    for batch in _data():
        f_grad(batch)
        f_step()


def _largest_difference(params, expected):
    return max(np.abs(p.get_value() - e).max() for p, e in zip(params, expected))


@pytest.mark.parametrize("name", CASES)
def test_ten_steps_equal_the_papers_formula(name):
    x = T.dmatrix("x")
    params = _params()
    rule = getattr(updates, name)
    _run_split(rule(_loss(x, *params), params, **CASES[name]), x)

    trackers = [FORMULAS[name](value, **CASES[name]) for value in _start_values()]
    current = [next(tracker) for tracker in trackers]
    for batch in _data():
        grads = _numpy_gradients(batch, *current)
        current = [tracker.send(grad) for tracker, grad in zip(trackers, grads)]

    assert _largest_difference(params, current) <= TOLERANCE
    assert _largest_difference(params, _start_values()) > 1e-3  # they did move


def _lasagne_rule(name):
    if importlib.util.find_spec("lasagne") is None:
        pytest.skip("Lasagne is an extra of this distribution: pip install synkhronos[lasagne]")
    import lasagne.updates

    # Lasagne 0.1 has no adamax; its paper's formula above is the source of truth for that rule.
    return getattr(lasagne.updates, name)


@pytest.mark.parametrize(
    "name, arguments",
    [(name, CASES[name]) for name in DEFAULTS if name != "adamax"]
    + [(name, DEFAULTS[name]) for name in DEFAULTS if name != "adamax"],
    ids=lambda value: value if isinstance(value, str) else ("given" if len(value) > 1 else "few"),
)
def test_ten_steps_equal_lasagne_in_plain_theano(name, arguments):
    reference = _lasagne_rule(name)
    x = T.dmatrix("x")

    params = _params()
    _run_split(getattr(updates, name)(_loss(x, *params), params, **arguments), x)

    twins = _params()
    f = theano.function([x], updates=reference(_loss(x, *twins), twins, **arguments), mode=MODE)
    for batch in _data():
        f(batch)

    assert _largest_difference(params, [twin.get_value() for twin in twins]) <= TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_the_vector_between_the_halves_is_what_moves_the_parameters(name):
    """The second half reads nothing but the stored gradient: overwrite it, and that counts."""
    x = T.dmatrix("x")
    params = _params()
    split = getattr(updates, name)(_loss(x, *params), params, **CASES[name])
    theano.function([x], updates=split.grad_updates, mode=MODE)(_data()[0])
    assert _largest_difference(params, _start_values()) == 0  # the first half moves none

    rng = np.random.RandomState(9)
    grads = [np.asarray(rng.randn(*value.shape)) for value in _start_values()]
    if isinstance(split.flat_grad, list):
        for store, grad in zip(split.flat_grad, grads):
            store.set_value(grad)
    else:
        split.flat_grad.set_value(np.concatenate([grad.ravel() for grad in grads]))
    theano.function([], updates=split.param_updates, mode=MODE)()

    trackers = [FORMULAS[name](value, **CASES[name]) for value in _start_values()]
    for tracker in trackers:
        next(tracker)
    expected = [tracker.send(grad) for tracker, grad in zip(trackers, grads)]
    assert _largest_difference(params, expected) <= TOLERANCE


@settings(max_examples=15, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=4),
    name=st.sampled_from(sorted(set(CASES) - {"sgd_nonflat"})),
)
def test_flat_vector_is_the_gradients_end_to_end_for_any_shapes(shapes, name):
    rng = np.random.RandomState(1)
    params = [theano.shared(np.asarray(rng.randn(*shape)), name="p") for shape in shapes]
    weights = [np.asarray(rng.randn(*shape)) for shape in shapes]
    loss = sum(T.sum(param * weight) for param, weight in zip(params, weights))
    split = getattr(updates, name)(loss, params, **CASES[name])

    theano.function([], updates=split.grad_updates, mode=MODE)()
    expected = np.concatenate([weight.ravel() for weight in weights])
    np.testing.assert_array_equal(split.flat_grad.get_value(), expected)

    theano.function([], updates=split.param_updates, mode=MODE)()
    assert [param.get_value().shape for param in params] == shapes


@pytest.mark.parametrize("name", CASES)
def test_state_keeps_shape_dtype_pattern_and_carries_names(name):
    params = _params()
    x = T.dmatrix("x")
    split = getattr(updates, name)(_loss(x, *params), params, **CASES[name])
    for target, expression in split.param_updates + split.grad_updates:
        assert target.name or target is params[-1]
        assert expression.dtype == target.dtype == "float64"
    by_name = {target.name: target for target, _ in split.param_updates}
    for param in params:
        if param.name:
            states = [t for n, t in by_name.items() if n and n.endswith(f"({param.name})")]
            assert {s.broadcastable for s in states} <= {param.broadcastable}
            assert {s.get_value().shape for s in states} <= {param.get_value().shape}


def test_names_of_gradient_and_state():
    x = T.dmatrix("x")
    params = _params()
    loss = _loss(x, *params)
    grads, steps, flat = updates.momentum(loss, params, 0.1)
    assert flat.name == "flat_grad"
    assert flat.get_value().shape == (12 + 3 + 3 + 1 + 1,)
    assert [target for target, _ in grads] == [flat]
    assert {t.name for t, _ in steps} >= {"velocity(W)", "velocity(b)", "velocity(params[4])"}

    stores = updates.sgd_nonflat(loss, params, 0.1).flat_grad
    assert [s.name for s in stores][:2] == ["grad(W)", "grad(b)"]
    assert [s.broadcastable for s in stores] == [p.broadcastable for p in params]


@pytest.mark.parametrize("name", ["adam", "adamax"])
def test_one_step_counter_updated_once(name):
    x = T.dmatrix("x")
    params = _params()
    split = getattr(updates, name)(_loss(x, *params), params)
    targets = [target for target, _ in split.param_updates]
    assert len({id(target) for target in targets}) == len(targets)
    (counter,) = [target for target in targets if target.name == "step"]
    _run_split(split, x)
    assert counter.get_value() == STEPS


@pytest.mark.parametrize("name", CASES)
def test_lr_is_learning_rate_and_may_be_a_shared_variable(name):
    x = T.dmatrix("x")
    rest = {key: value for key, value in CASES[name].items() if key != "learning_rate"}
    rule = getattr(updates, name)
    by_number, by_shared = _params(), _params()
    rate = theano.shared(np.float32(99.0), name="rate")
    _run_split(rule(_loss(x, *by_number), by_number, lr=0.25, **rest), x)
    split = rule(_loss(x, *by_shared), by_shared, rate, **rest)
    rate.set_value(np.float32(0.25))
    _run_split(split, x)
    assert _largest_difference(by_number, [p.get_value() for p in by_shared]) <= TOLERANCE
    with pytest.raises(TypeError, match="both lr and learning_rate"):
        rule(_loss(x, *by_number), by_number, 0.1, lr=0.1)
    with pytest.raises(TypeError, match="both lr and learning_rate"):
        rule(_loss(x, *by_number), by_number, learning_rate=0.1, lr=0.1)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype, floatx", [("float32", "float64"), ("float64", "float32")])
def test_everything_stays_in_the_parameters_dtype(name, dtype, floatx):
    x = T.matrix("x", dtype=dtype)
    with theano.change_flags(floatX=floatx):
        params = _params(dtype)
        split = getattr(updates, name)(_loss(x, *params), params, **CASES[name])
    for target, expression in split.grad_updates + split.param_updates:
        assert expression.dtype == target.dtype == dtype
    if dtype == "float64":  # 0.05 was not rounded to float32 on the way
        _run_split(split, x)
        twins = _params(dtype)
        _run_split(getattr(updates, name)(_loss(x, *twins), twins, **CASES[name]), x)
        assert _largest_difference(params, [t.get_value() for t in twins]) <= TOLERANCE


def test_list_of_gradients_is_taken_as_it_is():
    x = T.dmatrix("x")
    params, twins = _params(), _params()
    clipped = [T.clip(g, -0.01, 0.01) for g in T.grad(_loss(x, *params), params)]
    split = updates.sgd(clipped, params, 1.0)
    theano.function([x], updates=split.grad_updates, mode=MODE)(_data()[0])
    theano.function([], updates=split.param_updates, mode=MODE)()
    expected = [
        twin.get_value() - np.clip(grad, -0.01, 0.01)
        for twin, grad in zip(twins, _numpy_gradients(_data()[0], *_start_values()))
    ]
    assert _largest_difference(params, expected) <= TOLERANCE


def test_a_single_parameter_needs_no_list():
    w = theano.shared(np.ones(3), name="w")
    split = updates.sgd(T.sum(w**2), w, 0.25)
    theano.function([], updates=split.grad_updates, mode=MODE)()
    theano.function([], updates=split.param_updates, mode=MODE)()
    np.testing.assert_array_equal(w.get_value(), [0.5, 0.5, 0.5])


def test_gradient_of_a_wider_loss_is_stored_in_the_parameters_dtype():
    w = theano.shared(np.ones(3, "float32"), name="w")
    loss = T.sum(T.dvector("x") * w)
    split = updates.adam(loss, [w])
    assert split.flat_grad.dtype == split.grad_updates[0][1].dtype == "float32"


@pytest.mark.parametrize("name", sorted(set(CASES) - {"sgd_nonflat"}))
def test_mixed_dtypes_are_refused_by_name(name):
    narrow = theano.shared(np.ones(2, "float32"), name="narrow")
    wide = theano.shared(np.ones(2, "float64"), name="wide")
    with pytest.raises(TypeError, match=r"narrow: float32, wide: float64.*sgd_nonflat"):
        getattr(updates, name)(T.sum(narrow * wide), [narrow, wide], 0.1)


def test_mixed_dtypes_work_unflattened():
    narrow = theano.shared(np.ones(2, "float32"), name="narrow")
    wide = theano.shared(np.full(2, 3.0), name="wide")
    split = updates.sgd_nonflat(T.sum(narrow * wide), [narrow, wide], 0.5)
    theano.function([], updates=split.grad_updates, mode=MODE)()
    theano.function([], updates=split.param_updates, mode=MODE)()
    np.testing.assert_array_equal(narrow.get_value(), [-0.5, -0.5])
    np.testing.assert_array_equal(wide.get_value(), [2.5, 2.5])
    assert narrow.dtype == "float32"


@pytest.mark.parametrize(
    "error, message, build",
    [
        (ValueError, "params is empty", lambda w: (T.sum(w), [], 0.1)),
        (TypeError, "shared variable", lambda w: (T.sum(w), [T.dvector("v")], 0.1)),
        (ValueError, "w is listed twice", lambda w: (T.sum(w), [w, w], 0.1)),
        (
            TypeError,
            "n has dtype int64",
            lambda w: (T.sum(w), [theano.shared(np.arange(3), name="n")], 0.1),
        ),
        (TypeError, "with 1 dimensions; expected a scalar", lambda w: (w * 2, [w], 0.1)),
        (ValueError, "got 2 gradients for 1 parameters", lambda w: ([w, w], [w], 0.1)),
        (ValueError, "w has 0 dimensions; expected 1", lambda w: ([T.sum(w)], [w], 0.1)),
        (ValueError, "learning_rate .* expected a scalar", lambda w: (T.sum(w), [w], w)),
        (TypeError, "learning_rate is '0.1' of type str", lambda w: (T.sum(w), [w], "0.1")),
    ],
    ids=["empty", "not-shared", "twice", "integer", "vector-loss", "count", "ndim", "rate", "str"],
)
@pytest.mark.parametrize("rule", [updates.sgd, updates.sgd_nonflat, updates.adam])
def test_errors_name_what_was_got_and_expected(rule, error, message, build):
    with pytest.raises(error, match=message):
        rule(*build(theano.shared(np.ones(3), name="w")))
