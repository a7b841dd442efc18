"""Networks of PyTensor: against NumPy's loops, SciPy, and one process."""

from __future__ import annotations

import pickle
import warnings
from itertools import product

import numpy as np
import pytest
from _training import forked

import synkhronos as synk
from synk_core import check_outputs
from synk_testing.engine import IS_THEANO, T, engine
from synkhronos.extensions import updates
from synkhronos.extensions.train import make_train_function, make_train_function_theano

if IS_THEANO:
    with pytest.raises(ImportError, match="with Theano use Lasagne"):
        from synkhronos.extensions import nn
    pytest.skip("PyTensor only", allow_module_level=True)

from synkhronos.extensions import nn

RNG = np.random.default_rng(3)
X, W = RNG.normal(size=(3, 4, 7, 6)), RNG.normal(size=(6, 2, 3, 2))
GEOMETRIES = {
    "plain": {"groups": 2},
    "same": {"padding": "same", "groups": 2},
    "all": {
        "stride": (2, 1),
        "padding": [(1, 0), 2],
        "dilation": (1, 2),
        "groups": 2,
    },
}
POOLS = {
    "halves": {"size": 2},
    "over": {"size": (3, 2), "stride": (2, 1), "padding": [1, (0, 1)]},
    "same": {"size": 3, "stride": 1, "padding": "same"},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Compute by PyTensor's own implementations in Python, serially and on ranks: what is tested
    here is no C code."""
    monkeypatch.setattr(engine.config, "linker", "py")


def evaluate(outputs, given, mode=None):
    function = engine.function(list(given), outputs, mode=mode, on_unused_input="ignore")
    return function(*given.values())


def spans(length, size, stride, padding, dilation=1):
    """Return the places of each window along an axis, some of them outside."""
    lacking = (size - 1) * dilation
    if padding in ("same", "valid"):
        padding = (lacking // 2, lacking - lacking // 2) if padding == "same" else 0
    before, after = padding if isinstance(padding, tuple) else (padding, padding)
    starts = range(-before, length + after - lacking, stride)
    return [[start + i * dilation for i in range(size)] for start in starts]


def pairs(value):
    return (value, value) if isinstance(value, (int, str)) else value


def windows(x, size, stride=1, padding="valid", dilation=1, fill=0.0):
    """Return, by loops, (n, c, rows, columns, height, width)."""
    ways = zip(x.shape[2:], pairs(size), pairs(stride), pairs(padding), pairs(dilation))
    down, across = (spans(*way) for way in ways)
    result = np.full((*x.shape[:2], len(down), len(across), len(down[0]), len(across[0])), fill)
    for (a, rows), (b, columns) in product(enumerate(down), enumerate(across)):
        for (i, h), (j, v) in product(enumerate(rows), enumerate(columns)):
            if 0 <= h < x.shape[2] and 0 <= v < x.shape[3]:
                result[:, :, a, b, i, j] = x[:, :, h, v]
    return result


def convolved(x, w, groups=1, **geometry):
    seen = windows(x, w.shape[2:], **geometry)
    inputs, filters = np.split(seen, groups, axis=1), np.split(w, groups)
    parts = [np.einsum("ncabij,ocij->noab", *pair) for pair in zip(inputs, filters)]
    return np.concatenate(parts, axis=1)


def directional(function, places, step=1e-6):
    """Check the gradients that a function returns behind its value, along random directions."""
    given = dict(places)
    _, *gradients = function(*given.values())
    for (name, value), gradient in zip(places.items(), gradients):
        along = RNG.normal(size=value.shape)
        above, below = (
            function(*{**given, name: value + sign * step * along}.values())[0] for sign in (1, -1)
        )
        expected = (above - below) / (2 * step)
        assert (gradient * along).sum() == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_convolutions_equal_loops(geometry):
    x, w = T.dtensor4(), T.dtensor4()
    (y,) = evaluate([nn.conv2d(x, w, **geometry)], {x: X, w: W})
    np.testing.assert_allclose(y, convolved(X, W, **geometry), rtol=1e-12, atol=1e-12)
    shape = nn.conv2d(x, w, **geometry).shape
    np.testing.assert_array_equal(evaluate([shape], {x: X, w: W})[0], y.shape)
    fixed = nn.conv2d(T.tensor(shape=(None, *X.shape[1:])), T.tensor(shape=W.shape), **geometry)
    assert fixed.type.shape == (None, *y.shape[1:])


def test_a_convolution_equals_that_of_scipy_in_chunks_of_rows(monkeypatch):
    signal = pytest.importorskip("scipy.signal")
    monkeypatch.setattr("synkhronos.extensions.nn._arrays.CHUNK", 2 * 4 * 9 * 7 * 6 * 8)
    x, w = T.dtensor4(), T.dtensor4()
    values = RNG.normal(size=(5, 4, 7, 6)), RNG.normal(size=(3, 4, 3, 3))
    y = nn.conv2d(x, w)
    y, dx, dw = evaluate([y, *T.grad((y**2).sum() / 2, [x, w])], dict(zip((x, w), values)))
    found = [
        [signal.correlate(row, kernel, "valid")[0] for kernel in values[1]] for row in values[0]
    ]
    np.testing.assert_allclose(y, found, rtol=1e-12, atol=1e-12)
    for n, c in np.ndindex(5, 4):
        parts = [signal.convolve(y[n, o], values[1][o, c]) for o in range(3)]
        np.testing.assert_allclose(dx[n, c], sum(parts), rtol=1e-12, atol=1e-12)
    for o, c in np.ndindex(3, 4):
        parts = [signal.correlate(values[0][n, c], y[n, o], "valid") for n in range(5)]
        np.testing.assert_allclose(dw[o, c], sum(parts), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["max", "average"])
@pytest.mark.parametrize("geometry", POOLS.values(), ids=POOLS)
def test_pooling_equals_loops(geometry, mode):
    x = T.dtensor4()
    (y,) = evaluate([nn.pool2d(x, mode=mode, **geometry)], {x: X})
    around = {"stride": geometry["size"], **geometry, "fill": -np.inf if mode == "max" else 0.0}
    seen = windows(X, **around)
    expected = seen.max(axis=(4, 5)) if mode == "max" else seen.mean(axis=(4, 5))
    np.testing.assert_allclose(y, expected, rtol=1e-13)


def network(x, w):
    """An expression of all operations, and their gradients of first and second order."""
    y = nn.conv2d(x, w, **GEOMETRIES["all"])
    one = nn.pool2d(T.tanh(y), **POOLS["over"]) ** 2
    two = nn.pool2d(y**2, 2, 1, mode="average") * nn.pool2d(y, 2, 1)
    cost = one.sum() + two.sum()
    first = T.grad(cost, [x, w])
    mixed = (first[0] ** 2).sum() + (first[1] ** 2).sum()
    return [cost, *first], [mixed, *T.grad(mixed, [x, w])]


def test_gradients_of_first_and_second_order():
    x, w = T.dtensor4("x"), T.dtensor4("w")
    for outputs in network(x, w):
        function = engine.function([x, w], outputs)
        directional(function, {"x": X, "w": W})


def test_a_gradient_goes_to_the_first_of_equal_maxima():
    x = T.dtensor4()
    gradient = T.grad(nn.pool2d(x, 2).sum(), x)
    given = np.array([[0.0, 2, 1, 1], [2, 0, 1, 1]]).reshape(1, 1, 2, 4)
    expected = np.array([[0, 1, 1, 0], [0, 0, 0, 0]]).reshape(1, 1, 2, 4)
    np.testing.assert_array_equal(evaluate([gradient], {x: given})[0], expected)


@pytest.mark.parametrize("mode", ["NUMBA", "JAX"])
def test_other_linkers_compute_the_same(mode):
    if mode == "JAX":
        pytest.importorskip("jax")
    x, w = T.dtensor4("x"), T.dtensor4("w")
    first, second = network(x, w)
    outputs, given = [*first, *second], {x: X, w: W}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Numba will use object mode")
        found = evaluate(outputs, given, mode)
    for value, expected in zip(found, evaluate(outputs, given)):
        assert np.asarray(value).dtype == "float64"
        np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_graphs_are_pickled():
    x, w = T.dtensor4("x"), T.dtensor4("w")
    outputs = network(x, w)[1]
    x2, w2, *others = pickle.loads(pickle.dumps([x, w, *outputs]))
    given = evaluate(outputs, {x: X, w: W})
    for value, other in zip(given, evaluate(others, {x2: X, w2: W})):
        np.testing.assert_array_equal(value, other)
    again = nn.conv2d(x, w, **GEOMETRIES["all"]).owner.op
    assert again == nn.conv2d(x2, w2, **GEOMETRIES["all"]).owner.op
    assert again != nn.conv2d(x, w).owner.op


def test_errors_name_the_argument():
    x, w = T.dtensor4(), T.dtensor4()
    images, filters = (T.tensor(shape=shape) for shape in ((None, 4, 7, 6), (6, 2, 3, 2)))
    for message, build in {
        "padding: got 'full'": lambda: nn.conv2d(x, w, padding="full"),
        "stride: got 0, expected an int >= 1": lambda: nn.conv2d(x, w, stride=0),
        r"padding: got \(1, -1\)": lambda: nn.conv2d(x, w, padding=[(1, -1), 0]),
        "groups: got 0": lambda: nn.conv2d(x, w, groups=0),
        r"got 4 channels, expected 2 x 1 group": lambda: nn.conv2d(images, filters),
        "is larger than 7": lambda: nn.conv2d(images, filters, dilation=(4, 1), groups=2),
        "less than the size": lambda: nn.pool2d(x, 2, padding=2),
        "mode: got 'min'": lambda: nn.pool2d(x, 2, mode="min"),
        "got p = 1": lambda: nn.dropout(x, 1, None),
        "got cell 'lstm'": lambda: nn.recurrent(x, w, w, w, "lstm"),
        "vectors need a number": lambda: nn.Parameters()("b", 3),
    }.items():
        with pytest.raises(ValueError, match=message):
            build()
    with pytest.raises(TypeError, match="expected 4 axes"):
        nn.conv2d(T.dmatrix(), w)
    with pytest.raises(TypeError, match="floats"):
        nn.pool2d(T.ltensor4(), 2)
    with pytest.raises(ValueError, match="got 4 channels, expected 2 for each of 1"):
        evaluate([nn.conv2d(x, w)], {x: X, w: W})
    with pytest.raises(ValueError, match=r"a window of 8.* is larger than 7"):
        evaluate([nn.pool2d(x, 8)], {x: X})


def test_parameters_are_made_once_for_each_name():
    params = nn.Parameters(seed=4, dtype="float32")
    w = params("w", (400, 300))
    assert params("w", (400, 300)) is w
    with pytest.raises(ValueError, match=r"'w' has shape \(400, 300\); got \(3,\)"):
        params("w", 3)
    kernel = params("kernel", (64, 30, 3, 3), nn.glorot)
    mean = params("mean", 7, 2, trainable=False)
    assert ([w, kernel], [mean]) == (params.trainable, params.statistics)
    assert {one.dtype for one in (w, kernel, mean)} == {"float32"}
    assert w.get_value().var() == pytest.approx(2 / 400, rel=0.02)
    assert kernel.get_value().var() == pytest.approx(2 / (270 + 576), rel=0.05)
    np.testing.assert_array_equal(mean.get_value(), np.full(7, 2))
    same = nn.Parameters(seed=4, dtype="float32")("w", (400, 300))
    np.testing.assert_array_equal(same.get_value(), w.get_value())


def test_losses_are_exact_of_scores_of_any_size():
    logits, y = T.dmatrix(), T.ivector()
    loss = nn.cross_entropy(logits, y)
    given = {logits: np.array([[1e4, 0, -1e4], [0, 1, 2]]), y: np.array([1, 2], "int32")}
    found, gradient = evaluate([loss, T.grad(loss.sum(), logits)], given)
    shares = np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum()
    np.testing.assert_allclose(found, [1e4, -np.log(shares[2])], rtol=1e-14)
    np.testing.assert_allclose(gradient, [[1, -1, 0], shares - [0, 0, 1]], atol=1e-15)


def test_dropout():
    x = T.dmatrix()
    rng = T.random.shared_rng(seed=1)
    first, state = nn.dropout(x, 0.25, rng)
    second, state = nn.dropout(x, 0.25, state)
    values = RNG.normal(size=(300, 200))
    outputs = [first, T.grad(first.sum(), x), second]
    function = engine.function([x], outputs, updates=[(rng, state)])
    (found, gradient, other), (later, *_) = function(values), function(values)
    assert np.mean(found == 0) == pytest.approx(0.25, abs=0.01)
    np.testing.assert_array_equal(gradient, np.where(found == 0, 0, 1 / 0.75))
    np.testing.assert_allclose(found, values * gradient)
    assert np.mean(other == 0) == pytest.approx(0.25, abs=0.01)
    assert (found != other).any()
    assert (found != later).any()
    assert (other != later).any()


@pytest.mark.parametrize("cell", ["tanh", pytest.param("gru", marks=pytest.mark.nightly)])
def test_recurrent_networks_equal_loops(cell):
    x, w, u, b = T.dtensor3("x"), T.dmatrix("w"), T.dmatrix("u"), T.dvector("b")
    k = 1 if cell == "tanh" else 3
    shapes = {x: (3, 5, 4), w: (4, 2 * k), u: (2, 2 * k), b: (2 * k,)}
    given = {variable: RNG.normal(size=shape) for variable, shape in shapes.items()}
    states = nn.recurrent(x, w, u, b, cell)
    cost = (states[:, -1] ** 2).sum()
    function = engine.function([x, w, u, b], [cost, *T.grad(cost, [x, w, u, b])])
    directional(function, given)
    h, expected, (xs, ws, us, bs) = np.zeros((3, 2)), [], given.values()
    for step in range(5):
        into, back = np.split(xs[:, step] @ ws + bs, k, axis=1), np.split(h @ us, k, axis=1)
        if cell == "tanh":
            h = np.tanh(into[0] + back[0])
        else:
            r, z = (1 / (1 + np.exp(-into[i] - back[i])) for i in (0, 1))
            h = z * h + (1 - z) * np.tanh(into[2] + r * back[2])
        expected.append(h)
    found = evaluate([states], given)[0]
    np.testing.assert_allclose(found, np.stack(expected, axis=1), rtol=1e-12)


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 2, 5)], ids=["dense", "images"])
def test_batch_norm(shape):
    params, x = nn.Parameters(), T.tensor(dtype="float64", shape=(None,) * len(shape))
    values = {"gamma": 2.0, "beta": -1.0, "mean": 0.5, "var": 3.0}
    arguments = [params(name, 3, value) for name, value in values.items()]
    given = RNG.normal(2, 3, size=shape)
    y, changes = nn.batch_norm(x, *arguments, epsilon=0.1, alpha=0.3)
    inferred, none = nn.batch_norm(x, *arguments, training=False, epsilon=0.1)
    assert none == []
    assert [old for old, _ in changes] == arguments[2:]
    y, inferred, mean, var = evaluate([y, inferred, *(new for _, new in changes)], {x: given})
    axes = tuple(axis for axis in range(len(shape)) if axis != 1)
    now, spread = (f(given, axis=axes, keepdims=True) for f in (np.mean, np.var))
    np.testing.assert_allclose(y, 2 * (given - now) / np.sqrt(spread + 0.1) - 1, rtol=1e-10)
    np.testing.assert_allclose(inferred, 2 * (given - 0.5) / np.sqrt(3.1) - 1, rtol=1e-12)
    np.testing.assert_allclose(mean, 0.7 * 0.5 + 0.3 * now.ravel(), rtol=1e-12)
    np.testing.assert_allclose(var, 0.7 * 3 + 0.3 * spread.ravel(), rtol=1e-12)


class Classifier:
    """A convolutional network, normalized over all ranks, that a training function is made of."""

    def __init__(self, make):
        x, y = T.dtensor4("x"), T.ivector("y")
        self.params, self.running = nn.Parameters(seed=2, dtype="float64"), []
        h = T.maximum(self._normalized("one", nn.conv2d(x, self._w("one", 4, 2), 1, "same")), 0)
        h = nn.pool2d(h, 3, 2, 1)
        h = self._normalized("two", nn.conv2d(h, self._w("two", 6, 4), 2, [(0, 1), 1]))
        h = nn.pool2d(T.tanh(h), (1, 2), mode="average")
        self.logits = nn.dense(h, self.params("v", (6, 3)), self.params("b", 3, 0))
        loss = nn.cross_entropy(self.logits, y).mean()
        self.inputs, self.loss = [x, y], loss
        self.train = make(
            loss, self.params.trainable, [x, y], updates.momentum, 0.1, updates=self.running
        )

    def _w(self, name, *size):
        return self.params(name, (*size, 3, 3))

    def _normalized(self, name, h):
        of = (("gamma", 1, True), ("beta", 0, True), ("mean", 0, False), ("var", 1, False))
        variables = [self.params(f"{name}.{what}", h.type.shape[1], *how) for what, *how in of]
        result, changes = nn.batch_norm(h, *variables)
        self.running += changes
        return result

    def values(self):
        variables = self.params.trainable + self.params.statistics
        return [variable.get_value() for variable in variables]


def test_outputs_of_rows_are_known_to_be_exact():
    x, y, w = T.dtensor4("x"), T.ivector("y"), T.dtensor4("w")
    h = nn.pool2d(T.tanh(nn.conv2d(x, w, padding="same")), 2)
    loss = nn.cross_entropy(nn.pool2d(h, 2, mode="average").flatten(2), y).mean()
    gradients = T.grad(loss, [w, x])
    again = T.grad((gradients[0] ** 2).sum(), w)
    outputs = [(h, "gather"), (loss, "avg"), (gradients[0], "avg"), (again, "avg")]
    verdicts = check_outputs([x, y], outputs, bcast_inputs=[w])
    assert [one.verdict for one in verdicts] == ["exact"] * 3 + ["unknown"], str(verdicts)
    verdicts = check_outputs([w], [(nn.conv2d(x, w), "gather")], bcast_inputs=[x])
    assert verdicts[0].verdict == "unknown", "filters have the rows"


def loops(net, x, y):
    """Return the loss of a `Classifier` by NumPy alone."""
    values = {one.name: one.get_value() for one in net.params.trainable}

    def normalized(name, h):
        mean, var = (f(h, axis=(0, 2, 3), keepdims=True) for f in (np.mean, np.var))
        gamma, beta = (values[f"{name}.{what}"][:, None, None] for what in ("gamma", "beta"))
        return gamma * (h - mean) / np.sqrt(var + 1e-5) + beta

    h = np.maximum(normalized("one", convolved(x, values["one"], padding="same")), 0)
    h = windows(h, 3, 2, 1, fill=-np.inf).max(axis=(4, 5))
    h = normalized("two", convolved(h, values["two"], stride=2, padding=[(0, 1), 1]))
    scores = np.tanh(h).mean(axis=(2, 3)) @ values["v"] + values["b"]
    scores = np.exp(scores)
    return -np.log(scores[np.arange(len(y)), y] / scores.sum(axis=1)).mean()


def test_training_on_two_ranks_equals_one_process():
    with forked(2):
        serial, parallel = Classifier(make_train_function_theano), Classifier(make_train_function)
        synk.distribute()
        start = serial.values()
        for rows in (9, 8, 3, 5):
            x = 1 + 2 * RNG.normal(size=(rows, 2, 6, 6))
            y = RNG.integers(3, size=rows).astype("int32")
            expected = loops(serial, x, y)
            assert serial.train(x, y) == pytest.approx(expected, rel=1e-10)
            assert parallel.train(x, y) == pytest.approx(expected, rel=1e-10)
            for value, expected in zip(parallel.values(), serial.values()):
                np.testing.assert_allclose(value, expected, rtol=0, atol=1e-10)
        moved = [np.abs(a - b).max() for a, b in zip(start, serial.values())]
        assert min(moved) > 1e-4
        for value, other in zip(
            *(synk.get_value(rank, parallel.params.statistics) for rank in (0, 1))
        ):
            np.testing.assert_array_equal(value, other)
