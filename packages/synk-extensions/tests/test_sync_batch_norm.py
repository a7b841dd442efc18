"""Synchronised batch normalisation over ranks is ordinary batch normalisation over all rows."""

from __future__ import annotations

import sys

import cloudpickle
import lasagne
import numpy as np
import pytest
import theano
import theano.tensor as T
from _training import forked
from lasagne.layers import (
    Conv2DLayer,
    DenseLayer,
    InputLayer,
    Layer,
    NonlinearityLayer,
    get_all_layers,
    get_all_params,
    get_output,
)

import synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.extensions.lasagne import SyncBatchNormLayer, convert, sync_batch_norm
from synkhronos.extensions.train import make_train_function

# Workers cannot import test modules by the names that pytest gives them.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.fast_compile

TOLERANCE = 1e-10
BATCHES = (7, 8, 2, 1, 12, 7, 3, 8, 5, 9)  # of 3 ranks: also such that one or two have no rows
CLASSES = 3
RATES = {"learning_rate": 0.1, "momentum": 0.9}
QUICK = theano.Mode("py", "fast_compile")  # nothing in C: compiling it would take longest


class Ordinary(Layer):
    """Batch normalisation over the rows that it sees, as Lasagne 0.2.dev1 defines it."""

    def __init__(self, incoming, axes="auto", epsilon=1e-4, alpha=0.1):
        super().__init__(incoming)
        self.axes = (0, *range(2, len(self.input_shape))) if axes == "auto" else axes
        self.epsilon, self.alpha = epsilon, alpha
        shape = [n for axis, n in enumerate(self.input_shape) if axis not in self.axes]
        zero, one = lasagne.init.Constant(0), lasagne.init.Constant(1)
        self.beta = self.add_param(zero, shape, "beta", regularizable=False)
        self.gamma = self.add_param(one, shape, "gamma")
        fixed = {"trainable": False, "regularizable": False}
        self.mean = self.add_param(zero, shape, "mean", **fixed)
        self.inv_std = self.add_param(one, shape, "inv_std", **fixed)

    def get_output_for(self, input, deterministic=False, **kwargs):  # noqa: A002
        mean, inv_std = self.mean, self.inv_std
        if not deterministic:
            mean = input.mean(self.axes)
            inv_std = 1 / T.sqrt(input.var(self.axes) + self.epsilon)
            for held, now in ((self.mean, mean), (self.inv_std, inv_std)):
                running = theano.clone(held, share_inputs=False)
                running.default_update = (1 - self.alpha) * running + self.alpha * now
                mean = mean + 0 * running.sum()
        pattern = ["x"] * input.ndim
        pattern[1] = 0
        value = (input - mean.dimshuffle(pattern)) * (self.gamma * inv_std).dimshuffle(pattern)
        return value + self.beta.dimshuffle(pattern)


# What a serial script has: Lasagne's own layer where it has one.
ORDINARY = getattr(lasagne.layers, "BatchNormLayer", Ordinary)
HAS_BATCH_NORM = ORDINARY is not Ordinary


class Net:
    def __init__(self, normalized, kind="dense"):
        lasagne.random.set_rng(np.random.RandomState(5))
        self.x, self.y = (T.dmatrix if kind == "dense" else T.dtensor4)("x"), T.ivector("y")
        if kind == "dense":
            layer = InputLayer((None, 4), self.x)
        else:
            layer = InputLayer((None, 2, 5, 5), self.x)
            layer = Conv2DLayer(layer, 3, (3, 3), nonlinearity=None)
            layer = NonlinearityLayer(normalized(layer), T.nnet.relu)
        layer = DenseLayer(layer, 6, nonlinearity=None)
        layer = normalized(layer)
        layer = NonlinearityLayer(layer, T.tanh)
        layer = normalized(DenseLayer(layer, CLASSES, nonlinearity=None))
        self.top = NonlinearityLayer(layer, T.nnet.softmax)
        self.params = get_all_params(self.top, trainable=True)
        self.averages = get_all_params(self.top, trainable=False)
        self.loss = T.nnet.categorical_crossentropy(get_output(self.top), self.y).mean()

    def values(self):
        return [held.get_value() for held in (*self.params, *self.averages)]

    def serial_function(self):
        rule = lasagne.updates.nesterov_momentum(self.loss, self.params, **RATES)
        return theano.function([self.x, self.y], self.loss, updates=rule)

    def parallel_function(self):
        return make_train_function(
            self.loss, self.params, [self.x, self.y], updates.nesterov_momentum, **RATES
        )


