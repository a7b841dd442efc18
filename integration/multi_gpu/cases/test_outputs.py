"""Outputs of every op, dtype and number of dimensions, for any number of rows."""

from __future__ import annotations

import numpy as np
import pytest
import theano.tensor as T
from _lib import FLOATS, exact, needs_reductions, same, shares, values

TAILS = {1: (), 2: (3,), 3: (2, 3), 4: (2, 1, 3)}
KINDS = [(dtype, ndim) for dtype in ("float32", "float64") for ndim in TAILS] + [
    ("float16", 2),
    ("float16", 4),
    ("int8", 2),
    ("uint8", 3),
    ("int32", 2),
    ("int64", 1),
    ("bool", 2),
]


def rows_for(n):
    """Even, uneven, fewer than ranks, one."""
    return sorted({4 * n, 4 * n + 1, 5 * n - 1, max(n - 1, 1), 1})


def terms(x, dtype):
    """(output, op, the same in NumPy)."""
    many = [
        (x.sum(axis=0), "sum", lambda a: a.sum(axis=0)),
        (x.sum(), "sum", lambda a: a.sum()),
        (x.max(axis=0), "max", lambda a: a.max(axis=0)),
        (x.min(), "min", lambda a: a.min()),
        (x.prod(axis=0), "prod", lambda a: a.prod(axis=0)),
        (x + x, "gather", lambda a: a + a),
        (x[:, ::-1] if x.ndim > 1 else x, "gather", lambda a: a[:, ::-1] if a.ndim > 1 else a),
    ]
    if dtype == "bool":
        return [
            (T.any(x, axis=0), "max", lambda a: a.any(axis=0)),
            (T.all(x), "min", lambda a: a.all()),
            (x.sum(axis=0), "sum", lambda a: a.sum(axis=0)),
            (x, "gather", lambda a: a),
        ]
    if dtype in FLOATS:
        many += [
            (x.mean(axis=0), "avg", lambda a: a.mean(axis=0)),
            ((x * x).mean(), "avg", lambda a: (a * a).mean()),
            (T.tanh(x).sum(axis=0), "c_sum", lambda a: np.tanh(a).sum(axis=0)),
            (T.exp(x).mean(axis=0), "c_avg", lambda a: np.exp(a).mean(axis=0)),
            (x * 2, "c_gather", lambda a: a * 2),
        ]
    if x.ndim == 3:
        many.append((x.dimshuffle(0, 2, 1), "gather", lambda a: a.transpose(0, 2, 1)))
        many.append((x.sum(axis=0).T, "sum", lambda a: a.sum(axis=0).T))
    return many


@pytest.mark.parametrize("dtype, ndim", KINDS, ids=[f"{d}-{k}d" for d, k in KINDS])
def test_outputs_are_those_of_numpy_for_any_rows_and_slices(synk, n, device_set, dtype, ndim):
    needs_reductions(device_set, dtype)
    x = T.TensorType(dtype, (False,) * ndim)("x")
    listed = terms(x, dtype)
    f = synk.function([x], [(output, op) for output, op, _ in listed])
    assert f.output_modes == tuple(op.replace("c_", "") for _, op, _ in listed)
    for count in rows_for(n):
        value = values(dtype, (count, *TAILS[ndim]))
        for num_slices in (1, 3):
            results = f(value, num_slices=num_slices)
            assert f.rows == tuple(len(share) for share in shares(value, n))
            for result, (output, op, reference) in zip(results, listed):
                what = f"{op} of {output} over {count} rows in {num_slices} slices"
                same(result, reference(exact(value)), output.dtype, what)
