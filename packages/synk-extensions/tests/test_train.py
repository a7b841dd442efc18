"""A parallel training step is the serial one: same loss, same parameters, any split."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import synkhronos as synk
from synk_testing import children
from synk_testing.engine import IS_THEANO, T, engine, softmax
from synkhronos import in_graph
from synkhronos.extensions import updates
from synkhronos.extensions.batches import index_batches
from synkhronos.extensions.train import (
    Trainer,
    TrainFunction,
    make_train_function,
    make_train_function_theano,
)
from synkhronos.extensions.train._ranks import _BITS, from_row, to_row

TOLERANCE = 1e-10
ROWS, FEATURES, HIDDEN, CLASSES = 160, 12, 16, 4  # 160 = 3 * 53 + 1: the last batch has one row
RULES = {
    "sgd": {"learning_rate": 0.3},
    "nesterov_momentum": {"learning_rate": 0.1},
    "adam": {"lr": 0.02},
}


class Model:
    def __init__(self):
        rng = np.random.RandomState(5)
        self.x, self.y = T.dmatrix("x"), T.ivector("y")
        self.W = engine.shared(rng.randn(FEATURES, HIDDEN) * 0.3, name="W")
        self.b = engine.shared(np.zeros(HIDDEN), name="b")
        self.V = engine.shared(rng.randn(HIDDEN, CLASSES) * 0.3, name="V")
        self.params = [self.W, self.b, self.V]
        self.prediction = softmax(T.tanh(self.x.dot(self.W) + self.b).dot(self.V))
        self.loss = -T.log(self.prediction[T.arange(self.y.shape[0]), self.y]).mean()
        self.error = T.neq(self.prediction.argmax(axis=1), self.y).mean(dtype="float64")

    def values(self):
        return [param.get_value() for param in self.params]


def dataset(rows=ROWS):
    rng = np.random.RandomState(6)
    return rng.randn(rows, FEATURES), rng.randint(0, CLASSES, rows).astype("int32")


def largest_difference(model, other):
    return max(np.abs(a - b).max() for a, b in zip(model.values(), other.values()))


def twins(rule, flat=None, **settings):
    one, two = Model(), Model()
    f = make_train_function_theano(one.loss, one.params, [one.x, one.y], rule, **settings)
    g = make_train_function(two.loss, two.params, [two.x, two.y], rule, flat=flat, **settings)
    return one, two, f, g


@pytest.fixture(
    scope="module",
    params=[2, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 3, 4))],
    ids=lambda n: f"{n}-processes",
)
def processes(request):
    before = children()
    assert synk.fork(request.param, use_gpu=False, verbose=False) == request.param
    yield request.param
    synk.close()
    assert children() <= before


# What does not depend on the number of processes is tested with two.
with_two = pytest.mark.parametrize("processes", [2], indirect=True, ids=["2-processes"])


@pytest.mark.parametrize(
    "name", ["adam", *(pytest.param(n, marks=pytest.mark.nightly) for n in [*RULES][:2])]
)
def test_epochs_equal_plain_theano(processes, name):
    serial, parallel, f, g = twins(getattr(updates, name), **RULES[name])
    x, y = dataset()
    x_shared, y_shared = g.build_inputs(x, y)
    start = serial.values()
    for num_rows, batch_size, num_slices in [(ROWS, 53, 1), (ROWS, 53, 3), (7, 2, 1), (7, 2, 3)]:
        rng = np.random.RandomState(num_slices)
        for indexes in index_batches(num_rows, batch_size, rng):
            expected = f(x, y, batch=indexes)
            loss = g(x_shared, y_shared, batch=indexes, num_slices=num_slices)
            np.testing.assert_allclose(loss, expected, rtol=0, atol=TOLERANCE)
            assert sum(g.grad_function.rows) == len(indexes)
        assert largest_difference(serial, parallel) <= TOLERANCE
    assert max(np.abs(a - b).max() for a, b in zip(start, serial.values())) > 0.01


@with_two
@pytest.mark.parametrize("flat", [None, False, True])
def test_parameters_are_apart_unless_that_is_quicker(processes, flat):
    serial, parallel, f, g = twins(updates.adadelta, flat=flat)
    for _ in range(2):
        f(*dataset())
        g(*dataset())
    assert isinstance(g, TrainFunction)
    assert "train: gradient" in repr(g)
    with pytest.raises(TypeError, match="check its grad_function"):
        synk.check(g)
    assert largest_difference(serial, parallel) <= TOLERANCE
    arrays = [param.get_value(borrow=True) for param in parallel.params]
    bases = {id(array.base) for array in arrays if array.base is not None}
    if IS_THEANO or not flat:
        assert (len(bases) == 1) == bool(flat)


@with_two
def test_further_outputs_broadcast_inputs_and_names(processes):
    results = []
    x, y = dataset()
    for make in (make_train_function, make_train_function_theano):
        model = Model()
        factor = T.dscalar("factor")
        train = make(
            factor * model.loss,
            model.params,
            [model.x, model.y],
            updates.sgd,
            learning_rate=0.1,
            outputs=[model.error, (model.prediction, "gather"), (model.x.max(), "max")],
            bcast_inputs=[factor],
        )
        for num_slices in (1, 3):
            out = train(x, y=y, factor=0.5, batch=slice(0, 53), num_slices=num_slices)
            assert [np.shape(value) for value in out] == [(), (), (53, CLASSES), ()]
            results.append([*out, *model.values()])
    half = len(results) // 2
    for parallel, serial in zip(results[:half], results[half:]):
        for value, expected in zip(parallel, serial):
            np.testing.assert_allclose(value, expected, rtol=0, atol=TOLERANCE)


@with_two
def test_a_loss_without_data(processes):
    w = engine.shared(np.ones(3), name="w")
    train = make_train_function(T.sum(w**2), w, [], updates.sgd, 0.25)
    assert [float(train()), float(train())] == [3.0, 0.75]
    for rank in range(processes):
        np.testing.assert_array_equal(synk.get_value(rank, w), [0.25, 0.25, 0.25])


def test_plain_theano_twin_selects_rows_and_slices():
    """The twin is what others are compared with, so NumPy checks its loss and its step."""
    model = Model()
    x, y = dataset(20)
    train = make_train_function_theano(
        model.loss, model.params, [model.x, model.y], updates.sgd, 0.5
    )
    every = [None, 6, slice(3, 17, 2), [5, 5, 1], np.arange(20) % 3 == 0]
    for num_slices, batch in itertools.product((1, 4), every):
        selected = slice(batch) if batch is None or isinstance(batch, int) else batch
        rows = np.arange(20)[selected]
        W, b, V = model.values()
        hidden = np.tanh(x[rows] @ W + b)
        scores = np.exp(hidden @ V)
        chosen = scores[np.arange(len(rows)), y[rows]] / scores.sum(axis=1)
        delta = scores / scores.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y[rows]]
        loss = train(x, y, batch=batch, num_slices=num_slices)
        np.testing.assert_allclose(loss, -np.log(chosen).mean(), rtol=0, atol=TOLERANCE)
        expected = V - 0.5 * hidden.T @ delta / len(rows)
        np.testing.assert_allclose(model.V.get_value(), expected, rtol=0, atol=TOLERANCE)
    with pytest.raises(TypeError, match="no 'y'"):
        train(x)
    with pytest.raises(TypeError, match=r"unused names \['z'\]"):
        train(x, y, z=1)


@pytest.mark.parametrize("make", [make_train_function, make_train_function_theano])
def test_wrong_rules_and_layers_are_refused_in_words(make):
    x, w = T.vector("x"), engine.shared(np.ones(()), "w")
    layer = type("DenseLayer", (), {"get_output_for": None})()
    loss = (x * w).mean()

    def lasagnes(loss, params, learning_rate=0.1):
        return {w: w - learning_rate * T.grad(loss, w)}

    called = updates.adam(loss, [w])
    for arguments, message in [
        ((loss, [w], [x], "adam"), "update_rule is 'adam'"),
        ((loss, [w], x), "update_rule is None"),
        ((loss, [w], [x], lasagnes), r"'lasagnes' returned a dict.*synkhronos\.extensions"),
        ((loss, [w], [x], called), r"the rule itself, .* updates\.adam, learning_rate="),
        ((layer, [w], [x], updates.sgd, 0.1), r"a layer's output is lasagne\.layers\.get_output"),
        ((loss, layer, [x], updates.sgd, 0.1), r"get_all_params\(layer, trainable=True\)"),
    ]:
        with pytest.raises(TypeError, match=message):
            make(*arguments)


@pytest.mark.parametrize("name", _BITS)
def test_a_generator_goes_on_from_a_row_of_numbers(name):
    state = np.random.Generator(getattr(np.random, name)(5))
    state.random(3, np.float32)  # half of a word is left
    again = from_row(to_row(state))
    assert type(again.bit_generator) is type(state.bit_generator)
    np.testing.assert_array_equal(again.random(100, np.float32), state.random(100, np.float32))


def test_time_major_data_and_a_loss_over_the_whole_batch(processes):
    series = np.random.RandomState(8).randn(3, 21, FEATURES)

    def trained(make, gather, is_major):
        x, W = T.dtensor3("x"), engine.shared(np.random.RandomState(9).randn(FEATURES, 4) * 0.2)
        by_time = x if is_major else x.dimshuffle(1, 0, 2)
        z = T.tanh(by_time.sum(axis=0).dot(W))
        scores = z.dot(gather(z).T)
        loss = (T.log(T.exp(scores).sum(axis=1)) - T.sqr(z).sum(axis=1)).mean()
        train = make(loss, [W], [x], updates.adam, row_axis={x: 1} if is_major else None)
        data = series if is_major else np.moveaxis(series, 1, 0)
        losses = [train(data, batch=rows) for rows in index_batches(21, 5, drop_last=False)]
        losses += [*train.steps(data, [slice(0, 4), [9, 3, 20]]), train(data, batch=5)]
        Trainer(train, data, 8, seed=1, verbose=False).run(2)
        return [*losses, *W.get_value().ravel()]

    plain, parallel = make_train_function_theano, make_train_function
    wanted = trained(plain, lambda z: z, False)
    for make, gather in ((plain, lambda z: z), (parallel, in_graph.all_gather)):
        got = trained(make, gather, True)
        np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE)


@given(
    num_rows=st.integers(0, 60),
    batch_size=st.integers(1, 70),
    seed=st.none() | st.integers(0, 5),
    drop_last=st.booleans(),
)
def test_every_row_once_in_batches_of_the_size(num_rows, batch_size, seed, drop_last):
    rng = None if seed is None else np.random.default_rng(seed)
    batches = list(index_batches(num_rows, batch_size, rng, drop_last=drop_last))
    rows = [int(row) for batch in batches for row in batch]
    assert all(batch.dtype == np.int64 and batch.ndim == 1 for batch in batches)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert len(set(rows)) == len(rows)
    left_out = num_rows % batch_size if drop_last else 0
    assert len(rows) == num_rows - left_out
    assert set(rows) <= set(range(num_rows))
    if seed is None:
        assert rows == list(range(len(rows)))


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState])
def test_a_seed_repeats_the_order_and_epochs_differ(make):
    first, again = make(3), make(3)
    epochs = [np.concatenate(list(index_batches(50, 8, first))) for _ in range(2)]
    repeats = [np.concatenate(list(index_batches(50, 8, again))) for _ in range(2)]
    np.testing.assert_array_equal(epochs, repeats)
    assert not np.array_equal(epochs[0], epochs[1])


def test_wrong_sizes_and_a_seed_are_refused_at_the_call():
    for arguments in ((10, 0), (10, -1), (-1, 5)):
        with pytest.raises(ValueError, match="expected"):
            index_batches(*arguments)
    with pytest.raises(TypeError, match=r"rng is 3; expected a generator such as.*default_rng"):
        index_batches(10, 5, 3)
