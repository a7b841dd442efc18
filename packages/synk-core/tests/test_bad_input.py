"""Wrong use of functions: a clear error before anything is sent, and the runtime stays usable."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from synk_core import Runtime
from synk_core.exceptions import (
    BatchError,
    Closed,
    InputValueError,
    SpecError,
    SynkError,
)
from synk_testing.engine import NAME, T, engine


def test_sparse_inputs_are_refused_with_a_sentence(pair):
    sparse = importlib.import_module(f"{NAME}.sparse")
    x, m = T.vector("x"), sparse.csr_matrix("m")
    total = sparse.sp_sum(m)
    for inputs, whole in (([m], []), ([x], [m])):
        with pytest.raises(SpecError, match="expected a tensor, whose rows"):
            pair.function(inputs, (total, "sum"), bcast_inputs=whole, on_unused_input="ignore")


def test_variables_that_are_no_inputs_are_named(pair):
    x, y, z, v = T.vectors("x", "y", "z", "v")
    w = engine.shared(np.zeros(3), "w")
    before = len(pair._rank.functions)
    with pytest.raises(SpecError, match=r"function 'f' needs values of y, .*bcast_inputs="):
        pair.function([x], (x * y).sum(), name="f")
    with pytest.raises(SpecError, match=r"needs values of (y, z|z, y), expected"):
        pair.function([x], (v * w).sum(), updates=[(w, w + y)], givens=[(v, x * z)])
    assert len(pair._rank.functions) == before
    given = pair.function([x], (x + y).sum(), givens=[(y, x * 2)])
    assert given(np.ones(4)) == 6.0


def test_wrong_batch_s_is_refused_on_all_ranks_before_any_computes(pair):
    s = engine.shared(np.zeros(1), name="s")
    n = engine.shared(np.zeros(()), name="n")
    g = pair.function([], (s.sum(), "sum"), updates=[(n, n + 1)], sliceable_shareds=[s])
    pair.collectives.scatter(s, np.arange(5.0))
    with pytest.raises(SynkError, match="batch_s on rank 1") as caught:
        g(batch_s=slice(0, 3))
    assert isinstance(caught.value.__cause__, BatchError)
    with pytest.raises(BatchError, match="batch_s on rank 0"):
        g(batch_s=[[7], [0]])
    with pytest.raises(InputValueError, match="one for each of 2 ranks"):
        g(batch_s=[[0], [0], [0]])
    assert pair.collectives.gather(n).tolist() == [0.0, 0.0]


def test_a_closed_runtime_says_so():
    x = T.vector("x")
    runtime = Runtime(2)
    g = runtime.function([x], x.sum())
    data = runtime.data(np.ones(4))
    runtime.close()
    runtime.close()
    assert runtime.closed
    for act in (
        *(lambda how=how: g(data, **how) for how in ({}, {"num_slices": 2}, {"batch": [0]})),
        lambda: runtime.function([x], x.sum()),
        lambda: runtime.data(1.0),
        runtime.distribute,
        lambda: runtime.collectives.broadcast(engine.shared(1.0)),
    ):
        with pytest.raises(Closed, match=r"closed \(by close\(\)\); call fork\(\)"):
            act()
    np.testing.assert_array_equal(data.data, np.ones(4))
