"""Layers that only Lasagne 0.2.dev1 has, trained on ranks: the steps are those of one process."""

from __future__ import annotations

import numpy as np
import pytest
import theano
import theano.tensor as T
from _training import everywhere, forked

import synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.extensions.lasagne import convert
from synkhronos.extensions.train import make_train_function

lasagne = pytest.importorskip("lasagne")
layers = lasagne.layers

pytestmark = [
    pytest.mark.fast_compile,
    pytest.mark.skipif(
        not hasattr(layers, "batch_norm"), reason=f"Lasagne {lasagne.__version__} has none of them"
    ),
]
ROWS, CLASSES, TOLERANCE = 7, 3, 1e-9


@pytest.fixture(scope="module")
def three_ranks():
    with forked(3):
        yield


def recurrent(x):
    lengths = T.ceil(5 * T.nnet.sigmoid(x[:, 0, 0])).dimshuffle(0, "x")
    mask = layers.InputLayer((None, 5), T.lt(T.arange(5).dimshuffle("x", 0), lengths))
    network = layers.InputLayer((None, 5, 4), x)
    network = layers.LSTMLayer(network, 6, mask_input=mask)
    return layers.GRULayer(network, 6, mask_input=mask, backwards=True, only_return_final=True)


def residual(x):
    network = layers.InputLayer((None, 2, 6, 6), x)
    branch = layers.batch_norm(layers.Conv2DLayer(network, 4, 3, stride=2, pad="same"))
    branch = layers.batch_norm(layers.Conv2DLayer(branch, 4, 3, pad="same", nonlinearity=None))
    shortcut = layers.batch_norm(layers.Conv2DLayer(network, 4, 1, stride=2, nonlinearity=None))
    network = layers.ElemwiseSumLayer([branch, shortcut])
    network = layers.NonlinearityLayer(network, lasagne.nonlinearities.elu)
    return layers.GlobalPoolLayer(layers.Pool2DLayer(network, 3, pad=1, mode="average_inc_pad"))


def upwards(x):
    network = layers.InputLayer((None, 2, 4, 4), x)
    network = layers.batch_norm(layers.TransposedConv2DLayer(network, 3, 3, stride=2))
    return layers.prelu(layers.Conv2DLayer(layers.Upscale2DLayer(network, 2), 2, 3))


NETWORKS = {
    "recurrent": (recurrent, T.dtensor3, (5, 4)),
    "residual": (residual, T.dtensor4, (2, 6, 6)),
    "upwards": (upwards, T.dtensor4, (2, 4, 4)),
}
IN_C = [pytest.mark.c_code]  # convolutions


@pytest.mark.parametrize(
    "name", ["recurrent", *(pytest.param(name, marks=IN_C) for name in ("residual", "upwards"))]
)
def test_steps_on_ranks_are_those_of_one_process(three_ranks, name):
    build, symbol, shape = NETWORKS[name]

    def make(*, serial):
        lasagne.random.set_rng(np.random.RandomState(2))
        x, y = symbol("x"), T.ivector("y")
        network = layers.DenseLayer(build(x), CLASSES, nonlinearity=T.nnet.softmax)
        if not serial:
            convert(network)
        output = layers.get_output(network)
        loss = lasagne.objectives.categorical_crossentropy(output, y).mean()
        params = layers.get_all_params(network, trainable=True)
        if serial:
            rule = lasagne.updates.adam(loss, params, 0.01)
            return network, theano.function([x, y], loss, updates=rule)
        train = make_train_function(loss, params, [x, y], updates.adam, learning_rate=0.01)
        assert [found.verdict for found in synk.check(train.grad_function)] == ["exact"]
        return network, train

    (single, f), (divided, g) = make(serial=True), make(serial=False)
    start = layers.get_all_param_values(single)
    synk.distribute()
    rng = np.random.RandomState(4)
    for rows in (ROWS, 2, ROWS):  # of 3 ranks, also one without rows
        x, y = rng.randn(rows, *shape), rng.randint(0, CLASSES, rows).astype("int32")
        assert abs(f(x, y) - g(x, y)) < TOLERANCE
    expected = layers.get_all_param_values(single)
    assert all(np.abs(new - old).max() > 1e-3 for old, new in zip(start, expected) if new.any())
    for held in everywhere(layers.get_all_params(divided)):
        assert all(np.abs(one - value).max() < TOLERANCE for one, value in zip(held, expected))