def batches(kind="dense"):
    rng = np.random.RandomState(8)
    for rows in BATCHES:
        shape = (rows, 4) if kind == "dense" else (rows, 2, 5, 5)
        yield 2 + 3 * rng.randn(*shape), rng.randint(0, CLASSES, rows).astype("int32")


def largest(pairs):
    return max(np.abs(np.asarray(a) - b).max() for a, b in pairs)


# Three may have a rank without rows, and one in the middle.
@pytest.fixture(
    scope="module",
    params=[pytest.param(2, marks=pytest.mark.nightly), 3],
    ids=lambda n: f"{n}-processes",
)
def processes(request):
    with forked(request.param):
        yield request.param


# Convolutions exist in C only.
CONVOLUTIONS = pytest.param("convolutions", marks=[pytest.mark.c_code, pytest.mark.nightly])


@pytest.mark.parametrize("kind", ["dense", CONVOLUTIONS])
def test_ten_steps_equal_the_serial_ones(processes, kind):
    serial, parallel = Net(ORDINARY, kind), Net(SyncBatchNormLayer, kind)
    assert largest(zip(serial.values(), parallel.values())) == 0
    f, g = serial.serial_function(), parallel.parallel_function()
    synk.distribute()
    start = serial.values()
    for x, y in batches(kind):
        assert abs(g(x, y) - f(x, y)) < TOLERANCE
        assert largest(zip(serial.values(), parallel.values())) < TOLERANCE
    assert largest(zip(start, serial.values())) > 0.1
    for held in serial.averages:
        assert np.abs(held.get_value()).max() > 0.01
    x, y = next(batches(kind))
    predict = synk.function([parallel.x], (get_output(parallel.top, deterministic=True), "gather"))
    expected = get_output(serial.top, deterministic=True).eval({serial.x: x})
    assert np.abs(predict(x) - expected).max() < TOLERANCE
    assert largest(zip(serial.values(), parallel.values())) < TOLERANCE


def test_parameters_and_averages():
    x = np.random.RandomState(0).randn(6, 4, 3)
    symbol = T.dtensor3()
    layer = SyncBatchNormLayer(
        InputLayer((None, 4, 3), symbol), axes=(0, 2), epsilon=0.5, alpha=0.25,
        beta=None, gamma=None, mean=np.full(4, 2.0), inv_std=np.full(4, 3.0), name="n",
    )  # fmt: skip
    assert [held.name for held in layer.get_params()] == ["n.mean", "n.inv_std"]
    assert layer.get_params(batch_norm_stat=True) == layer.get_params(trainable=False)
    mean, inv_std = x.mean((0, 2)), 1 / np.sqrt(x.var((0, 2)) + 0.5)
    by_row = (x - mean[:, None]) * inv_std[:, None]
    by_averages = (x - 2) * 3

    def output(**options):
        return theano.function([symbol], layer.get_output_for(symbol, **options), mode=QUICK)(x)

    np.testing.assert_allclose(output(batch_norm_update_averages=False), by_row, rtol=1e-12)
    np.testing.assert_allclose(output(deterministic=True), by_averages, rtol=1e-12)
    np.testing.assert_array_equal(layer.mean.get_value(), np.full(4, 2.0))
    np.testing.assert_allclose(output(batch_norm_use_averages=True), by_averages, rtol=1e-12)
    np.testing.assert_allclose(layer.mean.get_value(), 1.5 + mean / 4, rtol=1e-12)
    np.testing.assert_allclose(layer.inv_std.get_value(), 2.25 + inv_std / 4, rtol=1e-12)
    np.testing.assert_allclose(output(), by_row, rtol=1e-12)
    tags = SyncBatchNormLayer((None, 4))
    assert tags.get_params(trainable=True) == [tags.beta, tags.gamma]
    assert tags.get_params(regularizable=True) == [tags.gamma]


