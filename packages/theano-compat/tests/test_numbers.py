"""Patches of graphs that Theano computes wrongly, or not at all: products, batches without rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synk_theano_compat._patches.reshape import complete

IMPORT = "import theano, theano.tensor as T, numpy as np, itertools\n"

MODES = ["None", "theano.Mode('py', 'fast_run')"]

PRODUCTS = """
rng = np.random.RandomState(0)
def close(got, wanted, what):
    assert got.shape == wanted.shape and np.allclose(got, wanted, rtol=1e-4), (what, got, wanted)
for shape in ((2, 3), (2, 3, 2), (1, 3), (1, 1), (0, 3)):
    x = T.TensorType(DTYPE, [n == 1 for n in shape])()
    c = T.scalar(dtype=DTYPE)
    values = rng.randint(-3, 4, shape).astype(DTYPE)
    every = range(len(shape))
    some = [a for r in (1, 2, 3) for a in itertools.combinations(every, r)]
    kinds = list(itertools.product([None, -1, *every, *some], (0, 1, 2), (False, True)))
    graphs = [T.prod((c * x, x * c * x, -x)[e], axis, keepdims=keep) for axis, e, keep in kinds]
    f = theano.function([x, c], graphs, mode=theano.Mode("py", "fast_run"))
    for number in (-2, 0, 3):
        number = np.asarray(number, DTYPE)
        factors = number * values, values * number * values, -values
        for (axis, e, keep), got in zip(kinds, f(values, number)):
            wanted = np.prod(factors[e], axis=axis, keepdims=keep)
            close(got, wanted, (shape, axis, number))
"""


@pytest.mark.parametrize(
    "dtype",
    ["float64", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("int32", "float32"))],
)
def test_product_along_axes_has_the_scalar_once_for_each_item(run, forked, dtype: str):
    code = f"DTYPE = {dtype!r}\n" + IMPORT + PRODUCTS
    done = forked(code)
    assert "ERROR" not in done.stderr  # an optimisation that fails is only logged
    # The power is a float64, which in the place of a float32 is only an error message.
    is_refused = dtype == "float32"
    failed = run(code, skip="P11", fails=not is_refused)
    assert ("ERROR (theano.gof.opt)" if is_refused else "AssertionError") in failed.stderr


def test_product_over_all_axes_takes_the_scalar_out(forked):
    forked(
        IMPORT + "x, c = T.matrix(dtype='float64'), T.scalar(dtype='float64')\n"
        "f = theano.function([x, c], (c * x).prod(), mode=theano.Mode('py', 'fast_run'))\n"
        "products = [n for n in f.maker.fgraph.toposort() if isinstance(n.op, T.elemwise.Prod)]\n"
        "assert any(n.inputs[0] is f.maker.fgraph.inputs[0] for n in products)\n"
    )


EMPTY = """
x, minus = T.tensor4(), T.lscalar()
CASES = [
    (x.flatten(), lambda n: (24 * n,)),
    (x.flatten(3), lambda n: (n, 2, 12)),
    (x.reshape((x.shape[0], -1)), lambda n: (n, 24)),
    (x.reshape((-1, x.shape[0])), lambda n: (24, n)),
    (x.reshape((x.shape[0], 3, -1)), lambda n: (n, 3, 8)),
    (x.reshape((-1, 6)), lambda n: (4 * n, 6)),
    (x.reshape((x.shape[0], 1, -1)), lambda n: (n, 1, 24)),
    (x.reshape(T.stack([x.shape[0], minus]), ndim=2), lambda n: (n, 24)),
    (T.grad((x.flatten(2) ** 2).sum(), x), lambda n: (n, 2, 3, 4)),
]
graphs = [case for case, _ in CASES]
values = theano.function([x, minus], graphs, mode=MODE)
# What Theano announces without doing it: here the reshaped array itself is not needed.
announced = theano.function(
    [x, minus], [g for case in graphs for g in (case.shape, T.zeros_like(case))], mode=MODE
)
for rows in ROWS:
    v = np.arange(24 * rows, dtype=x.dtype).reshape(rows, 2, 3, 4)
    for got, (_, shape) in zip(values(v, -1), CASES):
        assert got.shape == shape(rows), (rows, got.shape, shape(rows))
        assert got.ndim == 4 or np.array_equal(got.ravel(), v.ravel())
    numbers = iter(announced(v, -1))
    for _, shape in CASES:
        assert tuple(next(numbers)) == shape(rows)
        assert next(numbers).shape == shape(rows)
"""


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[pytest.mark.nightly] * ("py" not in mode)) for mode in MODES]
)
def test_flatten_and_reshape_of_a_batch_without_rows(run, forked, mode: str):
    code = IMPORT + f"MODE = {mode}\n"
    forked(code + "ROWS = (0, 1, 2, 5)\n" + EMPTY)
    failed = run(code + "ROWS = (0,)\n" + EMPTY, skip="P12", fails=True)
    assert "reshape" in failed.stderr


IMPOSSIBLE = """
x = T.matrix()
def refused(graph, shape):
    try:
        got = theano.function([x], graph, mode=MODE)(np.zeros(shape, x.dtype))
    except ValueError as error:
        assert "reshape" in str(error), error
    else:
        raise AssertionError(got.shape)
refused(x.reshape((x.shape[0], 5, -1)), (0, 7))  # 7 is no multiple of 5
refused(x.reshape((x.shape[0], 5, -1)), (2, 7))
refused(x.reshape((-1, x.shape[0], 3)), (0, 0))  # another 0, and nothing that names it
refused(x.reshape((x.shape[0], x.shape[0], -1)), (0, 7))
refused(x.reshape((x.shape[0], 3)), (2, 7))
for shape, wanted in (((0, -1), (0, 7)), ((-1, 0), (7, 0))):
    f = theano.function([x], [x.reshape(shape), x.reshape(shape).shape], mode=MODE)
    got, announced = f(np.zeros((0, 7), x.dtype))
    assert got.shape == tuple(announced) == wanted
"""


@pytest.mark.parametrize("mode", MODES)
def test_shapes_that_do_not_fit_are_refused(forked, mode: str):
    forked(IMPORT + f"MODE = {mode}\n" + IMPOSSIBLE)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.data(),
)
def test_minus_one_beside_zero_is_the_length_of_other_rows(rest, others, data):
    """For each n > 0 NumPy knows the length; at n = 0 it has to be the same."""
    if math.prod(rest) % math.prod(others):
        others = []
    axis = data.draw(st.integers(0, len(rest)))
    place = data.draw(st.permutations(["rows", -1, *others]))

    def wanted(rows: int) -> list[int]:
        return [rows if part == "rows" else part for part in place]

    def lengths(rows: int) -> list[int]:
        return [*rest[:axis], rows, *rest[axis:]]

    of_two = np.zeros(lengths(2)).reshape(wanted(2)).shape
    completed = complete(lengths(0), wanted(0))
    assert completed == [0 if part == "rows" else n for part, n in zip(place, of_two)]
    assert np.zeros(lengths(0)).reshape(completed).shape == tuple(completed)
