"""Graphs of operations that only PyTensor has, or has in another form, with their verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as T
from _check_cases import ROWS, Case, b, e, t, v, w, x, y
from pytensor.compile.builders import OpFromGraph
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.random.type import random_generator_type


def of_graph(build: Any, variable: Any) -> Any:
    """The result of an operation that is made of a graph."""
    inner = variable.type()
    return OpFromGraph([inner], [build(inner)])(variable)


def drawn(name: str, *parameters: Any, **settings: Any) -> Any:
    """Draws that can have one value only, so that they do not depend on the generator's state."""
    rng = random_generator_type.make_constant(np.random.default_rng(1))
    return getattr(T.random, name)(*parameters, **settings, rng=rng)


checked = CheckAndRaise(ValueError, "refused")

_n = x.shape[0]
_places = T.arange(_n)
_transposed = t.dimshuffle(1, 0, 2)
_matrix = w.T @ w + 4 * np.eye(3)
_given = x.type()
_count = _given.shape[0] * _given.shape[1]
_flat = OpFromGraph([_given], [_given.reshape((_count,)), T.arange(_count)])

CASES = [
    # Blockwise.
    Case("a product of batches", t @ t.dimshuffle(0, 2, 1), "gather", "exact"),
    Case("rows in the batches", (_transposed @ w).dimshuffle(1, 0, 2), "gather", "exact"),
    Case("batches that are summed over rows", t.dimshuffle(1, 2, 0) @ _transposed,
         "sum", "exact"),
    Case("batches of pairs of rows", _transposed @ t.dimshuffle(1, 2, 0), "gather", "wrong",
         "each other row"),
    Case("batches by a mean", t @ (x.T @ x / _n), "gather", "wrong", "reduction over all rows"),
    Case("a solution for each row", T.linalg.solve(_matrix, x, b_ndim=1), "gather", "exact"),
    Case("an inverse of each row's matrix", T.linalg.inv(x[:, None] * x[:, :, None] + np.eye(3)),
         "gather", "exact"),
    Case("inverses of what was divided by the rows",
         T.linalg.inv((x[:, None] * x[:, :, None] + np.eye(3)) / _n).sum(axis=0), "avg", "unknown",
         "scaled by the number of rows"),
    # Graphs as operations.
    Case("softmax over everything", T.special.softmax(x), "gather", "wrong", "Softmax"),
    Case("its gradient", T.grad(T.logsumexp(x @ w, axis=1).sum(), w), "sum", "exact"),
    Case("log of sums over rows", T.logsumexp(x, axis=0), "sum", "unknown", "LogSumExp"),
    Case("one's own of each row", of_graph(lambda r: T.tanh(r).sum(axis=1), x), "gather",
         "exact"),
    Case("one's own over rows", of_graph(lambda r: r - r.mean(axis=0), x), "gather", "wrong",
         "OpFromGraph"),
    Case("one's own number of rows", of_graph(lambda r: r.sum(axis=0) / r.shape[0], x), "avg",
         "exact"),
    Case("entries by the numbers of another of its uses", _flat(x)[0][_flat(x[:, :1])[1]],
         "gather", "unknown"),
    Case("a product of Einstein", T.einsum("ij,jk->ik", x, w), "gather", "exact"),
    # Axes that are joined and split.
    Case("its mean's gradient by weights",
         T.grad(T.tanh(T.join_dims(t, 0, 2) @ w).mean(), w), "avg", "exact"),
    Case("split by the number of rows", T.split_dims(T.join_dims(t, 0, 2), (_n, 4), axis=0),
         "gather", "exact"),
    Case("split where the rows are", T.split_dims(x.T, (_n, 1), axis=1).dimshuffle(1, 0, 2),
         "gather", "exact"),
    Case("a fixed number split by the rows", T.split_dims(np.ones(ROWS), (_n, 1), axis=0), "gather",
         "unknown"),
    Case("split into a fixed number", T.split_dims(x, (11, 1), axis=0), "gather", "unknown",
         "x.shape[0]"),
    Case("parameters by labels in columns", e[:, y].T, "gather", "exact"),
    Case("one entry for each row", T.take_along_axis(x, y[:, None], axis=1), "gather", "exact"),
    Case("rows from a place on, and chosen columns", x[1:, [0, 2]], "gather", "unknown"),
    Case("by a mask", x[x[:, 0] > 0].sum(axis=0), "sum", "unknown"),
    Case("set for each label", T.set_subtensor(T.zeros((3,))[y], v), "sum", "unknown",
         "overwrite"),
    Case("an entry of each row set", T.set_subtensor(x[_places, y], 0.0), "gather", "exact"),
    # Draws.
    Case("drawn for each row", drawn("normal", x @ b, 0), "gather", "exact"),
    Case("drawn for pairs of rows", drawn("normal", v, 0, size=(_n, _n)).sum(axis=0), "gather",
         "unknown"),
    Case("vectors drawn for each row",
         drawn("multivariate_normal", x, np.zeros((3, 3)), method="svd"), "gather", "exact"),
    Case("one vector drawn for all rows",
         drawn("multivariate_normal", v, T.outer(0 * v, v), method="svd"), "gather", "unknown"),
    Case("drawn by a mean", drawn("normal", x.mean(axis=0), 0), "avg", "unknown"),
    Case("drawn by a number of rows", drawn("normal", b, 0, size=(_n, 3)), "gather", "exact"),
    # Values that are passed on.
    Case("of a known shape", T.specify_shape(x, (None, 3)).mean(), "avg", "exact"),
    Case("checked by every row", checked(x.sum(), T.all(v > 0)), "sum", "exact"),
    Case("checked by any row", checked(x.sum(), T.any(x > 1)), "sum", "unknown", "hold"),
    Case("checked by all rows", checked(x.sum(), v.mean() > 0), "sum", "unknown"),
    Case("largest, from nothing on", T.max(x, axis=0, initial=-np.inf), "max", "exact"),
    Case("split rows", T.split(x, [4, 7], n_splits=2, axis=0)[1], "gather", "unknown"),
    Case("log of one minus an exponential", T.log1mexp(-v.sum()), "sum", "wrong", "not linear"),
]  # fmt: skip
