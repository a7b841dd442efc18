"""Losses that people train with, over ranks: each trains as in one process, or is refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from exactness.losses import RIGHT, WRONG

import synkhronos as synk
from synk_testing.engine import T, engine
from synkhronos.exceptions import DecompositionWarning, NotExact
from synkhronos.extensions import updates
from synkhronos.extensions.train import make_train_function

ROWS, RATE, CLOSE = 13, 0.05, {"rtol": 1e-9, "atol": 1e-12}
BY_DAY = {
    *("cross-entropy", "focal", "masked, over n", "sum over n"),
    *("masked", "in-batch negatives", "batch hard", "mixup", "median", "temporal neighbours"),
    *("recurrent over rows", "selected"),
}
NIGHTLY = pytest.mark.nightly
CASES = [
    pytest.param(loss, is_right, id=name, marks=[] if name in BY_DAY else NIGHTLY)
    for table, is_right in ((RIGHT, True), (WRONG, False))
    for name, loss in table.items()
]


def batch(seed):
    rng = np.random.RandomState(seed)
    labels, mask = rng.randint(0, 4, ROWS), (rng.rand(ROWS) < 0.6).astype(float)
    return rng.randn(ROWS, 5), labels, rng.randn(ROWS, 4), mask


@pytest.mark.parametrize("nothing_left", [3, pytest.param(2, marks=NIGHTLY)], indirect=True)
@pytest.mark.parametrize(("loss", "is_right"), CASES)
def test_a_loss_trains_as_in_one_process_or_not_at_all(loss, is_right):
    x, y, t, m = inputs = T.dmatrix("x"), T.lvector("y"), T.dmatrix("t"), T.dvector("m")
    start = [0.5 * np.random.RandomState(1).randn(5, 4), np.arange(4) / 9]
    params = [engine.shared(value) for value in start]
    value = loss(x.dot(params[0]) + params[1], y, t, m) + 0 * (y.mean() + t.mean() + m.mean())
    serial = engine.function(inputs, [value, *T.grad(value, params)])
    batches = [batch(seed) for seed in range(3)]
    parts = [serial(*(array[place] for array in batches[0])) for place in (slice(5), slice(5, 13))]
    whole = serial(*batches[0])
    same = [np.allclose((5 * a + 8 * b) / 13, c, **CLOSE) for a, b, c in zip(*parts, whole)]
    assert np.isfinite(whole[0])
    assert all(same) == is_right
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train = make_train_function(value, params, inputs, updates.sgd, learning_rate=RATE)
    warned = any(issubclass(one.category, DecompositionWarning) for one in caught)
    if is_right:
        assert not warned
        for data in batches:
            held = [param.get_value() for param in params]
            expected = serial(*data)
            np.testing.assert_allclose(train(*data), expected[0], **CLOSE)
            for param, old, gradient in zip(params, held, expected[1:]):
                np.testing.assert_allclose(param.get_value(), old - RATE * gradient, **CLOSE)
    elif not warned:
        with pytest.raises(NotExact):
            train(*batches[0])
        for param, old in zip(params, start):
            for held in synk.gather(param, nd_up=1):
                np.testing.assert_array_equal(held, old)
