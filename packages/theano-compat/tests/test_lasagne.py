"""Lasagne 0.1 and 0.2.dev1: the removed downsample module, and networks against NumPy."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


def folders():
    """Where Lasagne is, without importing it."""
    spec = importlib.util.find_spec("lasagne")
    return [] if spec is None else spec.submodule_search_locations or []


needs_lasagne = pytest.mark.skipif(
    importlib.util.find_spec("lasagne") is None, reason="Lasagne is not installed"
)

# As strict as can be about what our user would see: none of these warnings is ours to give.
STRICT = "import warnings; warnings.simplefilter('error', UserWarning)\n"
if folders():  # installed, or on PYTHONPATH
    STRICT += f"import sys; sys.path.insert(0, {str(Path(folders()[0]).parent)!r})\n"

DOWNSAMPLE = (
    STRICT
    + """
import theano, theano.tensor as T, numpy as np
from theano.tensor.signal import downsample
from theano.tensor.signal.downsample import max_pool_2d, max_pool_2d_same_size
import theano.tensor.signal.downsample as again
assert again is downsample
x = T.tensor4()
X = np.random.RandomState(0).permutation(98).reshape(1, 2, 7, 7).astype(x.dtype)

def pool(**kwargs):
    return theano.function([x], max_pool_2d(x, **kwargs))(X)

whole = X[:, :, :6, :6].reshape(1, 2, 3, 2, 3, 2).max(axis=(3, 5))
assert np.array_equal(pool(ds=(2, 2), ignore_border=True), whole)
border = pool(ds=(2, 2))
assert border.shape == (1, 2, 4, 4) and np.array_equal(border[:, :, :3, :3], whole)
assert border[0, 1, 3, 3] == X[0, 1, 6, 6]
overlapping = pool(ds=[3, 3], st=[1, 2], ignore_border=True)
expected = [[[X[0, c, i:i + 3, 2 * j:2 * j + 3].max() for j in range(3)] for i in range(5)]
            for c in range(2)]
assert np.array_equal(overlapping[0], expected)
padded = pool(ds=(3, 3), st=(2, 2), padding=(1, 1), ignore_border=True)
P = np.pad(X, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=-1)
expected = [[[P[0, c, 2 * i:2 * i + 3, 2 * j:2 * j + 3].max() for j in range(4)] for i in range(4)]
            for c in range(2)]
assert np.array_equal(padded[0], expected)
mean = pool(ds=(7, 7), mode="average_exc_pad", ignore_border=True)
np.testing.assert_allclose(mean[..., 0, 0], X.mean(axis=(2, 3)))
same = theano.function([x], max_pool_2d_same_size(x, (7, 7)))(X)
assert np.count_nonzero(same) == 2
"""
)


def test_downsample(run, forked):
    forked("import theano; theano.config.linker = 'py'\n" + DOWNSAMPLE)
    assert "downsample" in run(DOWNSAMPLE, skip="downsample", fails=True).stderr


NETWORK = (
    STRICT
    + """
import lasagne  # first: it imports theano
import theano, theano.tensor as T, numpy as np
from lasagne.layers import *
rng = np.random.RandomState(0)
lasagne.random.set_rng(rng)
x, y = T.tensor4(), T.ivector()
X, Y = rng.randn(6, 2, 8, 8).astype(x.dtype), rng.randint(0, 3, 6).astype("int32")
net = InputLayer((None, 2, 8, 8), x)
net = conv = Conv2DLayer(net, 4, (3, 3), pad="same")
net = MaxPool2DLayer(net, (2, 2))
net = dropout = DropoutLayer(net, 0.4)
net = DenseLayer(net, 3, nonlinearity=lasagne.nonlinearities.softmax)
params = get_all_params(net, trainable=True)
W, b, V, c = (p.get_value() for p in params)

def forward(X):
    P = np.pad(X, [(0, 0), (0, 0), (1, 1), (1, 1)])
    F = W[:, :, ::-1, ::-1]
    h = b[:, None, None] + sum(np.einsum("bcij,oc->boij", P[:, :, i:i + 8, j:j + 8], F[:, :, i, j])
                               for i in range(3) for j in range(3))
    h = np.maximum(h, 0).reshape(len(X), 4, 4, 2, 4, 2).max(axis=(3, 5)).reshape(len(X), -1)
    e = np.exp(h.dot(V) + c)
    return e / e.sum(axis=1, keepdims=True)

