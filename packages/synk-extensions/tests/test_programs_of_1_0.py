"""What programs that were written for release 1.0 call, and rely on, as its demos do."""

from __future__ import annotations

import numpy as np
import pytest
import theano
import theano.tensor as T

import synkhronos as synk
from synk_shm.testing import no_segments_left
from synk_testing import BUT_PROCESSES, nothing_left
from synkhronos.extensions import updates
from synkhronos.extensions.train import make_train_function, make_train_function_theano

ROWS = 11


@pytest.fixture(scope="module", autouse=True)
def three():
    with nothing_left(without=BUT_PROCESSES), no_segments_left():
        synk.fork(3, use_gpu=False, verbose=False)
        yield
        synk.close()


def dataset():
    rng = np.random.RandomState(3)
    return rng.randn(ROWS, 4), rng.randn(ROWS)


class Model:
    def __init__(self):
        self.x, self.y = T.dmatrix("x"), T.dvector("y")
        self.w = theano.shared(np.arange(4.0).reshape(4, 1), name="w")
        self.b = theano.shared(np.zeros(1), name="b", broadcastable=(True,))
        self.params = [self.w, self.b]
        error = (self.x.dot(self.w) + self.b).flatten() - self.y
        self.loss = T.sqr(error).mean()

    def gradient(self, x, y):
        """In NumPy."""
        error = x @ self.w.get_value()[:, 0] + self.b.get_value()[0] - y
        return [(2 * x.T @ error / len(x))[:, None], np.array([2 * error.mean()])]


def test_flat_vectors_and_back():
    model = Model()
    assert updates.vars_flat_size(model.params) == 5
    flat = updates.flatten_vars(model.params)
    np.testing.assert_array_equal(flat.eval(), [0, 1, 2, 3, 0])
    w, b = updates.unflatten_vars(flat * 2, model.params)
    assert (w.broadcastable, b.broadcastable) == ((False, False), (True,))
    np.testing.assert_array_equal(w.eval(), 2 * model.w.get_value())
    np.testing.assert_array_equal(b.eval(), [0])


def own_flat(loss, params, factor):
    shared_grad, flat_grad, grads = updates.flat_unflat_grads(loss, params)
    steps = [(param, param - factor * grad) for param, grad in zip(params, grads)]
    return [(shared_grad, flat_grad)], steps, shared_grad


def own_nonflat(loss, params, factor):
    shared_grads, grads = updates.nonflat_grads(loss, params)
    steps = [(param, param - factor * grad) for param, grad in zip(params, shared_grads)]
    return list(zip(shared_grads, grads)), steps, shared_grads


@pytest.mark.parametrize("rule", [own_flat, own_nonflat])
def test_a_rule_of_ones_own(rule):
    model, (x, y) = Model(), dataset()
    train = make_train_function(model.loss, model.params, model.x, model.y, rule, 0.1)
    for count in (ROWS, 2):
        gradient, before = (
            model.gradient(x[:count], y[:count]),
            [p.get_value() for p in model.params],
        )
        train(x, y, count)
        for rank in range(3):
            for value, old, grad in zip(synk.get_value(rank, model.params), before, gradient):
                np.testing.assert_allclose(value, old - 0.1 * grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_for_a_rule_of_ones_own(nesterov):
    apply = updates.apply_nesterov_momentum if nesterov else updates.apply_momentum
    model, (x, y) = Model(), dataset()

    def rule(loss, params):
        grad_updates, steps, shared_grad = own_flat(loss, params, 0.05)
        return grad_updates, apply(steps, momentum=0.8), shared_grad

    train = make_train_function(model.loss, model.params, [model.x, model.y], rule)
    velocity = [np.zeros((4, 1)), np.zeros(1)]
    expected = [p.get_value() for p in model.params]
    for _ in range(4):
        grads = model.gradient(x, y)
        velocity = [0.8 * v - 0.05 * g for v, g in zip(velocity, grads)]
        moves = [0.8 * v - 0.05 * g for v, g in zip(velocity, grads)] if nesterov else velocity
        expected = [value + move for value, move in zip(expected, moves)]
        train(x, y)
        for param, value in zip(model.params, expected):
            np.testing.assert_allclose(param.get_value(), value, rtol=0, atol=1e-11)


@pytest.mark.parametrize("make", [make_train_function, make_train_function_theano])
def test_training_functions_by_the_names_of_their_arguments(make):
    x, y = dataset()
    rows = [8, 1, 2, 2]
    forms = [
        lambda train: train(x, y, batch=rows),
        lambda train: train(x, y, rows),
        lambda train: train(x_data=x, y_data=y, batch=rows),
        lambda train: train(x, y_data=y, batch=rows),
        lambda train: train(x=x, y=y, batch=rows),
    ]
    results = []
    for form in forms:
        model = Model()
        settings = {"update_rule": updates.sgd, "learning_rate": 0.1}
        if results:
            train = make(loss=model.loss, params=model.params, x=model.x, y=model.y, **settings)
        else:
            train = make(model.loss, model.params, [model.x, model.y], **settings)
        results.append((float(form(train)), model.w.get_value()))
    for loss, w in results:
        assert loss == results[0][0]
        np.testing.assert_array_equal(w, results[0][1])
    with pytest.raises(TypeError, match="inputs are missing"):
        make(model.loss, model.params, update_rule=updates.sgd, learning_rate=0.1)
    for wrong in (lambda: train(x, y, rows, x), lambda: train(x, x_data=x, y_data=y)):
        with pytest.raises((TypeError, ValueError)):
            wrong()


def test_some_outputs_in_the_master_alone():
    x = T.dvector("x")
    f = synk.function([x], [(x.sum(), "sum"), (x.max(), "max"), (x, "gather")])
    assert [float(value) for value in f.as_theano([1.0, 5.0], output_subset=[1, 0])] == [5, 6]
    assert [float(value) for value in f.as_theano(x=[1.0, 5.0], output_subset=(0,))] == [6]
    with pytest.raises(ValueError, match="output_subset"):
        f.as_theano([1.0], output_subset=[3])


def test_floats_that_are_whole_numbers():
    x = T.dvector("x")
    f = synk.function([x], x.mean())
    assert float(f(np.arange(5.0), num_slices=2.0)) == 2
    held = synk.data(np.arange(4.0))
    held.set_length(np.float64(2))
    np.testing.assert_array_equal(held.data, [0, 1])
    with pytest.raises(ValueError, match="num_slices"):
        f(np.arange(5.0), num_slices=2.5)
    with pytest.raises(TypeError, match="shape"):
        held.set_length(2.5)


def test_a_scalar_without_a_value_has_its_shape():
    held = synk.data(dtype="float32", ndim=0)
    assert (held.shape, held.size, held.nbytes) == ((), 1, 4)
    with pytest.raises(ValueError, match="no value yet"):
        _ = held.data
    held.set_value(3)
    assert (held.shape, held.size, float(held.data)) == ((), 1, 3)
