"""Wrapped rules over real ranks: the step of the whole batch, not of each rank's rows."""

from __future__ import annotations

import numpy as np
import pytest
from _update_graphs import largest_difference, loss_of, make_params
from _update_problem import numpy_gradients, start_values

import synkhronos as synk
from synk_testing import children
from synk_testing.engine import T
from synkhronos.extensions import updates
from synkhronos.extensions.train import make_train_function, make_train_function_theano

RANKS = 3
TOLERANCE = 1e-12
MAX_NORM = 0.6
# Rows of each batch: shares that differ, ranks without rows, one row, the same for all.
BATCHES = [10, 2, 7, 1, 6, 11]


@pytest.fixture(scope="module", autouse=True)
def processes():
    before = children()
    assert synk.fork(RANKS, use_gpu=False, verbose=False) == RANKS
    yield
    synk.close()
    assert children() <= before


def _batches():
    rng = np.random.RandomState(11)
    return [rng.randn(rows, 4) * 2 for rows in BATCHES]


def _train(make, rule, **settings):
    x = T.dmatrix("x")
    params = make_params()
    return params, make(loss_of(x, *params), params, [x], rule, **settings)


def test_steps_equal_plain_theano_for_uneven_batches():
    rule = updates.decoupled_weight_decay(
        updates.weight_decay(updates.amsgrad, 0.1, lambda p: p.ndim > 1), 0.2
    )
    rule = updates.norm_constraint(updates.clip_by_global_norm(rule, MAX_NORM), max_norm=1.5)
    rule = updates.value_constraint(rule, high=1.2)
    serial, f = _train(make_train_function_theano, rule, lr=0.05)
    parallel, g = _train(make_train_function, rule, lr=0.05)
    for number, batch in enumerate(_batches()):
        expected = f(batch)
        # With slices too: each rank's gradient is an average itself.
        loss = g(batch, num_slices=1 + number % 2)
        np.testing.assert_allclose(loss, expected, rtol=0, atol=TOLERANCE)
        assert largest_difference(serial, [p.get_value() for p in parallel]) <= TOLERANCE
    assert largest_difference(serial, start_values()) > 0.1


def test_it_is_the_averaged_gradient_whose_norm_is_bounded():
    """The formula in NumPy; bounding each rank's gradient would give something else."""
    params, train = _train(
        make_train_function, updates.clip_by_global_norm(updates.sgd, MAX_NORM), learning_rate=1
    )
    (batch, *_) = _batches()
    train(batch)

    def clipped(rows):
        flat = np.concatenate([grad.ravel() for grad in numpy_gradients(rows, *start_values())])
        return flat * min(1, MAX_NORM / np.linalg.norm(flat)), flat

    start = np.concatenate([value.ravel() for value in start_values()])
    step, gradient = clipped(batch)
    assert np.linalg.norm(gradient) > MAX_NORM
    moved = np.concatenate([param.get_value().ravel() for param in params])
    np.testing.assert_allclose(moved, start - step, rtol=0, atol=TOLERANCE)
    # What is stored is the gradient itself.
    np.testing.assert_allclose(train.flat_grad.get_value(), gradient, rtol=0, atol=TOLERANCE)

    shares = np.array_split(batch, RANKS)
    assert len({len(share) for share in shares}) > 1
    by_ranks = sum(len(share) * clipped(share)[0] for share in shares) / len(batch)
    assert np.abs(by_ranks - step).max() > 1e-2
