"""The small problem on which update rules are tried, and the papers' formulas, in NumPy alone.

A formula is a generator for one parameter, fed with gradients. PyTorch solved this problem, too:
its numbers are in torch_reference.json.
"""

from __future__ import annotations

import numpy as np

from synk_testing.engine import IS_THEANO, T, change_flags, engine

STEPS = 10

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
    "amsgrad": {"learning_rate": 0.02, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6},
    "adamax": {"learning_rate": 0.02, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6},
}

NAMES = ["W", "b", "column", "scale", None]
SHAPES = [(4, 3), (3,), (3, 1), (), (1, 1)]


def start_values(dtype="float64"):
    rng = np.random.RandomState(7)
    return [np.asarray(rng.randn(*shape), dtype) for shape in SHAPES]


def data(dtype="float64"):
    return np.random.RandomState(8).randn(STEPS, 5, 4).astype(dtype)


def numpy_gradients(x, W, b, column, scale, last):
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


def _nesterov_momentum(p, learning_rate, momentum=0.9):
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


def _amsgrad(p, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8):
    # Algorithm 2 of the paper, with the correction of the bias that Lasagne and PyTorch add.
    history = []
    while True:
        history.append((yield p))
        t = len(history)
        m = sum((1 - beta1) * beta1 ** (t - 1 - i) * g for i, g in enumerate(history))
        v_hat = np.max(
            [
                sum((1 - beta2) * beta2 ** (s - 1 - i) * g**2 for i, g in enumerate(history[:s]))
                for s in range(1, t + 1)
            ],
            axis=0,
        )
        correction = np.sqrt(1 - beta2**t) / (1 - beta1**t)
        p = p - learning_rate * correction * m / (np.sqrt(v_hat) + epsilon)


def _adamax(p, learning_rate=0.002, beta1=0.9, beta2=0.999, epsilon=1e-8):
    history = []
    while True:
        history.append((yield p))
        t = len(history)
        m = sum((1 - beta1) * beta1 ** (t - 1 - i) * g for i, g in enumerate(history))
        u = np.max([beta2 ** (t - 1 - i) * abs(g) for i, g in enumerate(history)], axis=0)
        p = p - learning_rate / (1 - beta1**t) * m / (u + epsilon)


_sgd_nonflat = _sgd
FORMULAS = {name: globals()[f"_{name}"] for name in CASES}


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
    """Parameters and a rule's updates, made with this floatX: no number was rounded to float32."""
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
