"""Training is the serial training, step for step; and several acts as one step."""

from __future__ import annotations

import numpy as np
import pytest
import theano
import theano.tensor as T
from _lib import TOLERANCE, cross_entropy, exact, on_all, same, shared, values

from synkhronos.extensions import updates
from synkhronos.extensions.batches import index_batches
from synkhronos.extensions.train import make_train_function

ROWS, FEATURES, HIDDEN, CLASSES = 60, 6, 5, 4
RULES = {
    "sgd": {"learning_rate": 0.3},
    "momentum": {"learning_rate": 0.1, "momentum": 0.5},
    "nesterov_momentum": {"learning_rate": 0.1},
    "adam": {"lr": 0.02},
    "sgd_nonflat": {"learning_rate": 0.3},
}


class Model:
    """A small classifier."""

    def __init__(self, device_set, dtype):
        random = np.random.RandomState(5)
        start = [
            random.randn(FEATURES, HIDDEN) * 0.3,
            np.zeros(HIDDEN),
            random.randn(HIDDEN, CLASSES) * 0.3,
        ]
        self.params = [
            theano.shared(value.astype(dtype), name=name) for value, name in zip(start, "WbV")
        ]
        weights, bias, out = self.params
        self.x, self.y = T.TensorType(dtype, (False, False))("x"), T.ivector("y")
        self.prediction = T.nnet.softmax(T.tanh(self.x.dot(weights) + bias).dot(out))
        self.loss = cross_entropy(device_set, self.prediction, self.y, CLASSES)

    def values(self):
        return [param.get_value() for param in self.params]


def loss_and_gradients(params, x, y):
    """The same model in NumPy."""
    weights, bias, out = params
    hidden = np.tanh(x @ weights + bias)
    scores = hidden @ out
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    p = scores / scores.sum(axis=1, keepdims=True)
    picked = np.arange(len(y)), y
    loss = -np.log(p[picked]).mean()
    p[picked] -= 1
    p /= len(y)
    inner = p @ out.T * (1 - hidden**2)
    return loss, [x.T @ inner, inner.sum(axis=0), hidden.T @ p]


def steps_of(rule, settings):
    """The rule in NumPy: a function that moves a list of parameters by their gradients."""
    state = {}

    def move(params, gradients):
        state["t"] = t = state.get("t", 0) + 1
        moved = []
        for i, (w, g) in enumerate(zip(params, gradients)):
            v, m = state.get(("v", i), np.zeros_like(w)), state.get(("m", i), np.zeros_like(w))
            if rule.startswith("sgd"):
                w = w - settings["learning_rate"] * g
            elif rule == "adam":
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
                rate = settings["lr"] * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
                w = w - rate * m / (np.sqrt(v) + 1e-8)
            else:
                mu, step = settings.get("momentum", 0.9), settings["learning_rate"] * g
                v = mu * v - step
                w = w + (mu * v - step if rule == "nesterov_momentum" else v)
            state["v", i], state["m", i] = v, m
            moved.append(w)
        return moved

    return move


def dataset(dtype):
    random = np.random.RandomState(6)
    return random.randn(ROWS, FEATURES).astype(dtype), random.randint(0, CLASSES, ROWS, "int32")


@pytest.mark.parametrize(
    "rule, dtype",
    [*((rule, "float32") for rule in RULES), ("adam", "float64"), ("momentum", "float64")],
)
def test_training_is_the_serial_training_on_the_same_rows(synk, n, device_set, rule, dtype):
    """Even and uneven batches, fewer rows than ranks, slices, rows from shared memory or not."""
    model = Model(device_set, dtype)
    params = [exact(value) for value in model.values()]
    move = steps_of(rule, RULES[rule])
    x, y = dataset(dtype)
    train = make_train_function(
        model.loss, model.params, [model.x, model.y], getattr(updates, rule), **RULES[rule]
    )
    held = train.build_inputs(x, y)
    steps = 0
    for batch_size, num_slices in [(4 * n, 1), (17, 1), (17, 3), (1, 2)]:
        random = np.random.RandomState(batch_size)
        for indexes in list(index_batches(ROWS, batch_size, random))[:4]:
            loss, gradients = loss_and_gradients(params, exact(x[indexes]), y[indexes])
            params = move(params, gradients)
            arguments = held if steps % 2 else (x, y)
            got = train(*arguments, batch=indexes, num_slices=num_slices)
            steps += 1
            # Rounding of earlier steps goes on into later ones.
            assert abs(float(got) - loss) <= 10 * TOLERANCE[dtype] * max(1, abs(loss))
        for got, want in zip(model.values(), params):
            assert np.max(np.abs(got - want)) <= 10 * TOLERANCE[dtype]
    for param in model.params:
        results = on_all(synk, n, param)
        for got in results:
            np.testing.assert_array_equal(got, results[0])


