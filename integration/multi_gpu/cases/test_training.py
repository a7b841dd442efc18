"""Training is the serial training, step for step; and several acts as one step."""

from __future__ import annotations

import numpy as np
import pytest
import theano
import theano.tensor as T
from _lib import TOLERANCE, cross_entropy, exact, on_all, same, shared

from synkhronos.extensions import updates
from synkhronos.extensions.batches import index_batches
from synkhronos.extensions.train import make_train_function

ROWS, FEATURES, HIDDEN, CLASSES = 60, 6, 5, 4
RULES = {
    "sgd": {"learning_rate": 0.3},
    "momentum": {"learning_rate": 0.1, "momentum": 0.5},
    "adam": {"lr": 0.02},
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
            if rule == "sgd":
                w = w - settings["learning_rate"] * g
            elif rule == "adam":
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
                rate = settings["lr"] * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
                w = w - rate * m / (np.sqrt(v) + 1e-8)
            else:
                v = settings["momentum"] * v - settings["learning_rate"] * g
                w = w + v
            state["v", i], state["m", i] = v, m
            moved.append(w)
        return moved

    return move


def dataset(dtype):
    random = np.random.RandomState(6)
    return random.randn(ROWS, FEATURES).astype(dtype), random.randint(0, CLASSES, ROWS, "int32")


@pytest.mark.parametrize(
    "rule, dtype",
    [*((rule, "float32") for rule in RULES), ("adam", "float64")],
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
