"""Averages of gradients that begin while the gradients are computed: exact, whatever fails."""

from __future__ import annotations

import sys

import cloudpickle
import numpy as np
import pytest
import theano
import theano.tensor as T
from theano.gradient import DisconnectedType

from synkhronos.extensions import updates
from synkhronos.extensions.train import make_train_function

cloudpickle.register_pickle_by_value(sys.modules[__name__])

LAYERS, ROWS, RATE = 4, 24, 0.02


class FailsBackwards(theano.Op):
    """Returns its input; what back-propagates through it fails if that is large."""

    __props__ = ()

    def make_node(self, x):
        return theano.Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0].copy()

    def grad(self, inputs, gradients):
        if isinstance(gradients[0].type, DisconnectedType):
            return gradients
        return [Backwards()(gradients[0], inputs[0])]


class Backwards(theano.Op):
    __props__ = ()

    def make_node(self, gradient, x):
        return theano.Apply(self, [gradient, x], [gradient.type()])

    def perform(self, node, inputs, outputs):
        if inputs[1].size and np.abs(inputs[1]).max() > 0.99:
            raise ValueError("no way back")
        outputs[0][0] = inputs[0].copy()


@pytest.fixture
def side(device_set):
    """Of the layers: where averages overlap each gradient is larger than a piece."""
    return 1100 if device_set.kind == "cuda" else 60


def start(side):
    random = np.random.RandomState(1)
    return [(random.randn(side, side) / side**0.5).astype("float32") for _ in range(LAYERS)]


def built(side, fails):
    x, y = T.fmatrices("xy")
    params = [theano.shared(value, name=f"w{i}") for i, value in enumerate(start(side))]
    hidden = x
    for i, w in enumerate(params):
        hidden = T.tanh(T.dot(hidden, w))
        if fails and not i:
            hidden = FailsBackwards()(hidden)
    loss = T.sqr(hidden - y).mean(axis=1).mean()
    return make_train_function(loss, params, [x, y], updates.sgd, learning_rate=RATE), params


def numpy_step(params, x, y):
    layers = [x.astype("float64")]
    for w in params:
        layers.append(np.tanh(layers[-1] @ w))
    error = layers[-1] - y
    back, moved = 2 * error / error.size, []
    for w, below, above in list(zip(params, layers, layers[1:]))[::-1]:
        inner = back * (1 - above**2)
        moved.append(w - RATE * below.T @ inner)
        back = inner @ w.T
    return (error**2).mean(), moved[::-1]


def data(side, rows, seed):
    random = np.random.RandomState(seed)
    return tuple(random.uniform(-0.5, 0.5, (rows, side)).astype("float32") for _ in "xy")


def overlapped(train):
    """Whether the last step's average began amid the gradient."""
    function = train.grad_function
    loaded = function._runtime._rank.functions[function.number]
    return any(average.is_done for average in loaded.averages.values())


@pytest.mark.parametrize("ahead", [False, True])
def test_training_equals_numpy(synk, n, device_set, side, ahead):
    train, params = built(side, fails=False)
    want = [value.astype("float64") for value in start(side)]
    batches = [data(side, ROWS - step % 2, step) for step in range(10)]
    losses = train.steps(iter(batches)) if ahead else (train(x, y) for x, y in batches)
    seen = []
    for (x, y), loss in zip(batches, losses):
        expected, want = numpy_step(want, x, y)
        assert abs(float(loss) - expected) <= 1e-5 * expected
        seen.append(overlapped(train))
    if device_set.kind == "cuda" and len(set(device_set.devices) or range(n)) == n > 1:
        assert seen[4:] == 6 * [True]  # calls 1, 2 and 4 are proved, and 3 is the first of its kind
    for param, value in zip(params, want):
        everywhere = synk.gather(param)
        assert all(np.array_equal(everywhere[0], other) for other in everywhere)
        assert np.abs(everywhere[0] - value).max() <= 2e-5


def test_a_rank_that_fails_amid_its_gradient(synk, side):
    train, params = built(side, fails=True)
    want = [value.astype("float64") for value in start(side)]
    for step in range(8):
        x, y = data(side, ROWS, step)
        if step in (3, 4, 6):
            bad = x.copy()
            bad[-1 if step < 6 else 0] = 30  # the last rank's, then the master's
            with pytest.raises(ValueError, match="no way back"):
                train(bad, y)
        loss = train(x, y)
        expected, want = numpy_step(want, x, y)
        assert abs(float(loss) - expected) <= 1e-5 * expected
    for param, value in zip(params, want):
        everywhere = synk.gather(param)
        assert all(np.array_equal(everywhere[0], other) for other in everywhere)
        assert np.abs(everywhere[0] - value).max() <= 2e-5
