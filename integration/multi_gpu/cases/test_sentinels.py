"""Sentinels look at values wherever they lie."""

from __future__ import annotations

import numpy as np
import pytest
import theano.tensor as T
from _lib import shared, values

from synkhronos.exceptions import NotExact, NotFinite, WorkerFailed


@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_one_bit_on_one_rank_is_seen(synk, n, place, dtype):
    variable = shared(values(dtype, (70, 41)), place, name="watched")
    x = T.fvector("x")
    f = synk.function([x], [(x.sum(), "sum"), (variable.max(), "max")], name="reader")
    rows = np.ones(2 * n, "float32")
    f(rows)
    other = np.array(synk.get_value(n - 1, variable))
    other.view(np.uint8)[-1, -1] ^= 1
    synk.set_value(n - 1, variable, other)
    if n > 1:
        with pytest.raises(NotExact, match="reader reads 'watched', which set_value"):
            f(rows)
        synk.broadcast(variable)
    f(rows)


@pytest.mark.parametrize("num_slices", [1, 3])
def test_the_row_of_a_nan(synk, place, num_slices):
    x = T.fmatrix("x")
    w = shared(np.ones(3, "float32"), place, name="w")
    cost = T.log(x.dot(w)).mean()
    f = synk.function([x], cost, updates=[(w, w + T.grad(cost, w))], name="logs")
    rows = np.random.RandomState(0).uniform(1, 2, (53, 3)).astype("float32")
    f(rows, num_slices=num_slices)
    synk.broadcast(w)
    before = synk.gather(w)
    with synk.watch_finite():
        for row in (0, 30, 52):
            bad = rows.copy()
            bad[row] = -1
            with pytest.raises((NotFinite, WorkerFailed)) as caught:
                f(synk.data(bad), num_slices=num_slices)
            error = caught.value.__cause__ or caught.value
            assert isinstance(error, NotFinite)
            assert error.row == row
            assert error.share[0] <= row < error.share[1]
            np.testing.assert_array_equal(synk.gather(w), before)
        f(rows, num_slices=num_slices)
