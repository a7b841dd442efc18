"""Inputs whose rows lie along another axis than the first, against NumPy on all rows."""

from __future__ import annotations

import numpy as np
import pytest

from synk_core.exceptions import InputTypeError, NotFinite, SpecError
from synk_testing.engine import T, engine

x, y, w = T.dtensor3("x"), T.dvector("y"), T.dmatrix("w")
X = np.random.RandomState(0).randn(4, 11, 3)
Y = np.arange(11.0)
OUTPUTS = [(T.dot(x.sum(axis=0), w) * y.dimshuffle(0, "x"), "gather"), (x.mean(), "avg")]
W = np.random.RandomState(1).randn(3, 2)

BATCHES = (slice(None), slice(7), slice(1, 9, 2), slice(9, 2, -1), [3, 1, 1, 10, 0], Y > 4, [2])


def made(runtime):
    return runtime.function([x, y], OUTPUTS, bcast_inputs=[w], row_axis={x: 1}, name="major")


def expected(rows, values=X, weights=Y):
    return (values[:, rows].sum(axis=0) @ W) * weights[rows, None], values[:, rows].mean()


@pytest.mark.parametrize("num_slices", [1, 2])
def test_rows_are_scattered_along_their_axis(trio, num_slices):
    f = made(trio)
    shared = trio.data(X), trio.data(Y), trio.data(W)
    odd = np.asfortranarray(X * 99).astype("int16"), Y, W
    for batch in BATCHES:
        for values in ((X, Y, W), shared, odd):
            got = f(*values, batch=batch, num_slices=num_slices)
            wanted = expected(batch, values[0] * 1.0 if values is odd else X)
            for one, other in zip(got, wanted):
                np.testing.assert_allclose(one, other, rtol=1e-12)
    assert f.rows == (1, 0, 0)


def test_the_plain_function_gets_the_input_as_it_is(pair):
    f = made(pair)
    for one, other in zip(f.as_theano(X, Y, W), expected(slice(None))):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    own = pair.function([x], (x.shape, None), row_axis={x: -2})
    assert own(X).tolist() == [4, 6, 3]
    assert own(pair.data(X), batch=[5, 3, 1]).tolist() == [4, 2, 3]


def test_a_minibatch_and_a_call_whose_rows_are_taken_before(pair):
    f = made(pair)
    part = pair.data(X[:, 4:9], minibatch=True)
    call = f.delayed(part, Y, W, batch=slice(4, 9))
    pair.step(call.prefetch())
    ((gathered, _),) = pair.step(call)
    np.testing.assert_allclose(gathered, expected(slice(4, 9))[0], rtol=1e-12)
    rows = [9, 2, 5]
    gathered, _ = f(pair.data(X[:, rows], minibatch=True), Y, W, batch=rows)
    np.testing.assert_allclose(gathered, expected(rows)[0], rtol=1e-12)


@pytest.mark.feature("finite")
def test_the_row_of_a_bad_value_is_found(pair):
    spoiled = X.copy()
    spoiled[2, 8] = -1e3
    f = pair.function([x], T.log(x + 100).mean(), row_axis={x: 1})
    with pair.watch_finite(), pytest.raises(NotFinite) as caught:
        f(spoiled)
    assert caught.value.row == 8
    spoiled[2, 8] = np.inf
    with pair.watch_finite(), pytest.raises(NotFinite, match=r"inf at \[2, 0\] of it") as caught:
        f(spoiled)
    assert caught.value.row == 8


def test_verdicts_of_check(pair, recwarn):
    outputs = [(x.sum(axis=0), "gather"), x.mean(), (x.dimshuffle(1, 0, 2), "gather"), x.mean(1)]
    outputs += [(x, "gather"), x.mean(axis=0)]
    f = pair.function([x], outputs, row_axis={x: 1})
    assert [each.verdict for each in pair.check(f)] == ["exact"] * 4 + ["wrong"] * 2


def test_refusals(pair):
    shared = engine.shared(W)
    for words, row_axis in (
        ("expected a dict", 1),
        ("expected an int from 0 to 2, because it has 3 dimensions", {x: 3}),
        ("expected an int", {x: True}),
        ("got w, expected variables listed in inputs", {w: 1}),
        ("expected variables listed in inputs", {shared: 1}),
        ("expected variables listed in inputs", {"x": 1}),
    ):
        with pytest.raises(SpecError, match=words):
            pair.function([x, y], OUTPUTS, bcast_inputs=[w], row_axis=row_axis)

    class File:
        shape, dtype = X.shape, X.dtype

        def __getitem__(self, key):
            return X[key]

    with pytest.raises(InputTypeError, match="read along axis 0, but row_axis is 1"):
        made(pair)(File(), Y, W)
