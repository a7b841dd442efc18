"""Reductions, gathers and weights against NumPy, on generated cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synk_comm._core.ops import UFUNC, ReduceOp, combine, scaled
from synk_comm.testing import in_threads, thread_group

SIZE = 3


@pytest.fixture(scope="module")
def comms():
    made = thread_group(SIZE, timeout_s=20)
    yield made
    for comm in made:
        comm.close()


@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=6))
def test_scaling_weights_changes_nothing_but_the_range(weights):
    small = scaled(weights)
    assert 0.5 <= max(small) < 1.0
    top = small[weights.index(max(weights))]
    for weight, less in zip(weights, small):
        assert less / top == pytest.approx(weight / max(weights), rel=1e-15)


def test_infinities_and_overflow_raise_no_warning():
    out = np.empty(1, "f4")
    with np.errstate(all="raise"):
        combine(ReduceOp.SUM, [np.array([np.inf], "f4"), np.array([-np.inf], "f4")], out)
        assert np.isnan(out[0])
        combine(ReduceOp.PROD, [np.array([3e38], "f4")] * 2, out)
        assert np.isinf(out[0])


@pytest.mark.parametrize("root", [1, np.int64(1), np.array(1), True])
def test_a_root_is_any_integer(comms, root):
    for _ in range(3):
        results = in_threads(comms, lambda comm: comm.reduce(np.arange(3.0), "sum", root))
        assert [result is None for result in results] == [True, False, True]
        np.testing.assert_array_equal(results[1], SIZE * np.arange(3.0))


@pytest.mark.parametrize("shape", [(), (3,)])
def test_the_shortcut_names_where_results_go(monkeypatch, shape):
    """NumPy 2.5 deprecates that by position for np.minimum and np.maximum."""

    def strict(first, second, **keywords):
        return np.maximum(first, second, **keywords)

    monkeypatch.setitem(UFUNC, ReduceOp.MAX, strict)
    pair = thread_group(2)

    def reduce(comm):
        with comm:
            x, out = np.full(shape, float(comm.rank)), np.empty(shape)
            for _ in range(3):  # from the second on by the shortcut
                comm.all_reduce(x, "max", out=out)
            return out.tolist(), comm.all_reduce(x, "max").tolist()

    expected = np.ones(shape).tolist()
    assert in_threads(pair, reduce) == [(expected, expected)] * 2
