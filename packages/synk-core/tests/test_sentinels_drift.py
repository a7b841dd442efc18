"""Replicas that part are named: variable, ranks, call, and what wrote it last."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest

from synk_core import ReplicasDiffer, ReplicaWarning
from synk_testing.engine import T, engine

x = T.dvector("x")

FAST = {"mode": "FAST_COMPILE"}


@pytest.fixture
def trained(trio):
    """A function that adds to `w` what is the same on all ranks, and `w`, `v`."""
    w = engine.shared(np.zeros((3, 2)), name="w")
    v = engine.shared(np.ones(4, "float32"), name="v")
    amount = T.dscalar("amount")
    f = trio.function(
        [], w.sum(), bcast_inputs=[amount], updates=[(w, w + amount)], name="train", **FAST
    )
    f(0.0)
    return f, w, v


@pytest.mark.parametrize("name", ["w", "v"])
def test_one_ulp_on_one_rank_is_named(trio, trained, name):
    f, *variables = trained
    variable = next(each for each in variables if each.name == name)
    watch = trio.watch_replicas(variables, every=3)
    for _ in range(3):
        f(1.0)
    value = np.array(trio.collectives.get_value(2, variable))
    value.flat[1] = np.nextafter(value.flat[1], np.inf, dtype=value.dtype)
    trio.collectives.set_value(2, variable, value)
    f(0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(0.0)  # not yet
    with pytest.warns(ReplicaWarning, match=f"'{name}' is not the same on all ranks") as caught:
        f(0.0)
    text = str(caught[0].message)
    assert "ranks 0 and 1 have" in text
    assert "rank 2 has another" in text
    assert "after call 6" in text
    assert "all ranks agreed after call 3" in text
    assert ("function 'train'" if name == "w" else "set_value() on rank 2") in text
    assert caught[0].filename == __file__
    with pytest.warns(ReplicaWarning):
        (found,) = watch.check()
    assert found.variable is variable
    assert found.groups == ((0, 1), (2,))
    assert (found.calls, found.equal_at) == (6, 3)
    watch.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            f(0.0)


def test_raise(pair):
    w = engine.shared(np.zeros(2), name="w")
    f = pair.function([x], (x.sum(), "sum"), updates=[(w, w + x.mean())], name="apart", **FAST)
    with pair.watch_replicas(w, every=2, action="raise") as watch:
        f(np.ones(4))
        before = f.rows
        with pytest.raises(ReplicasDiffer, match=r"'w' is not the same.*function 'apart'"):
            f(np.arange(6.0))
        assert before != f.rows == (3, 3)  # the call itself is done
        assert watch.calls == 2
        np.testing.assert_array_equal(pair.collectives.gather(w), [[2, 2], [5, 5]])
        with pytest.raises(ReplicasDiffer):
            watch.check()
    assert f(np.arange(6.0)) == 15.0
    # Nobody is kept from using what differs: it is the program's, not a failure's.
    error = ReplicasDiffer("text", (1,))
    assert pickle.loads(pickle.dumps(error)).differences == (1,)
