"""Graphs with an op and its verdict, and what computes them on all rows and on parts of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from synk_testing.engine import IS_THEANO, T, change_flags, engine, softmax

if IS_THEANO:
    from theano.tensor.nnet.bn import batch_normalization_test, batch_normalization_train
    from theano.tensor.shared_randomstreams import RandomStreams  # noqa: F401 - in the table
    from theano.tensor.signal.pool import pool_2d  # noqa: F401
else:
    from pytensor.compile.builders import OpFromGraph
    from pytensor.raise_op import CheckAndRaise
    from pytensor.tensor.random.type import random_generator_type

ROWS = 11
PARTS = [(0, 5), (5, 6), (6, 11)]
OPS = ("avg", "sum", "max", "min", "prod", "gather")

rng = np.random.RandomState(8)
x, v, y, z = T.dmatrix("x"), T.dvector("v"), T.ivector("y"), T.dmatrix("z")
t, im, mask, c = T.dtensor3("t"), T.dtensor4("im"), T.dvector("mask"), T.dvector("c")
data = {
    x: rng.standard_normal((ROWS, 3)),
    v: rng.uniform(0.5, 1.5, ROWS),
    y: rng.randint(0, 3, ROWS).astype("int32"),
    z: rng.standard_normal((ROWS, 3)),
    t: rng.standard_normal((ROWS, 4, 3)),
    im: rng.standard_normal((ROWS, 2, 6, 6)),
    mask: (rng.uniform(size=ROWS) > 0.4).astype("float64"),
}
scattered = list(data)
shapes = {"w": (3, 3), "b": (3,), "e": (5, 4), "k": (4, 2, 3, 3), "q": (ROWS, 3)}
w, b, e, k, q = (engine.shared(rng.standard_normal(shape), name) for name, shape in shapes.items())
zero, share = engine.shared(np.int64(0), "zero"), engine.shared(np.float64(1.0), "row_share")
share.tag.synk_row_share = True

n = x.shape[0]
probability = softmax(T.tanh(x.dot(w) + b))
entropy = -T.log(probability)[T.arange(n), y]
loss = entropy.mean() + (w**2).sum()
stretched = softmax(t.reshape((-1, 3)).dot(w)).reshape((t.shape[0], t.shape[1], 3))
centred = x - x.mean(axis=0)

if IS_THEANO:
    maps = T.nnet.relu(T.nnet.conv2d(im, k))
    normal, mean, inverse = batch_normalization_train(x, b, b, axes="per-activation")[:3]
    stored = batch_normalization_test(x, b, b, b, T.sqr(b) + 1, axes="per-activation")
else:
    matrices = x[:, None] * x[:, :, None] + np.eye(3)

    def of_graph(build: Any) -> Any:
        inner = x.type()
        return OpFromGraph([inner], [build(inner)])(x)

    def drawn(name: str, *parameters: Any, **settings: Any) -> Any:
        """Draws that can have one value only, so that the generator's state does not matter."""
        state = random_generator_type.make_constant(np.random.default_rng(1))
        return getattr(T.random, name)(*parameters, **settings, rng=state)

    def checked(condition: Any) -> Any:
        return CheckAndRaise(ValueError, "refused")(x.sum(), condition)


class Case(NamedTuple):
    text: str
    output: Any
    op: str
    verdict: str
    says: str


def cases(table: str) -> list[Case]:
    """The cases of lines "op verdict expression", or "op verdict expression -> words"."""
    found = []
    for line in table.strip().split("\n"):
        op, verdict, text = line.split(maxsplit=2)
        text, _, says = text.partition(" -> ")
        found.append(Case(text, eval(text), op, verdict, says))
    return found


CASES = cases("""
avg exact T.exp(x).mean(axis=0)
avg exact loss
avg exact T.grad(loss, w)
avg exact T.mean(T.eq(T.argmax(probability, axis=1), y))
avg exact T.grad(T.sqr(stretched).mean(), w)
avg exact T.grad(T.tanh(e[y]).mean(), e)
avg exact (w**2).sum()
avg exact x.T.dot(x) / n
avg exact T.grad(x.dot(w).mean() + 0 * x.std(), w)
avg exact x.sum() / T.ones_like(x).sum()
sum exact x.T.dot(x)
sum exact T.sqr(x).sum() + share * (w**2).sum()
sum exact T.inc_subtensor(T.zeros((3,))[0], x.sum())
sum exact T.sqr(q).sum()
sum exact x[:, zero:].sum(axis=0)
max exact T.any(T.gt(x, 1.5), axis=0)
min exact x.min(axis=0)
prod exact x.prod(axis=0)
gather exact t.reshape((t.shape[0], -1))
gather exact x[T.arange(n).dimshuffle(0, "x"), [2, 0]]
gather exact T.grad(entropy.sum(), x)
avg wrong x.sum() -> declare it 'sum'
avg wrong x.std(axis=0) -> combines each row with
avg wrong T.sqrt(T.sqr(x).mean()) -> not linear
avg wrong x.sum() / v.sum() -> several reductions
avg wrong T.grad(T.sqr(T.tanh(centred.dot(w))).mean(), w)
sum wrong x.mean() -> declare it 'avg'
sum wrong w -> once for each rank
sum wrong T.sqr(x).sum() + (w**2).sum() -> row_share
sum wrong x.sum() + x.mean() -> grow differently
gather wrong w -> once for each rank
gather wrong x.T -> axis 1
gather wrong T.grad(loss, x) -> gradient of a mean
gather wrong x.dot(x.T) -> each other row
prod wrong T.inc_subtensor(T.ones((3,))[0], 1.0)
avg unknown abs(x.mean(axis=0)) -> may or may not
avg unknown x.var() + T.sqr(x.mean())
avg unknown softmax(x.mean(axis=0, keepdims=True))
avg unknown x.sum() / x[1:].shape[0]
sum unknown T.sqrt(T.sqr(x).sum()) ** 2
sum unknown (x[1:] - x[:-1]).sum(axis=0) -> positions
sum unknown v[T.gt(mask, 0.5).nonzero()].sum()
max unknown x.max(axis=0) - x.min(axis=0) -> different kinds
max unknown T.cast(T.cast(100 * v, "int32").max(), "float32") -> function of a maximum
max unknown T.inc_subtensor(x.max(axis=0)[0], v.max()) -> other things than zeros
prod unknown x.prod() ** 3
gather unknown centred + x.mean(axis=0)
gather unknown T.sort(x, axis=0) -> unknown to this check
gather unknown T.arange(n) * v -> counts from 0
gather unknown x * engine.shared(np.ones((ROWS, 3))) -> fixed number
gather unknown w[y, np.arange(ROWS) % 3] -> fixed number
gather unknown k[:, y - 1, :, y - 1] -> another way
gather unknown T.minimum(x, x.mean(axis=0))
""")

