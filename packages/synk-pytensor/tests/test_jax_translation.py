"""Functions of mode JAX compute what PyTensor's own linkers do, or say that they cannot."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest

from synk_core import Runtime, SpecError
from synk_core.in_graph import all_reduce
from synk_testing.engine import IS_THEANO, T, engine

jax = pytest.importorskip("jax", reason="needs JAX")
pytestmark = pytest.mark.skipif(IS_THEANO, reason="PyTensor only")
if not IS_THEANO:
    import pytensor.link.jax.dispatch  # noqa: F401 - it sets JAX's precision when it is imported
    from pytensor import scan
    from pytensor.compile.mode import Mode
    from pytensor.conditional.op import ifelse
    from pytensor.raise_op import Assert
    from pytensor.scan.utils import until
    from pytensor.tensor.fft import rfft

    from synk_core._graph.transfer.flat import flatten, rebuild
    from synk_core.engine import build

n, i = T.lscalar("n"), T.lvector("i")
ROWS = np.random.default_rng(1).normal(size=(6, 4))
VALUES = {"n": np.int64(3), "i": np.array([0, 2, 5]), "j": np.array([0, 1, 2])}


def looped(*arguments, **options):
    return scan(*arguments, return_updates=False, **options)


# By a matrix x of 6 rows and 4 columns, a positive vector v, shared ones S and W, and n = 3.
GRAPHS = {
    "reshape to one axis": lambda x, v, S, W: x.reshape((-1,)),
    "reshape by lengths": lambda x, v, S, W: x.reshape((x.shape[0], 2, 2)),
    "reshape by their product": lambda x, v, S, W: x.reshape((x.shape[0] * 2, 2)),
    "reshape by an input": lambda x, v, S, W: x.reshape((n, 8)),
    "flatten": lambda x, v, S, W: T.stack([x, x]).flatten(2),
    "parts of a vector": lambda x, v, S, W: S.flatten()[:8].reshape((2, 4)) @ W,
    "arange": lambda x, v, S, W: T.arange(x.shape[0]),
    "arange by arithmetic": lambda x, v, S, W: T.arange(x.shape[0] + n),
    "half by a float": lambda x, v, S, W: x[: T.cast(T.ceil(x.shape[0] / 4.0), "int64")],
    "cross entropy": lambda x, v, S, W: T.log(T.special.softmax(x[:3], 1))[T.arange(3), i // 2],
    "sum of a mask": lambda x, v, S, W: x[x > 0].sum(),
    "set by a mask": lambda x, v, S, W: T.set_subtensor(x[x > 0], 0),
    "first rows": lambda x, v, S, W: x[:n],
    "rows of a shared variable": lambda x, v, S, W: S[n : n + 2],
    "range of a shared variable": lambda x, v, S, W: S[n : 2 * n].sum(),
    "rows of a result": lambda x, v, S, W: T.tanh(x)[n - 4 : n + 9],
    "indexed rows": lambda x, v, S, W: S[i],
    "a row": lambda x, v, S, W: x[n],
    "reversed": lambda x, v, S, W: x[::-1],
    "half": lambda x, v, S, W: x[: x.shape[0] // 2],
    "zeros like": lambda x, v, S, W: T.zeros_like(x) + 1,
    "zeros by a length": lambda x, v, S, W: T.zeros((x.shape[0], 3)),
    "zeros by an input": lambda x, v, S, W: T.zeros((n, 3)),
    "joined": lambda x, v, S, W: T.concatenate([x, x]),
    "split by lengths": lambda x, v, S, W: T.split(x, [n, x.shape[0] - n], n_splits=2)[1],
    "argmax": lambda x, v, S, W: T.argmax(x, axis=1),
    "accuracy": lambda x, v, S, W: T.eq(T.argmax(x[:3], axis=1), i).mean(),
    "log softmax": lambda x, v, S, W: T.special.log_softmax(x, axis=1),
    "switch": lambda x, v, S, W: T.switch(x > 0, x, 0),
    "a branch": lambda x, v, S, W: ifelse(n > 2, x, 2 * x),
    "a branch by a value": lambda x, v, S, W: ifelse(x.sum() > 2, T.exp(x), 2 * x),
    "branches of other lengths": lambda x, v, S, W: ifelse(n > 2, x[1:], x),
    "sums in a loop": lambda x, v, S, W: looped(
        lambda row, total: total + row, sequences=x, outputs_info=T.zeros_like(x[0])
    ),
    "gradient of a loop": lambda x, v, S, W: T.grad(
        looped(lambda row, h: T.tanh(row + h @ W), sequences=x, outputs_info=T.zeros_like(x[0]))[
            -1
        ].sum(),
        W,
    ),
    "a loop's steps": lambda x, v, S, W: looped(
        lambda h: T.tanh(h @ W), outputs_info=T.ones_like(W[0]), n_steps=n
    )[-1],
    "a length in a loop": lambda x, v, S, W: looped(
        lambda row, k: T.zeros((k,), dtype=x.dtype) + row.sum(), sequences=x, non_sequences=n
    ),
    "sorted": lambda x, v, S, W: T.sort(x, axis=0),
    "solved": lambda x, v, S, W: T.linalg.solve(T.linalg.cholesky(x.T @ x), x.T),
    "convolved": lambda x, v, S, W: T.signal.convolve1d(v, W[0], mode="valid"),
    "repeated": lambda x, v, S, W: T.repeat(x, n, axis=0),
    "tiled": lambda x, v, S, W: T.tile(x, (2, 1)),
    "padded": lambda x, v, S, W: T.pad(x, 1),
    "einsum": lambda x, v, S, W: T.einsum("ij,kj->ik", x, x),
    "checked": lambda x, v, S, W: Assert("small")(x.sum(), T.lt(x.sum(), 1e9)),
    "special functions": lambda x, v, S, W: T.gammaln(v) + T.erf(v) + T.digamma(v),
    "increased": lambda x, v, S, W: T.inc_subtensor(S[i], 1),
    "summed up": lambda x, v, S, W: T.cumsum(x, axis=0),
    "divided by a length": lambda x, v, S, W: x[0, 0] / x.shape[0],
    "numbers of other dtypes": lambda x, v, S, W: T.cast(16777217 + i, "int32") * x[0, 0] + 0.1,
    "large numbers": lambda x, v, S, W: T.cast(x * 0, "int64")[0, 0] + i * 2**40,
    "roots of integers": lambda x, v, S, W: T.sqrt(i) / T.cast(n, "int8"),
    "comparisons of other dtypes": lambda x, v, S, W: T.eq(
        T.cast(x * 0, "float32") + 2**24, 2**24 + n - 2
    ),
}


def variables(dtype):
    x, v = T.matrix("x", dtype=dtype), T.vector("v", dtype=dtype)
    S, W = (engine.shared(rows.astype(dtype)) for rows in (ROWS + 1, ROWS[:4] / 2))
    values = {x: ROWS.astype(dtype), v: np.abs(ROWS[:, 0]).astype(dtype)}
    return x, v, S, W, {**values, n: VALUES["n"], i: VALUES["i"]}


def translated(inputs, outputs, **options):
    """A function as ranks have it."""
    options = {"mode": "JAX", "on_unused_input": "ignore", **options}
    return rebuild(flatten(build(inputs, outputs, **options)))


def plain(inputs, outputs, **options):
    mode = Mode(linker="py", optimizer="fast_compile")
    return engine.function(inputs, outputs, mode=mode, on_unused_input="ignore", **options)


@pytest.fixture
def setting():
    """Set whether JAX computes in 64 bits in the rest of the program."""
    before = jax.config.jax_enable_x64
    yield partial(jax.config.update, "jax_enable_x64")
    jax.config.update("jax_enable_x64", before)


DAILY = {
    *("reshape by lengths", "sum of a mask", "first rows", "range of a shared variable"),
    *("zeros by an input", "branches of other lengths", "gradient of a loop", "checked"),
    *("large numbers", "comparisons of other dtypes"),
    *("all_reduce", "check in a loop", "steps by a value", "x[x > 0]"),
}
"""One of a kind; the others are left to the night."""


def by_name(cases):
    """Give a test the names of cases."""
    nightly = {name: [pytest.mark.nightly] * (name not in DAILY) for name in cases}
    params = [pytest.param(name, marks=marks) for name, marks in nightly.items()]
    return pytest.mark.parametrize("name", params)


@by_name(GRAPHS)
def test_a_graph_has_the_values_and_dtypes_of_numpys(name, setting):
    for dtype, has_64_bits in (("float32", True), ("float64", False)):
        setting(has_64_bits)
        x, v, S, W, values = variables(dtype)
        output = GRAPHS[name](x, v, S, W)
        [result] = translated(list(values), [output])(*values.values())
        [expected] = plain(list(values), [output])(*values.values())
        assert result.dtype == expected.dtype == output.dtype
        assert result.shape == expected.shape
        tolerance = {"float32": 2e-5, "float64": 1e-11}.get(str(output.dtype), 0)
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


REFUSED = {
    "x[x > 0]": (lambda x, v, W: x[x > 0], "AdvancedSubtensor"),
    "nonzero": (lambda x, v, W: T.nonzero(x)[0], "Nonzero"),
    "convolve2d": (lambda x, v, W: T.signal.convolve2d(x, W, mode="valid"), "Convolve2d"),
    "rfft": (lambda x, v, W: rfft(x), "RFFT"),
    "until": (
        lambda x, v, W: looped(lambda h: (h * 2, until(h.sum() > 9)), outputs_info=v, n_steps=9),
        "Scan",
    ),
    "steps by a value": (
        lambda x, v, W: looped(
            lambda h: h * 2, outputs_info=v, n_steps=T.cast(v.sum(), "int64"), strict=True
        ),
        "",
    ),
    "check in a loop": (
        lambda x, v, W: looped(lambda row: Assert("small")(row, row.sum() < 9), sequences=x),
        "a check in a loop",
    ),
    "all_reduce": (lambda x, v, W: x - all_reduce(x.mean(), "avg"), "AllReduce"),
}


@by_name(REFUSED)
def test_what_jax_cannot_compute_is_an_error_with_operation_line_and_cure(name):
    x, v, _, W, values = variables("float64")
    graph, operation = REFUSED[name]
    output = graph(x, v, W)
    with pytest.raises(SpecError, match=f"JAX .*{operation}.*test_jax_translation.*NUMBA"):
        translated(list(values), [output])(*values.values())


def test_an_error_of_shapes_is_raised_as_it_is_with_the_line():
    x, v, _, _, values = variables("float64")
    f = translated([x, v], [x @ v])
    with pytest.raises((TypeError, ValueError)) as info:
        f(values[x], values[v])
    assert "test_jax_translation.py" in "".join(info.value.__notes__)
    np.testing.assert_allclose(f(values[x], values[v][:4])[0], values[x] @ values[v][:4])


def test_checks_raise_their_own_errors_and_nothing_is_updated():
    x, *_ = variables("float64")
    total = engine.shared(0.0)
    checked = Assert("too large")(x, T.lt(x.max(), 5), T.eq(x.shape[0], 6))
    f = translated([x], [checked.sum()], updates=[(total, total + checked.sum())])
    assert f(ROWS) == pytest.approx(ROWS.sum())
    for rows in (10 + ROWS, ROWS[:5]):
        with pytest.raises(AssertionError, match=r"too large .*test_jax_translation.py"):
            f(rows)
    assert total.get_value() == pytest.approx(ROWS.sum())


def test_slices_are_those_of_python_and_compiled_for_each_length_only():
    start, stop = T.lscalar("start"), T.iscalar("stop")
    S = engine.shared(ROWS)
    f = translated([start, stop], [S[start:stop]])
    translation, lengths = f.vm.translation, set()
    traces, inner = [], translation._function
    translation._function = lambda *values: (traces.append(1), inner(*values))[1]
    for a, b in product([-9, -6, -2, 0, 1, 5, 6, 9], [-7, -1, 0, 2, 4, 6, 8]):
        np.testing.assert_array_equal(f(a, b)[0], ROWS[a:b])
        lengths.add(len(ROWS[a:b]))
    assert len(traces) == len(lengths) + 1  # the first did not know that there is one


def test_integers_that_are_no_lengths_are_not_compiled_for():
    x, *_ = variables("float64")
    f = translated([x, n], [x[n] * n])
    for number in range(5):
        np.testing.assert_allclose(f(ROWS, number)[0], ROWS[number] * number)
    assert f.vm.translation.lengths([ROWS, np.int64(1)]) == ()
    shared = engine.shared(np.int64(2))
    g = translated([x], [x[:shared]], updates=[(shared, shared + 1)])
    assert [len(g(ROWS)[0]) for _ in range(3)] == [2, 3, 4]


# ---- random numbers --------------------------------------------------------------------------


def drawing(rng, *shape, times=1):
    draws = []
    state = rng
    for _ in range(times):
        state, draw = state.normal(size=shape)
        draws.append(draw)
    return state, draws


def test_draws_follow_from_the_state_which_moves_on():
    rng, twin = (T.random.shared_rng(seed=3) for _ in range(2))
    kept = rng.get_value(borrow=True)
    before = repr(kept.bit_generator.state)
    state, draws = drawing(rng, 500, times=2)
    f = translated([], draws, updates=[(rng, state)])
    g = translated([], drawing(rng, 500)[1])  # of the same state, without an update
    numbers = [*f(), *f(), *g()]
    np.testing.assert_array_equal(g()[0], numbers[-1])
    assert len(np.unique(numbers)) == 2500
    np.testing.assert_allclose([np.mean(numbers), np.std(numbers)], [0, 1], atol=0.1)
    assert repr(kept.bit_generator.state) == before  # so that it can be restored
    assert repr(rng.get_value().bit_generator.state) != before
    state, draws = drawing(twin, 500, times=2)
    again = translated([], draws, updates=[(twin, state)])
    np.testing.assert_array_equal([*again(), *again()], numbers[:4])
    rng.set_value(kept)
    np.testing.assert_array_equal(f(), numbers[:2])


@pytest.mark.nightly
def test_draws_in_loops_and_sizes_of_all_kinds():
    x, v, *_, values = variables("float64")
    rng, other = T.random.shared_rng(seed=3), T.random.shared_rng(seed=4)

    def step(row, state):
        state, draw = state.uniform(0, 1, size=row.shape)
        return draw, state

    draws, state = scan(step, sequences=x, outputs_info=[None, rng], return_updates=False)
    later, integers = other.integers(0, 10, size=(n, 1000))
    later, choice = later.permutation(v)
    f = translated([x, v, n], [draws, integers, choice], updates=[(rng, state), (other, later)])
    first, second = (f(values[x], values[v], 3) for _ in range(2))
    assert len(np.unique([first[0], second[0]])) == 48
    assert first[1].shape == (3, 1000)
    assert first[1].dtype == integers.dtype
    np.testing.assert_array_equal(np.unique(first[1]), range(10))
    np.testing.assert_array_equal(np.sort(first[2]), np.sort(values[v]))


def test_new_states_that_would_draw_the_same_are_refused():
    rng, other = T.random.shared_rng(seed=3), T.random.shared_rng(seed=4)
    one, two = (drawing(rng, 5, times=times) for times in (1, 2))
    with pytest.raises(SpecError, match="only one from each"):
        translated([], [*one[1], *two[1]], updates=[(rng, one[0]), (other, two[0])])


# ---- on ranks --------------------------------------------------------------------------------


@pytest.mark.nightly
def test_each_rank_draws_its_own_numbers_reproducibly(pair):
    x = T.vector("x")

    def numbers(runtime):
        rng = T.random.shared_rng(seed=7)
        state, draw = rng.uniform(size=x.shape)
        outputs = draw + 0 * x, "gather"
        f = runtime.function([x], outputs, updates=[(rng, state)], mode="JAX")
        return [f(np.zeros(20)) for _ in range(2)]

    first = numbers(pair)
    np.testing.assert_array_equal(numbers(pair), first)
    assert len(np.unique(first)) == 40
    with Runtime(2, random_streams="identical") as runtime:
        for draws in numbers(runtime):
            np.testing.assert_array_equal(draws[:10], draws[10:])


def test_ranks_compute_what_one_process_does(pair):
    x, _, S, W, values = variables("float64")
    states = looped(
        lambda column, h: T.tanh(column[:, None] + h @ W),
        sequences=x.T,
        outputs_info=T.zeros((x.shape[0], 4)),
    )
    loss = T.sqr(states[-1]).sum()
    outputs = [T.grad(loss, W), x * 2]
    f = pair.function([x], list(zip(outputs, ["sum", "gather"])), mode="JAX")
    expected = plain([x], outputs)(values[x])
    for results in (f(values[x]), f(values[x], num_slices=2)):
        for ours, one in zip(results, expected):
            assert ours.flags.writeable
            np.testing.assert_allclose(ours, one, rtol=1e-12)
    g = pair.function([], (S.mean(axis=0), "avg"), sliceable_shareds=[S], mode="JAX")
    for rows in (slice(1, 5), slice(2, 6), [0, 3, 1], slice(None)):
        result = g() if rows == slice(None) else g(batch_s=rows)
        np.testing.assert_allclose(result, S.get_value()[rows].mean(axis=0), rtol=1e-12)


def test_an_error_while_jax_compiles_undoes_the_call(pair):
    x, *_ = variables("float64")
    total = engine.shared(np.zeros(4), name="total")
    f = pair.function(
        [x],
        (x.sum(), "sum"),
        updates=[(total, total + x.sum(axis=0) + x[:, 0][:4])],
        mode="JAX",
        proof=False,
    )
    with pytest.raises((TypeError, ValueError), match=r"(?s)shape.*"):
        f(ROWS)  # 3 rows for each rank
    np.testing.assert_array_equal(total.get_value(), np.zeros(4))
    f(np.vstack([ROWS, ROWS]))
    expected = ROWS.sum(axis=0) + ROWS[:4, 0]  # of the master's rows
    np.testing.assert_allclose(total.get_value(), expected)
