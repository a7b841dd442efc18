"""Training is the serial training on the host, step for step, by update rules plain and wrapped."""

from __future__ import annotations

import numpy as np
import pytest
import theano
import theano.tensor as T
from _lib import TOLERANCE, on_all, shared, values

from synkhronos.extensions import updates
from synkhronos.extensions.train import make_train_function

# On the host, in NumPy.
MODE = theano.Mode(linker="py", optimizer=None)
CASES = {
    "momentum": (updates.momentum, "float32"),
    "adam": (updates.adam, "float64"),
    "clipped": (updates.clip_by_global_norm(updates.amsgrad, 0.6), "float32"),
}


def _model(place, dtype):
    params = [shared(values(dtype, shape), place, f"p{shape}") for shape in [(4, 32), (32,)]]
    x = T.TensorType(dtype, (False, False))("x")
    return params, x, T.sqr(x.dot(params[0]) + params[1]).sum(axis=1).mean()


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_on_the_host(synk, n, device_set, name, flat):
    """Even and uneven batches, fewer rows than ranks, slices, rows from shared memory or not."""
    place = "host" if device_set.kind == "cpu" else "device"
    rule, dtype = CASES[name]
    params, x, loss = _model(place, dtype)
    train = make_train_function(loss, params, [x], rule, learning_rate=0.05, flat=flat)

    twins, y, twin_loss = _model("host", dtype)
    split = rule(twin_loss, twins, learning_rate=0.05)
    f_grad = theano.function([y], twin_loss, updates=split.grad_updates, mode=MODE)
    f_step = theano.function([], updates=split.param_updates, mode=MODE)

    data = values(dtype, (5 * n, 4))
    for step, (size, num_slices) in enumerate([(7, 1), (4 * n, 1), (4 * n + 1, 3), (1, 2)]):
        rows = np.random.RandomState(step).randint(0, len(data), size)
        expected = f_grad(data[rows])
        f_step()
        given = synk.data(data) if step % 2 else data
        got = float(train(given, batch=rows, num_slices=num_slices))
        assert abs(got - expected) <= 10 * TOLERANCE[dtype] * max(1, expected)
    for param, twin in zip(params, twins):
        results = on_all(synk, n, param)
        assert np.abs(results[0] - twin.get_value()).max() <= 10 * TOLERANCE[dtype]
        for got in results:
            np.testing.assert_array_equal(got, results[0])
    if place == "device" and flat and name != "clipped":
        last = params[1].get_value(borrow=True, return_internal_type=True)
        assert last.offset == 128 * last.itemsize