out = get_output(net, deterministic=True)
np.testing.assert_allclose(theano.function([x], out)(X), forward(X), rtol=1e-9)
loss = lasagne.objectives.categorical_crossentropy(out, y).mean()
loss += 0.5 * lasagne.regularization.regularize_network_params(net, lasagne.regularization.l2)
penalty = 0.5 * ((W**2).sum() + (V**2).sum())
value = theano.function([x, y], loss)(X, Y)
np.testing.assert_allclose(value, penalty - np.log(forward(X)[range(6), Y]).mean(), rtol=1e-9)
noisy = theano.function([x], get_output(dropout))(X)
kept = noisy != 0
clean = theano.function([x], get_output(dropout, deterministic=True))(X)
np.testing.assert_allclose(noisy[kept], clean[kept] / 0.6, rtol=1e-9)
assert 0.3 < 1 - kept[clean != 0].mean() < 0.5

grads = theano.function([x, y], T.grad(loss, params))(X, Y)
updates = lasagne.updates.nesterov_momentum(loss, params, 0.1, 0.9)
step = theano.function([x, y], [], updates=updates)
step(X, Y)
for p, old, g in zip(params, (W, b, V, c), grads):
    expected = old + 0.9 * (-0.1 * g) - 0.1 * g
    np.testing.assert_allclose(p.get_value(), expected, rtol=1e-8, atol=1e-12)
for rule in ("adagrad", "adam"):
    updates = getattr(lasagne.updates, rule)(loss, params, learning_rate=1e-3)
    train = theano.function([x, y], loss, updates=updates)
    losses = [float(train(X, Y)) for _ in range(4)]
    assert losses[-1] < losses[0], (rule, losses)
"""
)

RECURRENT = (
    STRICT
    + """
import theano, theano.tensor as T, numpy as np
import lasagne
from lasagne.layers import *
lasagne.random.set_rng(np.random.RandomState(3))
x = T.tensor3()
X = np.random.RandomState(1).randn(3, 5, 4).astype(x.dtype)
lstm = LSTMLayer(InputLayer((None, 5, 4), x), 6)
p = {q.name.split(".")[-1]: q.get_value() for q in lstm.get_params()}
sigmoid = lambda a: 1 / (1 + np.exp(-a))
h, c = np.zeros((3, 6)), np.zeros((3, 6))
states = []
for t in range(5):
    def gate(n, peep=None):
        a = X[:, t].dot(p["W_in_to_" + n]) + h.dot(p["W_hid_to_" + n]) + p["b_" + n]
        return a if peep is None else a + peep * p["W_cell_to_" + n]
    i, f = sigmoid(gate("ingate", c)), sigmoid(gate("forgetgate", c))
    c = f * c + i * np.tanh(gate("cell"))
    outgate = sigmoid(gate("outgate", c))
    if lasagne.__version__ == "0.1":  # it adds this peephole behind the sigmoid
        outgate = sigmoid(gate("outgate")) + c * p["W_cell_to_outgate"]
    h = outgate * np.tanh(c)
    states.append(h)
out = get_output(lstm)
np.testing.assert_allclose(theano.function([x], out)(X), np.stack(states, axis=1), rtol=1e-8)
loss = (out ** 2).sum()
weights = [q for q in get_all_params(lstm, trainable=True) if q.ndim == 2]
grads = theano.function([x], T.grad(loss, weights))(X)
value = theano.function([x], loss)
for q, g in zip(weights, grads):
    old = q.get_value()
    for sign in (1, -1):
        new = old.copy()
        new[1, 2] += sign * 1e-6
        q.set_value(new)
        g[1, 2] -= sign * value(X) / 2e-6
    q.set_value(old)
    assert abs(g[1, 2]) < 1e-6, (q, g[1, 2])
