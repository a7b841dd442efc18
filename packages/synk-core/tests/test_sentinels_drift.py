"""Replicas that part are named: variable, ranks, call, and what wrote it last."""

from __future__ import annotations

import gc
import pickle
import warnings
from contextlib import nullcontext

import numpy as np
import pytest

from synk_core import (
    Closed,
    InputTypeError,
    InputValueError,
    NestedCall,
    NotSharedVariable,
    ReplicasDiffer,
    ReplicaWarning,
    Runtime,
    WorkerFailed,
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


def test_equal_replicas_are_never_reported(runtime, trained):
    f, w, v = trained
    with warnings.catch_warnings(), runtime.watch_replicas([w, v], every=2) as watch:
        warnings.simplefilter("error")
        for _ in range(7):
            f(0.5)
        assert watch.calls == 7
        assert watch.check() == []
    assert not watch.watching


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


def test_a_function_that_is_gone_is_named_too(pair):
    """The program has let go of it after its last call."""
    w = engine.shared(np.zeros(2), name="w")
    f = pair.function([x], updates=[(w, w + x.sum())], name="warm-up", **FAST)
    g = pair.function([x], (x.sum(), "sum"), **FAST)
    f(np.arange(2.0))
    del f
    gc.collect()
    g(np.ones(2))
    watch = pair.watch_replicas(w)
    with pytest.warns(ReplicaWarning):
        (difference,) = watch.check()
    assert difference.written == "function 'warm-up'"
    watch.stop()


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


def test_broadcast(runtime, trained):
    f, w, v = trained
    odd = runtime.size - 1
    with runtime.watch_replicas([w, v], action="broadcast") as watch:
        perturb(runtime, v, odd)
        masters = v.get_value()
        if runtime.size == 1:
            assert watch.check() == []
            return
        with pytest.warns(ReplicaWarning, match="have been given the master's values"):
            (found,) = watch.check()
        assert found.variable is v
        assert watch.check() == []
        for value in values_of(runtime, v):
            np.testing.assert_array_equal(value, masters)
        f(1.0)


def test_several_watches(pair):
    w, v = (engine.shared(np.ones(2), name=name) for name in "wv")
    f = pair.function([], w.sum(), updates=[(w, w * 2), (v, v * 2)], name="double", **FAST)
    f()
    often = pair.watch_replicas(w, every=1)
    seldom = pair.watch_replicas([v], every=3, action="raise")
    perturb(pair, w, 1)
    perturb(pair, v, 1)
    for call in (1, 2, 3):
        expected = pytest.raises(ReplicasDiffer, match="'v'") if call == 3 else nullcontext()
        with (
            pytest.warns(ReplicaWarning, match=f"'w' is not the same.*after call {call}"),
            expected,
        ):
            f()
    often.stop()
    often.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f()
    seldom.stop()


def test_what_counts_as_a_call(pair):
    w = engine.shared(np.zeros(2), name="w")
    f = pair.function([x], (x.sum(), "sum"), updates=[(w, w + 1)], name="counted", **FAST)
    rows = np.ones(4)
    with pair.watch_replicas(w, every=1000) as watch:
        f(rows)
        pair.step(f.delayed(rows), pair.delayed.all_reduce(w), f.delayed(rows))
        assert watch.calls == 2
        pair.collectives.all_reduce(w)
        pair.step(pair.delayed.broadcast(w))
        assert watch.calls == 2
        f.verify(rows)
        pair.lint()
        assert watch.calls == 2
        with pytest.raises(InputTypeError):
            f("no rows")
        assert watch.calls == 2


def test_verify_and_lint_are_not_disturbed(pair):
    w = engine.shared(np.zeros(2), name="w")
    f = pair.function([x], (x.sum(), "sum"), updates=[(w, w + x.mean())], name="loud", **FAST)
    f(np.ones(4))
    with pair.watch_replicas(w, every=1, action="raise"):
        assert f.verify(np.arange(4.0)).ok
        findings = [str(finding) for finding in pair.lint()]
    assert [str(finding) for finding in pair.lint()] == findings


def test_a_failed_call_does_not_count(pair):
    w = engine.shared(np.zeros(2), name="w")
    f = pair.function(
        [x], T.stack([w, 2 * w])[T.cast(x.max(), "int64")].sum(), name="range", **FAST
    )
    with pair.watch_replicas(w, every=1) as watch:
        f(np.zeros(4))
        with pytest.raises(WorkerFailed):
            f(np.array([0.0, 0, 0, 9]))
        assert watch.calls == 1
        assert watch.check() == []


def test_arrays_of_all_kinds(pair):
    values = [
        np.asarray(3.5),
        np.zeros((0, 4)),
        np.arange(3, dtype="int8"),
        np.array([True, False]),
        np.arange(4, dtype="float16"),
        np.arange(6, dtype="complex128").reshape(2, 3),
        np.asfortranarray(np.random.default_rng(0).standard_normal((70, 900))),
        np.random.default_rng(1).standard_normal(70_001),
    ]
    variables = [engine.shared(value, name=f"v{i}") for i, value in enumerate(values)]
    with pair.watch_replicas(variables, action="raise") as watch:
        assert watch.check() == []
        # In another order of memory they are the same.
        pair.collectives.set_value(1, variables[6], np.ascontiguousarray(values[6]))
        assert watch.check() == []
        for variable, value in zip(variables, values):
            if not value.size:
                continue
            other = value.copy()
            other.flat[-1] = 0 if other.flat[-1] else 1
            pair.collectives.set_value(1, variable, other)
            with pytest.raises(ReplicasDiffer) as caught:
                watch.check()
            assert [d.variable for d in caught.value.differences] == [variable]
            pair.collectives.broadcast(variable)
        pair.collectives.set_value(1, variables[1], np.zeros((1, 4)))
        with pytest.raises(ReplicasDiffer, match="'v1'"):
            watch.check()
        pair.collectives.set_value(1, variables[1], values[1])
        negative = engine.shared(np.zeros(3), name="negative zeros")
        pair.collectives.set_value(1, negative, -np.zeros(3))
    with pair.watch_replicas(negative, action="raise") as watch, pytest.raises(ReplicasDiffer):
        watch.check()


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


def test_not_from_inside_of_a_call(pair):
    watch = pair.watch_replicas(engine.shared(np.zeros(2), name="w"))
    with pair._controller.lock, pytest.raises(NestedCall):
        watch.check()
    assert watch.check() == []
    watch.stop()


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
