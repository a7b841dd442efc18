"""Reductions, gathers and weights against NumPy, on generated cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from synk_comm import MismatchError, create_group, join, local_group
from synk_comm._core.ops import ReduceOp, combine, scaled
from synk_comm.testing import in_threads

SIZE = 3
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
floats = {"allow_nan": False, "allow_infinity": False}
dtypes = st.sampled_from(["f2", "f4", "f8", "c8", "i1", "u4", "i8"])


@pytest.fixture(scope="module", params=["local", "shm"])
def comms(request):
    if request.param == "local":
        made = local_group(SIZE, timeout_s=20)
    else:
        with create_group(SIZE) as group:
            waiting = local_group(SIZE)
            made = in_threads(waiting, lambda seat: join(group.ticket(seat.rank), timeout_s=20))
    yield made
    for comm in made:
        comm.close()


@st.composite
def contributions(draw, dtype=None):
    """One array of common shape and dtype, or None, for each rank."""
    dtype = np.dtype(dtype or draw(dtypes))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    bound = 40  # three of them multiplied fit float16
    elements = {
        "f": st.floats(-bound, bound, width=16),
        "c": st.complex_numbers(max_magnitude=bound, width=64, **floats),
        "i": st.integers(-bound, bound),
        "u": st.integers(0, bound),
    }[dtype.kind]
    one = st.none() | hnp.arrays(dtype, shape, elements=elements)
    return [draw(one) for _ in range(SIZE)]


@quick
@given(contributions(), st.sampled_from(["sum", "prod", "min", "max"]))
def test_all_reduce_is_the_fold_in_rank_order(comms, parts, op):
    present = [part for part in parts if part is not None]
    call = [lambda comm: comm.all_reduce(parts[comm.rank], op)]
    if not present:
        with pytest.raises(MismatchError, match="no rank contributes"):
            in_threads(comms, call[0])
        return
    dtype = present[0].dtype
    wide = np.dtype("f4") if dtype == "f2" and op in ("sum", "prod") else dtype
    fold = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    with np.errstate(all="ignore"):
        expected = present[0].astype(wide)
        for part in present[1:]:
            expected = np.asarray(fold(expected, part.astype(wide)))
        expected = expected.astype(dtype)
    for got in in_threads(comms, call[0]):
        assert got.dtype == dtype
        assert got.shape == present[0].shape
        np.testing.assert_array_equal(got, expected)


@quick
@given(
    contributions("f8"),
    st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=SIZE, max_size=SIZE),
)
def test_weighted_average_is_numpys(comms, parts, weights):
    used = [rank for rank in range(SIZE) if parts[rank] is not None and weights[rank]]
    parts = [
        np.full_like(part, np.nan) if part is not None and not weights[rank] else part
        for rank, part in enumerate(parts)
    ]

    def run(comm):
        return comm.all_reduce(parts[comm.rank], "avg", weight=weights[comm.rank])

    if not used:
        with pytest.raises(MismatchError):
            in_threads(comms, run)
        return
    stack = np.stack([parts[rank] for rank in used])
    expected = np.average(stack, axis=0, weights=[weights[rank] for rank in used])
    results = in_threads(comms, run)
    for got in results:
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-10)
        assert got.tobytes() == results[0].tobytes()


@quick
@given(
    st.lists(
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6),
        min_size=SIZE,
        max_size=SIZE,
    ),
    st.sampled_from(["f4", "u1", "M8[s]", "S3", "c16"]),
    st.integers(0, SIZE - 1),
)
def test_gather_and_scatter_keep_every_shape(comms, shapes, dtype, root):
    rng = np.random.default_rng(0)
    parts = [
        np.frombuffer(rng.bytes(np.prod(shape) * np.dtype(dtype).itemsize), dtype).reshape(shape)
        if np.prod(shape)
        else np.empty(shape, dtype)
        for shape in shapes
    ]

    def run(comm):
        gathered = comm.gather(parts[comm.rank], root)
        return gathered, comm.scatter(parts if comm.rank == root else None, root)

    for rank, (gathered, dealt) in enumerate(in_threads(comms, run)):
        assert dealt.shape == parts[rank].shape
        assert dealt.tobytes() == parts[rank].tobytes()
        assert (gathered is None) == (rank != root)
        for got, expected in zip(gathered or [], parts):
            assert got.dtype == expected.dtype
            assert got.shape == expected.shape
            assert got.tobytes() == expected.tobytes()


@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=6))
def test_scaling_weights_changes_nothing_but_the_range(weights):
    small = scaled(weights)
    assert 0.5 <= max(small) < 1.0
    top = small[weights.index(max(weights))]
    for weight, less in zip(weights, small):
        assert less / top == pytest.approx(weight / max(weights), rel=1e-15)


def test_float16_is_rounded_once():
    ones = [np.array([2048.0], "f2")] + [np.array([1.0], "f2")] * 4
    out = np.empty(1, "f2")
    combine(ReduceOp.SUM, ones, out)
    assert out[0] == 2052.0  # adding in float16 would stay at 2048


def test_infinities_and_overflow_raise_no_warning():
    out = np.empty(1, "f4")
    with np.errstate(all="raise"):
        combine(ReduceOp.SUM, [np.array([np.inf], "f4"), np.array([-np.inf], "f4")], out)
        assert np.isnan(out[0])
        combine(ReduceOp.PROD, [np.array([3e38], "f4")] * 2, out)
        assert np.isinf(out[0])


@pytest.mark.parametrize("root", [1, np.int64(1), np.array(1), True])
def test_a_root_is_any_integer(comms, root):
    """Also when all ranks have made the call before, and take the shortcut."""
    for _ in range(3):
        results = in_threads(comms, lambda comm: comm.reduce(np.arange(3.0), "sum", root))
        assert [result is None for result in results] == [True, False, True]
        np.testing.assert_array_equal(results[1], SIZE * np.arange(3.0))


@pytest.mark.parametrize(
    ("root", "error"), [(1.0, TypeError), ([1], TypeError), (SIZE, ValueError), (-1, ValueError)]
)
def test_a_root_that_is_none_is_refused(comms, root, error):
    for _ in range(2):
        in_threads(comms, lambda comm: comm.reduce(np.arange(3.0), "sum", 1))

    def refused(comm):
        with pytest.raises(error):
            comm.reduce(np.arange(3.0), "sum", root)

    in_threads(comms, refused)
    assert in_threads(comms, lambda comm: comm.reduce(np.ones(2), "sum", 1))[1].tolist() == [3, 3]


@pytest.mark.parametrize("shape", [(), (3,)])
def test_the_shortcut_names_where_results_go(monkeypatch, shape):
    """NumPy 2.5 deprecates that by position for np.minimum and np.maximum."""

    def strict(first, second, **keywords):
        return np.maximum(first, second, **keywords)

    monkeypatch.setattr("synk_comm._core.repeats.ufunc_of", lambda op: strict)
    with create_group(2, "shm") as group:
        waiting = local_group(2)
        pair = in_threads(waiting, lambda seat: join(group.ticket(seat.rank), timeout_s=20))

    def reduce(comm):
        with comm:
            x, out = np.full(shape, float(comm.rank)), np.empty(shape)
            for _ in range(3):  # from the second on by the shortcut
                comm.all_reduce(x, "max", out=out)
            return out.tolist(), comm.all_reduce(x, "max").tolist()

    expected = np.ones(shape).tolist()
    assert in_threads(pair, reduce) == [(expected, expected)] * 2