"""
)


@needs_lasagne
@pytest.mark.parametrize(
    ("code", "flags"),
    [
        # What Lasagne builds is in question here, not the C code: compiling that takes minutes.
        pytest.param(NETWORK, "optimizer=fast_compile", marks=pytest.mark.nightly),
        (RECURRENT, "linker=py,optimizer=fast_compile"),
    ],
    ids=["network", "recurrent"],
)
def test_numbers(run, code: str, flags: str):
    run(code, flags=flags)


# As the layers of 0.2.dev1 do it: the module is reached, but imported nowhere.
POOLING = """
import sys, pathlib, tempfile
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "lasagne").mkdir()
(folder / "lasagne" / "__init__.py").write_text(
    "import theano.tensor as T\\n"
    "def pool(x):\\n    return T.signal.pool.pool_2d(x, ws=(2, 2), ignore_border=True)\\n"
)
sys.path.insert(0, str(folder))
import lasagne, theano.tensor as T
assert lasagne.__file__.startswith(str(folder))
assert lasagne.pool(T.tensor4()).ndim == 4
"""


def test_pooling_of_the_development_version(run):
    run(POOLING)
    assert "no attribute 'signal'" in run(POOLING, skip="L2", fails=True).stderr


GRID = """
import sys, pathlib, tempfile
layers = pathlib.Path(tempfile.mkdtemp()) / "lasagne" / "layers"
layers.mkdir(parents=True)
(layers.parent / "__init__.py").write_text("from . import layers")
(layers / "__init__.py").write_text("from . import special")
(layers / "special.py").write_text(
    "import numpy as np\\n"
    "def _initialize_tps(num_control_points):\\n"
    "    return np.linspace(-1, 1, np.sqrt(num_control_points))\\n"
)
sys.path.insert(0, str(layers.parent.parent))
import lasagne
from lasagne.layers import special
assert special._initialize_tps(9).tolist() == [-1, 0, 1]
"""


def test_the_grid_of_the_development_version(run):
    run(GRID)
    assert "cannot be interpreted as an integer" in run(GRID, skip="L3", fails=True).stderr


needs_development_version = pytest.mark.skipif(
    not any((Path(folder) / "layers/special.py").exists() for folder in folders()),
    reason="Lasagne 0.2.dev1 is not installed (it is on no package index)",
)

DEVELOPMENT = (
    STRICT
    + """
import lasagne
import theano, theano.tensor as T, numpy as np
from lasagne.layers import *
lasagne.random.set_rng(np.random.RandomState(3))
x = T.tensor4()
X = np.random.RandomState(1).randn(6, 2, 8, 8).astype(x.dtype)
net = Conv2DLayer(InputLayer((None, 2, 8, 8), x), 3, (3, 3), b=None, nonlinearity=None)
norm = BatchNormLayer(net)
net = MaxPool2DLayer(norm, (2, 2))
net = batch_norm(DenseLayer(net, 4))
before, after = theano.function([x], [get_output(norm.input_layer), get_output(norm)])(X)
axes = (0, 2, 3)
std = np.sqrt(before.var(axes, keepdims=True) + 1e-4)
expected = (before - before.mean(axes, keepdims=True)) / std
np.testing.assert_allclose(after, expected, rtol=1e-8, atol=1e-10)
np.testing.assert_allclose(norm.mean.get_value(), 0.1 * before.mean(axes), rtol=1e-10)
identity = lasagne.init.Constant(0)
for layer, (n, b) in ((TransformerLayer, (6, np.eye(2, 3).ravel())),
                      (TPSTransformerLayer, (32, np.zeros(32)))):
    image = InputLayer((None, 2, 8, 8), x)
    moves = DenseLayer(image, n, W=identity, b=b, nonlinearity=None)
    np.testing.assert_allclose(
        theano.function([x], get_output(layer(image, moves)))(X), X, atol=1e-5
    )
loss = T.sqr(get_output(net)).mean()
params = get_all_params(net, trainable=True)
train = theano.function([x], loss, updates=lasagne.updates.amsgrad(loss, params, 0.01))
losses = [float(train(X)) for _ in range(4)]
assert losses[-1] < losses[0], losses
"""
)


@needs_development_version
def test_numbers_of_the_development_version(run):
    run(DEVELOPMENT, flags="optimizer=fast_compile")