def test_the_wrapper():
    dense = DenseLayer(InputLayer((None, 4)), 5, nonlinearity=T.tanh, name="d")
    top = sync_batch_norm(dense, epsilon=0.1)
    assert isinstance(top, NonlinearityLayer)
    assert (top.nonlinearity, top.name) == (T.tanh, "d_bn_nonlin")
    middle = top.input_layer
    assert isinstance(middle, SyncBatchNormLayer)
    assert (middle.input_layer, middle.epsilon, middle.name) == (dense, 0.1, "d_bn")
    assert dense.b is None
    assert dense.get_params() == [dense.W]
    assert dense.nonlinearity is lasagne.nonlinearities.identity
    assert type(sync_batch_norm(InputLayer((None, 4)))) is SyncBatchNormLayer


def test_a_layer_is_not_normalised_twice(ordinary):
    dense = DenseLayer(InputLayer((None, 4)), 5, nonlinearity=T.tanh)
    inner = ordinary(dense)
    # What batch_norm() and sync_batch_norm() return: with a nonlinearity, and without.
    tops = [NonlinearityLayer(inner, T.tanh), inner, sync_batch_norm(dense)]
    for top in (*tops, tops[-1].input_layer):
        with pytest.raises(ValueError, match=r"normalised already; .* convert\(network\)"):
            sync_batch_norm(top)
    assert tops[0].nonlinearity is T.tanh
    again = NonlinearityLayer(DenseLayer(tops[0], 2, nonlinearity=None), T.tanh)
    assert type(sync_batch_norm(again).input_layer) is SyncBatchNormLayer


@pytest.fixture
def ordinary(monkeypatch):
    """Lasagne's layer, or one that stands in its place if there is none."""
    if HAS_BATCH_NORM:
        return ORDINARY
    made = type("BatchNormLayer", (Ordinary,), {"__module__": "lasagne.layers.normalization"})
    monkeypatch.setattr(lasagne.layers, "BatchNormLayer", made, raising=False)
    return made


def test_conversion(ordinary):
    net, same = Net(ordinary), Net(SyncBatchNormLayer)
    layers, params = get_all_layers(net.top), get_all_params(net.top)
    assert convert(net.top, cost="sum") is net.top
    assert get_all_layers(net.top) == layers
    assert get_all_params(net.top) == params
    assert sum(type(layer) is SyncBatchNormLayer for layer in layers) == 2
    assert {layer.cost for layer in layers if type(layer) is SyncBatchNormLayer} == {"sum"}
    assert convert([net.top]) == [net.top]
    x, _ = next(batches())
    output, expected = (
        theano.function([n.x], get_output(n.top), mode=QUICK)(x) for n in (net, same)
    )
    np.testing.assert_array_equal(output, expected)


def test_layers_that_are_not_converted(ordinary):
    derived = type("Derived", (ordinary,), {})
    with pytest.raises(TypeError, match="'mine' is a Derived"):
        top = derived(InputLayer((None, 4)))
        top.name = "mine"
        convert(top)
    wrong = ordinary(InputLayer((3, 4)), axes=(1,))
    with pytest.raises(ValueError, match="expected axis 0"):
        convert([ordinary(InputLayer((3, 4))), wrong])
    assert type(wrong) is ordinary
    net = DenseLayer(InputLayer((None, 4)), 5)
    assert convert(net) is net


def test_errors():
    for message, shape, how in (
        ("expected axis 0", (3, 4), {"axes": 1}),
        ("got axes 'rows'", (3, 4), {"axes": "rows"}),
        ("expected sizes for all axes", (3, None), {}),
        ("got cost 'median'", (3, 4), {"cost": "median"}),
    ):
        with pytest.raises(ValueError, match=message):
            SyncBatchNormLayer(shape, **how)
    assert SyncBatchNormLayer((3, 4), axes=np.int64(0)).axes == (0,)