if IS_THEANO:
    CASES += cases("""
avg unknown T.mean(x, op=True)
avg exact T.grad(pool_2d(maps, (2, 2), ignore_border=True, mode="average_exc_pad").mean(), k)
avg exact T.tanh(stored).mean()
avg exact mean
gather exact T.nnet.conv2d(im, k)
gather exact x[:, [2, 0]]
gather exact pool_2d(im, (2, 2), ignore_border=True)
avg wrong T.tanh(normal).mean() -> of one rank
avg wrong inverse -> of one rank
avg wrong T.grad(T.tanh(batch_normalization_train(x.dot(w), b, b)[0]).mean(), w)
gather unknown softmax(x.T).T
gather unknown RandomStreams(1).normal(size=(n, n), avg=x[:, 0]).sum(axis=0)
""")
else:
    CASES += cases("""
avg exact of_graph(lambda r: r.sum(axis=0) / r.shape[0])
avg exact T.specify_shape(x, (None, 3)).mean()
sum exact t.dimshuffle(1, 2, 0) @ t.dimshuffle(1, 0, 2)
sum exact T.grad(T.logsumexp(x @ w, axis=1).sum(), w)
sum exact checked(T.all(v > 0))
gather exact (t.dimshuffle(1, 0, 2) @ w).dimshuffle(1, 0, 2)
gather exact T.take_along_axis(x, y[:, None], axis=1)
gather exact drawn("normal", 2, 0, size=x.shape)
sum wrong T.log1mexp(-v.sum()) -> not linear
gather wrong t.dimshuffle(1, 0, 2) @ t.dimshuffle(1, 2, 0) -> each other row
gather wrong softmax(x.T).T
gather wrong of_graph(lambda r: r - r.mean(axis=0)) -> reduction over all rows
gather unknown t @ (x.T @ x / n) -> of another kind
gather unknown T.linalg.inv(matrices) -> is no product
gather unknown x[:, [2, 0]] -> another way
gather unknown T.set_subtensor(x[T.arange(n), y], 0.0) -> other things than zeros
avg unknown drawn("normal", x.mean(axis=0), 0)
sum unknown T.logsumexp(x, axis=0)
sum unknown T.set_subtensor(T.zeros((3,))[y], v) -> other things than zeros
sum unknown checked(T.any(x > 1)) -> hold
gather unknown T.split(x, [4, 7], n_splits=2, axis=0)[1]
gather unknown drawn("normal", v, 0, size=(n, n)).sum(axis=0)
gather unknown drawn("normal", np.ones(3), 0, size=x.shape) -> one number each
gather unknown drawn("multivariate_normal", x, np.zeros((3, 3)), method="svd")
""")


def values_of(output: Any, in_c: bool) -> tuple[Any, list[Any]]:
    """The output on all rows, and on parts of them; None for a part that cannot be computed."""
    whole_q = q.get_value()
    flags = {"mode": "FAST_COMPILE", "linker": "py", **({} if IS_THEANO else {"cxx": ""})}
    with change_flags(**flags):
        mode = engine.compile.mode.Mode("cvm", "fast_compile") if in_c else "FAST_COMPILE"
        f = engine.function([*scattered, c], output, mode=mode, on_unused_input="ignore")
    values = []
    try:
        for start, stop in [(0, ROWS), *PARTS]:
            q.set_value(whole_q[start:stop])
            share.set_value((stop - start) / ROWS)
            try:
                rows = [array[start:stop] for array in data.values()]
                values.append(np.asarray(f(*rows, np.ones(3))))
            except (ValueError, IndexError, AssertionError, np.linalg.LinAlgError):
                assert values  # the whole is always computed
                values.append(None)
    finally:
        q.set_value(whole_q)
        share.set_value(1.0)
    return values[0], values[1:]


def is_exact(whole: Any, parts: list[Any], op: str) -> bool:
    """Return whether the parts, put together by NumPy, are the whole but for rounding."""
    if any(part is None for part in parts):
        return False
    try:
        if op == "gather":
            got, whole = np.concatenate([np.atleast_1d(p) for p in parts]), np.atleast_1d(whole)
        elif op == "avg":
            got = np.average(parts, axis=0, weights=[stop - start for start, stop in PARTS])
        else:
            reduce = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[op]
            got = reduce.reduce(np.stack(parts), axis=0, dtype=parts[0].dtype)
    except ValueError:  # their shapes
        return False
    return got.shape == whole.shape and np.allclose(
        got.astype(float), whole.astype(float), rtol=1e-9, atol=1e-9
    )
