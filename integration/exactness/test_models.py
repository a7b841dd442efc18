"""Models that are right, of Lasagne's layers, losses and update rules: none raises an alarm."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from synkhronos.extensions import updates
from synkhronos.extensions.train import make_train_function, make_train_function_theano

lasagne = pytest.importorskip("lasagne", reason="needs Theano")

import theano.tensor as T  # noqa: E402 - it comes with Lasagne
from lasagne import layers as L  # noqa: E402
from lasagne import nonlinearities as nl  # noqa: E402
from lasagne import objectives  # noqa: E402

from synkhronos.extensions.lasagne import sync_batch_norm  # noqa: E402

BY_DAY, BY_NIGHT, ROWS = 12, 300, 7
FLAT, SERIES, IMAGE = (6,), (5, 3), (2, 6, 6)


def shared_weights(net):
    one = L.DenseLayer(net, 4)
    return L.ConcatLayer([one, L.DenseLayer(net, 4, W=one.W, b=one.b, nonlinearity=nl.tanh)])


LAYERS = {
    "dense": (FLAT, lambda net: L.DenseLayer(net, 5)),
    "deep": (FLAT, lambda net: L.DenseLayer(L.DenseLayer(net, 5, nonlinearity=nl.tanh), 5)),
    "maxout": (FLAT, lambda net: L.FeaturePoolLayer(L.DenseLayer(net, 6), 2)),
    "winner": (FLAT, lambda net: L.FeatureWTALayer(L.DenseLayer(net, 6), 3)),
    "leaky": (FLAT, lambda net: L.DenseLayer(net, 5, nonlinearity=nl.LeakyRectify(0.2))),
    "residual": (FLAT, lambda net: L.ElemwiseSumLayer([net, L.DenseLayer(net, 6)])),
    "maximum": (FLAT, lambda net: L.ElemwiseMergeLayer([net, L.DenseLayer(net, 6)], T.maximum)),
    "shared weights": (FLAT, shared_weights),
    "tail": (FLAT, lambda net: L.SliceLayer(L.DenseLayer(net, 8), slice(2, None))),
    "dropout": (FLAT, lambda net: L.DropoutLayer(L.DenseLayer(net, 5), 0.3)),
    "noise": (FLAT, lambda net: L.GaussianNoiseLayer(L.DenseLayer(net, 5))),
    "normalised": (FLAT, lambda net: sync_batch_norm(L.DenseLayer(net, 5))),
    "convolution of series": (SERIES, lambda net: L.Conv1DLayer(net, 3, 3)),
    "pooled series": (SERIES, lambda net: L.MaxPool1DLayer(net, 2)),
    "recurrent": (SERIES, lambda net: L.RecurrentLayer(net, 4)),
    "lstm": (SERIES, lambda net: L.LSTMLayer(net, 3)),
    "gru, last": (SERIES, lambda net: L.SliceLayer(L.GRULayer(net, 3), -1, axis=1)),
    "transposed": (SERIES, lambda net: L.DenseLayer(L.DimshuffleLayer(net, (0, 2, 1)), 4)),
    "reshaped": (SERIES, lambda net: L.ReshapeLayer(L.ReshapeLayer(net, (-1, 3)), (-1, 15))),
    "mean of series": (SERIES, lambda net: L.GlobalPoolLayer(L.Conv1DLayer(net, 4, 2))),
    "convolution": (IMAGE, lambda net: L.Conv2DLayer(net, 3, 3)),
    "strided": (IMAGE, lambda net: L.Conv2DLayer(net, 3, 3, stride=2, pad="same")),
    "pooled": (IMAGE, lambda net: L.MaxPool2DLayer(L.Conv2DLayer(net, 3, 3), 2)),
    "averages": (IMAGE, lambda net: L.Pool2DLayer(net, 2, mode="average_inc_pad")),
    "global": (IMAGE, lambda net: L.GlobalPoolLayer(L.Conv2DLayer(net, 4, 3))),
    "network in network": (IMAGE, lambda net: L.NINLayer(net, 3)),
    "response": (IMAGE, lambda net: L.LocalResponseNormalization2DLayer(net, n=1)),
    "padded": (IMAGE, lambda net: L.Conv2DLayer(L.PadLayer(net, 1), 2, 3)),
    "normalised image": (IMAGE, lambda net: sync_batch_norm(L.Conv2DLayer(net, 3, 3))),
}
DRAWS = ("dropout", "noise")
squares, entropy = objectives.squared_error, objectives.categorical_crossentropy
one_hot = T.extra_ops.to_one_hot
LOSSES = {
    "squared": (nl.linear, lambda out, y, t: squares(out, t)),
    "cross-entropy": (nl.softmax, lambda out, y, t: entropy(out, y)),
    "binary": (nl.sigmoid, lambda out, y, t: objectives.binary_crossentropy(out, t > 0)),
    "weighted": (nl.linear, lambda out, y, t: squares(out, t).mean(axis=1) * abs(t[:, 0])),
    "hinge": (nl.linear, lambda out, y, t: T.maximum(0, 1 - out * T.sgn(t))),
    "absolute": (nl.tanh, lambda out, y, t: abs(out - t).sum(axis=1)),
    "smoothed": (nl.softmax, lambda out, y, t: entropy(out, 0.9 * one_hot(y, 3) + 0.1 / 3)),
}
PENALTIES = (lasagne.regularization.l2, lasagne.regularization.l1, None)
RULES = [
    getattr(updates, name)
    for name in (
        *("sgd", "sgd_nonflat", "momentum", "nesterov_momentum", "adagrad", "rmsprop"),
        *("adadelta", "adam", "amsgrad", "adamax"),
    )
]
RULES += [
    updates.clip_by_global_norm(updates.adam, 0.5),
    updates.weight_decay(updates.momentum, 1e-3),
    updates.norm_constraint(updates.sgd, 1.0),
]


def picked(table, number):
    return list(table.items())[number % len(table)]


# By day, some of them, and of the draws those that are numbers of a normal distribution.
DAILY = {*range(0, BY_NIGHT, BY_NIGHT // BY_DAY), list(LAYERS).index("noise")}

# The lengths of the tables have no common factor: each meets all of the others.
CASES = [
    pytest.param(
        *(layer, loss, RULES[i % len(RULES)]),
        *(PENALTIES[i % 3], layer[0] in DRAWS),
        id="-".join([layer[0], loss[0], str(i)]),
        marks=[] if i in DAILY else [pytest.mark.nightly],
    )
    for i in range(BY_NIGHT)
    for layer, loss in [(picked(LAYERS, i), picked(LOSSES, i))]
]


@pytest.mark.parametrize(("layer", "loss", "rule", "penalty", "draws"), CASES)
def test_a_right_model_trains_as_in_one_process_without_alarm(layer, loss, rule, penalty, draws):
    rng = np.random.RandomState(5)
    lasagne.random.set_rng(rng)
    (shape, build), (squash, per_row) = layer[1], loss[1]
    x = T.TensorType("float64", [False] * (1 + len(shape)))("x")
    inputs = [x, T.lvector("y"), T.dmatrix("t")]
    net = L.DenseLayer(build(L.InputLayer((None, *shape), x)), 3, nonlinearity=squash)
    cost = per_row(L.get_output(net), *inputs[1:]).mean() + 0 * sum(i.mean() for i in inputs[1:])
    if penalty is not None:
        cost = cost + 1e-3 * lasagne.regularization.regularize_network_params(net, penalty)
    params = L.get_all_params(net, trainable=True)
    start = [param.get_value() for param in params]
    found = []
    for make in (make_train_function_theano, make_train_function):
        for param, value in zip(params, start):
            param.set_value(value)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            train = make(cost, params, inputs, rule, learning_rate=0.01)
            steps = []
            for seed in range(2):
                draw = np.random.RandomState(seed)
                labels, targets = draw.randint(0, 3, ROWS), draw.randn(ROWS, 3)
                steps.append(train(draw.randn(ROWS, *shape), labels, targets))
        found.append([*steps, *(param.get_value() for param in params)])
    for serial, parallel in zip(*found):
        if draws:
            assert np.isfinite(parallel).all()
        else:
            np.testing.assert_allclose(parallel, serial, rtol=1e-7, atol=1e-10)