def test_training_on_resident_rows(synk, n, device_set, place):
    """Each rank holds a part of the data, and picks its own rows of it."""
    model = Model(device_set, "float32")
    params = [exact(value) for value in model.values()]
    move = steps_of("momentum", RULES["momentum"])
    x, y = dataset("float32")
    s_x, s_y = shared(x[:1], place, "s_x"), shared(y[:1], place, "s_y")
    train = make_train_function(
        model.loss,
        model.params,
        [],
        updates.momentum,
        givens={model.x: s_x, model.y: s_y},
        sliceable_shareds=[s_x, s_y],
        **RULES["momentum"],
    )
    synk.distribute()
    synk.scatter([s_x, s_y], [x, y])
    places = np.array_split(np.arange(ROWS), n)
    for step in range(4):
        mine = [[int(step + r + k) % len(p) for k in range(3 + r)] for r, p in enumerate(places)]
        rows = np.concatenate([p[index] for p, index in zip(places, mine)])
        loss, gradients = loss_and_gradients(params, exact(x[rows]), y[rows])
        params = move(params, gradients)
        same(train(batch_s=mine, num_slices=1 + step % 2), loss, "float32")
    for got, want in zip(model.values(), params):
        assert np.max(np.abs(got - want)) <= 10 * TOLERANCE["float32"]


def test_several_acts_are_one_step(synk, n, place):
    x = T.matrix("x", dtype="float32")
    w, g, t = (shared(np.zeros(3, "float32"), place, name) for name in "wgt")
    synk.broadcast(w, np.ones(3, "float32"))
    gradient = synk.function([x], (x * w).mean(), updates=[(g, (x * w).mean(axis=0))])
    update = synk.function([], updates=[(w, w - 0.5 * g)])
    rows = values("float32", (4 * n + 1, 3))
    expected = np.ones(3)
    for _ in range(5):
        for batch in (None, [4, 1, 0], 1):
            chosen = exact(rows if batch is None else rows[:1] if batch == 1 else rows[batch])
            loss, *nothing = synk.step(
                gradient.delayed(rows, batch=batch),
                synk.delayed.all_reduce(g, weights=gradient),
                update,
            )
            same(loss, (chosen * expected).mean(), "float32")
            assert nothing == [None, None]
            expected = expected - 0.5 * (chosen * expected).mean(axis=0)
    for got in on_all(synk, n, w):
        same(got, expected, "float32")
    results = synk.step(
        synk.delayed.broadcast(t, np.arange(3, dtype="float32")),
        synk.delayed.set_value(n - 1, t, np.full(3, 7, "float32")),
        synk.delayed.gather(t),
        synk.delayed.get_value(n - 1, t),
        synk.delayed.get_shapes([t]),
        synk.delayed.all_reduce(t, "max"),
        synk.delayed.reduce(t, "sum", in_place=False),
        synk.delayed.all_gather(t),
    )
    held = np.array([np.arange(3.0)] * (n - 1) + [[7.0] * 3])
    same(results[2], held, "float32")
    same(results[3], held[-1], "float32")
    assert results[4] == (((3,),) * n,)
    same(results[6], n * held.max(axis=0), "float32")
    for got in on_all(synk, n, t):
        same(got, np.tile(held.max(axis=0), n), "float32")


def test_lint_finds_a_gradient_that_nobody_reduced(synk, n, place):
    # It looks at all that this process has done: this name is of this test alone.
    name = f"g on the {place}"
    x = T.matrix("x", dtype="float32")
    w = shared(np.ones(3, "float32"), place, "w")
    g = shared(np.zeros(3, "float32"), place, name)
    gradient = synk.function([x], updates=[(g, (x * w).mean(axis=0))], name="gradient")
    update = synk.function([], updates=[(w, w - 0.125 * g)], name="update")
    rows = values("float32", (3 * n, 3))
    gradient(rows)
    synk.all_reduce(g, weights=gradient)
    update()
    assert not [finding for finding in synk.lint() if name in str(finding)]
    gradient(rows)
    update()
    assert any(name in str(finding) for finding in synk.lint()) == (n > 1)
