"""Replicas that part are named: variable, ranks, call, and what wrote it last."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest

from synk_core import (
    Closed,
    InputTypeError,
    InputValueError,
    NotSharedVariable,
    ReplicasDiffer,
    ReplicaWarning,
    Runtime,
)
from synk_testing.engine import STREAMS, T, engine

x = T.dvector("x")

FAST = {"mode": "FAST_COMPILE"}


@pytest.fixture
def trained(runtime):
    """A function that adds to `w` what is the same on all ranks, and `w`, `v`."""
    w = engine.shared(np.zeros((3, 2)), name="w")
    v = engine.shared(np.ones(4, "float32"), name="v")
    amount = T.dscalar("amount")
    f = runtime.function(
        [], w.sum(), bcast_inputs=[amount], updates=[(w, w + amount)], name="train", **FAST
    )
    f(0.0)
    return f, w, v


def perturb(runtime, variable, rank):
    """One rank's value by one unit in the last place of one element."""
    value = np.array(runtime.collectives.get_value(rank, variable))
    value.flat[1] = np.nextafter(value.flat[1], np.inf, dtype=value.dtype)
    runtime.collectives.set_value(rank, variable, value)


def values_of(runtime, variable):
    return [runtime.collectives.get_value(rank, variable) for rank in range(runtime.size)]


@pytest.mark.parametrize("name", ["w", "v"])
def test_one_ulp_on_one_rank_is_named(runtime, trained, name):
    f, *variables = trained
    variable = next(each for each in variables if each.name == name)
    watch = runtime.watch_replicas(variables, every=3)
    for _ in range(3):
        f(1.0)
    odd = runtime.size - 1
    perturb(runtime, variable, odd)
    f(0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(0.0)  # not yet
    if runtime.size == 1:
        f(0.0)
        assert watch.check() == []
        watch.stop()
        return
    with pytest.warns(ReplicaWarning, match=f"'{name}' is not the same on all ranks") as caught:
        f(0.0)
    text = str(caught[0].message)
    others = tuple(range(odd))
    listed = "rank 0 has" if odd == 1 else f"ranks {', '.join(map(str, others[:-1]))} and "
    assert listed in text
    assert f"rank {odd} has another" in text
    assert "after call 6" in text
    assert "all ranks agreed after call 3" in text
    assert ("function 'train'" if name == "w" else f"set_value() on rank {odd}") in text
    assert caught[0].filename == __file__
    with pytest.warns(ReplicaWarning):
        (found,) = watch.check()
    assert found.variable is variable
    assert found.groups == (others, (odd,))
    assert (found.calls, found.equal_at) == (6, 3)
    watch.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            f(0.0)
    runtime.collectives.broadcast(variables)


def test_groups_of_ranks_and_collectives(runtime, trained):
    if runtime.size < 3:
        pytest.skip("needs three ranks")
    _, w, v = trained
    last = runtime.size - 1
    runtime.collectives.set_value(1, w, np.full((3, 2), 7.0))
    runtime.collectives.set_value(last, w, np.full((3, 2), 7.0))
    runtime.collectives.reduce(v, "sum")
    with runtime.watch_replicas([v, w], action="raise") as watch:
        with pytest.raises(ReplicasDiffer) as caught:
            watch.check()
        of_v, of_w = caught.value.differences
        assert of_w.groups == ((0, *range(2, last)), (1, last))
        assert of_v.groups == ((0,), tuple(range(1, runtime.size)))
        assert of_v.written == "reduce()"
        assert of_w.written == f"set_value() on rank {last}"
        runtime.collectives.broadcast([v, w])
        assert watch.check() == []


def test_raise(pair):
    w = engine.shared(np.zeros(2), name="w")
    f = pair.function([x], (x.sum(), "sum"), updates=[(w, w + x.mean())], name="apart", **FAST)
    with pair.watch_replicas(w, every=2, action="raise") as watch:
        f(np.ones(4))
        before = f.rows
        with pytest.raises(
            ReplicasDiffer, match=r"'w' is not the same.*function 'apart'"
        ) as caught:
            f(np.arange(6.0))
        assert before != f.rows == (3, 3)  # the call itself is done
        assert watch.calls == 2
        np.testing.assert_array_equal(values_of(pair, w), [[2, 2], [5, 5]])
        (difference,) = caught.value.differences
        assert difference.groups == ((0,), (1,))
        with pytest.raises(ReplicasDiffer):
            watch.check()
    assert f(np.arange(6.0)) == 15.0
    # Nobody is kept from using what differs: it is the program's, not a failure's.
    error = ReplicasDiffer("text", (1,))
    assert pickle.loads(pickle.dumps(error)).differences == (1,)


def test_bad_arguments(pair):
    w = engine.shared(np.zeros(2), name="w")
    stream = STREAMS["numpy"](3)
    stream.normal(size=(2,))
    state = stream.state_updates[0][0]
    for error, words, variables, options in (
        *((InputValueError, "every", w, {"every": n}) for n in (0, -1, 1.5, True, "often", None)),
        *(
            (InputValueError, "action", w, {"action": action})
            for action in ("explode", None, 3, np.array(["warn", "raise"]))
        ),
        (NotSharedVariable, "", [w, T.dvector()], {}),
        (InputValueError, "", [], {}),
        (InputValueError, "twice", [w, w], {}),
        (InputValueError, "row_share", [w, pair.row_share()], {}),
        (InputTypeError, "", state, {}),
    ):
        with pytest.raises(error, match=words):
            pair.watch_replicas(variables, **options)


def test_it_ends_with_the_runtime():
    w = engine.shared(np.zeros(2), name="w")
    with Runtime(2, use_gpu=False) as runtime:
        watch = runtime.watch_replicas(w)
        assert watch.check() == []
        assert "get_digests" not in str(runtime.stats())
        assert runtime.stats()["watch_replicas()"].calls == 1
        assert repr(watch) == "<ReplicaWatch of 1 variables, every 100 calls>"
    watch.stop()
    with pytest.raises(Closed):
        watch.check()
    with pytest.raises(Closed):
        runtime.watch_replicas(w)
    assert repr(watch) == "<ReplicaWatch of 1 variables, stopped>"
