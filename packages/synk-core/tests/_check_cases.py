"""Graphs with their verdicts, and what computes a graph on all rows and on parts of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from _check_words import (
    batched_dot,
    categorical_crossentropy,
    det,
    in_python,
    io_toposort,
    log_softmax,
    softmax,
)

from synk_testing.engine import IS_THEANO, T, engine

FLOAT = "float64"
SUB = "Elemwise{sub}" if IS_THEANO else "Sub"
"""What reports call a subtraction."""
OPS = ("avg", "sum", "max", "min", "prod", "gather")
ROWS = 11
PARTS = [(0, 5), (5, 6), (6, 11)]

rng = np.random.RandomState(8)


def new_shared(*shape: int, name: str) -> Any:
    return engine.shared(rng.standard_normal(shape), name=name)


x, v = T.dmatrix("x"), T.dvector("v")
y, z = T.ivector("y"), T.dmatrix("z")
t, im = T.dtensor3("t"), T.dtensor4("im")
mask = T.dvector("mask")
c = T.dvector("c")
scattered = [x, v, y, z, t, im, mask]
data = {
    x: rng.standard_normal((ROWS, 3)),
    v: rng.uniform(0.5, 1.5, ROWS),
    y: rng.randint(0, 3, ROWS).astype("int32"),
    z: rng.standard_normal((ROWS, 3)),
    t: rng.standard_normal((ROWS, 4, 3)),
    im: rng.standard_normal((ROWS, 2, 6, 6)),
    mask: (rng.uniform(size=ROWS) > 0.4).astype(FLOAT),
}
c_value = rng.standard_normal(3)

w, b = new_shared(3, 3, name="w"), new_shared(3, name="b")
u, e = new_shared(3, 3, name="u"), new_shared(5, 4, name="e")
q = engine.shared(rng.standard_normal((ROWS, 3)), name="q")
one, zero = (engine.shared(np.int64(n), name=name) for n, name in ((1, "one"), (0, "zero")))
share = engine.shared(np.float64(1.0), name="row_share")
share.tag.synk_row_share = True

hidden = T.tanh(x.dot(w) + b)
norm = T.sqrt(T.sqr(x).sum())
counts = T.cast(100 * v, "int32")
probability = softmax(hidden.dot(u))
crossentropy = categorical_crossentropy(probability, y)
l2 = 1e-2 * ((w**2).sum() + (u**2).sum())
loss = crossentropy.mean() + l2

stretched = softmax(t.reshape((-1, 3)).dot(w)).reshape((t.shape[0], t.shape[1], 3))
normalized = (x - x.mean(axis=0)) / T.sqrt(x.var(axis=0) + 1e-5)


class Case(NamedTuple):
    name: str
    output: Any
    op: str
    verdict: str
    says: str = ""


CASES = [
    # Means.
    Case("mean of all", T.sqr(x).mean(), "avg", "exact"),
    Case("mean over rows", T.exp(x).mean(axis=0), "avg", "exact"),
    Case("regularized mean", T.sqr(x.dot(w)).mean() + 0.1 * abs(w).sum(), "avg", "exact"),
    Case("crossentropy of an MLP", loss, "avg", "exact"),
    Case("its gradient by weights", T.grad(loss, w), "avg", "exact"),
    Case("accuracy", T.mean(T.eq(T.argmax(probability, axis=1), y)), "avg", "exact"),
    Case("its gradient", T.grad(T.sqr(stretched).mean(), w), "avg", "exact"),
    Case("gradient by an embedding", T.grad(T.tanh(e[y]).mean(), e), "avg", "exact"),
    Case("of parameters alone", (w**2).sum(), "avg", "exact"),
    Case("second moments", x.T.dot(x) / x.shape[0], "avg", "exact"),
    Case("log of softmax", log_softmax(x)[T.arange(x.shape[0]), y].mean(), "avg", "exact"),
    Case("a batched product", batched_dot(t, t.dimshuffle(0, 2, 1)).mean(axis=0),
         "avg", "exact"),
    Case("gradient that does not depend on a mixed value",
         T.grad(x.dot(w).mean() + 0 * x.std(), w), "avg", "exact"),
    # Sums.
    Case("sum of all", T.sqr(x).sum(), "sum", "exact"),
    Case("sum over rows", x.sum(axis=0), "sum", "exact"),
    Case("Gram matrix of columns", x.T.dot(x), "sum", "exact"),
    Case("mean weighted by the row share", share * x.mean(), "sum", "exact"),
    Case("penalty weighted by the row share", T.sqr(x).sum() + share * l2, "sum", "exact"),
    Case("steps from zero", T.inc_subtensor(T.zeros((3,))[0], x.sum()), "sum", "exact"),
    Case("sum of sliceable rows", T.sqr(q).sum(), "sum", "exact"),
    # Largest, smallest, products.
    Case("maximum", x.max(), "max", "exact"),
    Case("any", T.any(T.gt(x, 1.5), axis=0), "max", "exact"),
    Case("largest count as a float", T.cast(counts.max(), "float32"), "max", "exact"),
    Case("minimum", x.min(axis=0), "min", "exact"),
    Case("product", x.prod(axis=0), "prod", "exact"),
    Case("reshaped with the row count", t.reshape((t.shape[0], -1)), "gather", "exact"),
    Case("chosen columns", x[:, [2, 0]], "gather", "exact"),
    Case("embedding", e[y], "gather", "exact"),
    Case("gradient of a sum by rows", T.grad(crossentropy.sum(), x), "gather", "exact"),
    # Indices.
    Case("a fixed number of labels", w[y, np.arange(ROWS) % 3], "gather", "unknown",
         "fixed number"),
    Case("a constant by positions",
         T.as_tensor_variable(rng.standard_normal((ROWS, 3)))[T.arange(x.shape[0]), y], "gather",
         "unknown", "by position"),
    Case("entries by positions with columns", x[T.arange(x.shape[0]).dimshuffle(0, "x"), [2, 0]],
         "gather", "exact"),
    # Entries that are added to.
    Case("maximum added to a maximum", T.inc_subtensor(x.max(axis=0)[0], v.max()), "max",
         "unknown"),
    Case("maximum set into a maximum", T.set_subtensor(x.max(axis=0)[0], v.max()), "max", "exact"),
    Case("product added to a product", T.inc_subtensor(x.prod(axis=0)[0], v.prod()), "prod",
         "unknown"),
    Case("one added to ones", T.inc_subtensor(T.ones((3,))[0], 1.0), "prod", "wrong"),
    # A right result under a wrong op.
    Case("mean declared sum", x.mean(), "sum", "wrong", "declare it 'avg'"),
    Case("sum declared avg", x.sum(), "avg", "wrong", "declare it 'sum'"),
    Case("parameters declared sum", w, "sum", "wrong", "once for each rank"),
    Case("parameters gathered", w, "gather", "wrong", "copy"),
    Case("transposed rows gathered", x.T, "gather", "wrong", "axis 1"),
    Case("gradient of a mean by rows", T.grad(loss, x), "gather", "wrong", "gradient of a mean"),
    Case("sum with a penalty", T.sqr(x).sum() + l2, "sum", "wrong", "row_share"),
    # Nothing that parts of the rows could be combined to.
    Case("standard deviation", x.std(axis=0), "avg", "wrong", "combines each row with"),
    Case("root of a mean of squares", T.sqrt(T.sqr(x).mean()), "avg", "wrong", "not linear"),
    Case("softmax over rows", softmax(x.T).T, "gather", "wrong", "oftmax"),
    Case("the last of accumulated rows", T.cumsum(v)[-1], "sum", "unknown"),
    Case("a mean by ones", x.sum() / T.ones_like(x).sum(), "avg", "exact"),
    Case("differences from the mean, and the mean", (x - x.mean(axis=0)) + x.mean(axis=0),
         "gather", "unknown"),
    Case("a mean of squares by the variance", x.var() + T.sqr(x.mean()), "avg", "unknown"),
    Case("a gradient that is zero", T.grad((b - b).sum(), b), "sum", "exact"),
    Case("a power of two", T.exp2(v.sum()), "prod", "unknown"),
    Case("a power of a product", x.prod() ** 3, "prod", "unknown"),
    Case("a norm by itself", norm * norm, "sum", "unknown"),
    Case("sorted rows", T.sort(x, axis=0), "gather", "unknown", "unknown to this check"),
    Case("ratio of sums", x.sum() / v.sum(), "avg", "wrong", "several reductions"),
    Case("range", x.max(axis=0) - x.min(axis=0), "max", "unknown", "different kinds"),
    Case("sum and mean added", x.sum() + x.mean(), "sum", "wrong", "grow differently"),
    Case("differences of rows", (x[1:] - x[:-1]).sum(axis=0), "sum", "unknown", "positions"),
    Case("numbered rows", T.arange(x.shape[0]) * v, "gather", "unknown", "counts from 0"),
    Case("Gram matrix of rows", x.dot(x.T), "gather", "wrong", "each other row"),
    Case("its gradient", T.grad(T.sqr(T.tanh(normalized.dot(w))).mean(), w), "avg", "wrong"),
    Case("rows from a place that is not known", x[one:].sum(axis=0), "sum", "unknown", "positions"),
    Case("columns from a place that is not known", x[:, one:].sum(axis=0), "sum", "exact"),
    Case("divided by the rows but one", x.sum() / x[1:].shape[0], "avg", "unknown"),
    # Where the graph cannot tell.
    Case("absolute value of a mean", abs(x.mean(axis=0)), "avg", "unknown", "may or may not"),
    Case("rows chosen by a mask", v[T.gt(mask, 0.5).nonzero()].sum(), "sum", "unknown"),
    Case("fixed number of rows", x * engine.shared(np.ones((ROWS, 3))), "gather", "unknown",
         "fixed number"),
    Case("rows no larger than their mean", T.minimum(x, x.mean(axis=0)), "gather", "unknown"),
    Case("determinant", det(x.T.dot(x)), "avg", "unknown", "Det"),
]  # fmt: skip


def kinds_of(output: Any) -> set[str]:
    """The operations that an output is computed by."""
    ops = [node.op for node in io_toposort([], [output])]
    names = {type(op).__name__ for op in ops}
    return names | {
        f"Blockwise {type(op.core_op).__name__}" for op in ops if hasattr(op, "core_op")
    }


def has_convolutions(output: Any) -> bool:
    return any("Conv" in kind for kind in kinds_of(output))


def values_of(output: Any) -> tuple[Any, list[Any]]:
    """The output on all rows, and on parts of them; None for a part that cannot be computed."""
    whole_q = q.get_value()
    with in_python():
        # Convolutions exist in C only.
        in_c = has_convolutions(output)
        mode = engine.compile.mode.Mode("cvm", "fast_compile") if in_c else "FAST_COMPILE"
        f = engine.function([*scattered, c], output, mode=mode, on_unused_input="ignore")
    values = []
    try:
        for start, stop in [(0, ROWS), *PARTS]:
            q.set_value(whole_q[start:stop])
            share.set_value((stop - start) / ROWS)
            try:
                values.append(np.asarray(f(*(data[s][start:stop] for s in scattered), c_value)))
            except (ValueError, IndexError, AssertionError, np.linalg.LinAlgError):
                assert values  # the whole is always computed
                values.append(None)
    finally:
        q.set_value(whole_q)
        share.set_value(1.0)
    return values[0], values[1:]


def combined(parts: list[Any], op: str) -> Any:
    """The parts put together by NumPy; None if they do not fit, or one is missing."""
    if any(part is None for part in parts):
        return None
    if op == "gather":
        parts = [np.atleast_1d(part) for part in parts]
        fits = len({part.shape[1:] for part in parts}) == 1
        return np.concatenate(parts) if fits else None
    if len({part.shape for part in parts}) > 1:
        return None
    stacked = np.stack(parts)
    with np.errstate(all="ignore"):
        if op == "avg":
            return np.average(stacked, axis=0, weights=[stop - start for start, stop in PARTS])
        reduce = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[op]
        return reduce.reduce(stacked, axis=0, dtype=stacked.dtype)


def is_exact(whole: Any, parts: list[Any], op: str, tolerance: float = 1e-9) -> bool:
    """Whether the parts are the whole but for rounding, where that is finite."""
    got = combined(parts, op)
    whole = np.atleast_1d(whole) if op == "gather" else whole
    if got is None or got.shape != whole.shape:
        return False
    finite = np.isfinite(whole)
    got, whole = got[finite].astype(float), whole[finite].astype(float)
    return bool(np.allclose(got, whole, rtol=tolerance, atol=tolerance))
