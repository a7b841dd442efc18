"""Outputs of every op that are computed on devices, for any number of rows."""

from __future__ import annotations

import numpy as np
import pytest
import theano.tensor as T
from _lib import FLOATS, exact, needs_reductions, same, values

SHAPES = {"float32": (3,), "float64": (), "float16": (2, 1, 3), "int32": (2, 3), "bool": (3,)}


def other_way(x):
    """The axes but the first, in reverse: what is gathered is not contiguous."""
    return range(x.ndim - 1, 0, -1)


OF_ALL = [
    ("sum", lambda x: x.sum(axis=0), lambda a: a.sum(axis=0)),
    ("gather", lambda x: x.dimshuffle(0, *other_way(x)), lambda a: a.transpose(0, *other_way(a))),
]
OF_NUMBERS = [
    ("max", lambda x: x.max(axis=0), lambda a: a.max(axis=0)),
    ("min", lambda x: x.min(), lambda a: a.min()),
    ("prod", lambda x: x.prod(axis=0), lambda a: a.prod(axis=0)),
    ("gather", lambda x: x + x, lambda a: a + a),
]
OF_FLOATS = [
    ("avg", lambda x: x.mean(axis=0), lambda a: a.mean(axis=0)),
    ("c_sum", lambda x: T.tanh(x).sum(axis=0), lambda a: np.tanh(a).sum(axis=0)),
    ("c_avg", lambda x: T.exp(x).mean(axis=0), lambda a: np.exp(a).mean(axis=0)),
    ("c_gather", lambda x: x * 2, lambda a: a * 2),
]
OF_TRUTH = [
    ("max", lambda x: T.any(x, axis=0), lambda a: a.any(axis=0)),
    ("min", T.all, np.all),
]


@pytest.mark.parametrize("dtype", SHAPES)
def test_outputs_are_those_of_numpy_for_any_rows_and_slices(synk, n, device_set, dtype):
    needs_reductions(device_set, dtype)
    shape = SHAPES[dtype]
    x = T.TensorType(dtype, (False,) * (1 + len(shape)))("x")
    terms = OF_ALL + (OF_TRUTH if dtype == "bool" else OF_NUMBERS)
    terms = terms + OF_FLOATS * (dtype in FLOATS)
    outputs = [make(x) for _, make, _ in terms]
    f = synk.function([x], [(output, op) for output, (op, _, _) in zip(outputs, terms)])
    assert f.output_modes == tuple(op.replace("c_", "") for op, _, _ in terms)
    for count in (4 * n, 4 * n + 1, max(n - 1, 1)):
        value = values(dtype, (count, *shape))
        for num_slices in (1, 3):
            results = f(value, num_slices=num_slices)
            assert f.rows == tuple(len(share) for share in np.array_split(value, n))
            for result, output, (op, _, reference) in zip(results, outputs, terms):
                what = f"{op} of {output} over {count} rows in {num_slices} slices"
                same(result, reference(exact(value)), output.dtype, what)
