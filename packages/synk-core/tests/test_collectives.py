"""Collectives on shared variables against NumPy, on 1 to 4 ranks."""

from __future__ import annotations

import numpy as np
import pytest

import synk_comm
from synk_core._plan.collectives import COLLECTIVES
from synk_core._rank.collectives import PERFORMERS
from synk_core.exceptions import (
    BatchError,
    InputTypeError,
    InputValueError,
    NotSharedVariable,
    OpError,
    SpecError,
)
from synk_testing.engine import NAME, STREAMS, engine

REDUCERS = {"avg": np.mean, "sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def spread(runtime, dtype="float64", shape=(3, 2)):
    values = [
        np.random.RandomState(rank).uniform(-3, 3, shape).astype(dtype)
        for rank in range(runtime.size)
    ]
    variable = engine.shared(np.zeros(shape, dtype), name="v")
    for rank, value in enumerate(values):
        runtime.collectives.set_value(rank, variable, value)
    return variable, values


def on_all_ranks(runtime, variable):
    return [runtime.collectives.get_value(rank, variable) for rank in range(runtime.size)]


@pytest.mark.parametrize("kind", [k for k in COLLECTIVES if COLLECTIVES[k].on_devices])
def test_values_on_another_device_of_the_master_go_through_host_memory(trio, monkeypatch, kind):
    """In workers, the context's name may mean the default device."""
    performed, perform = [], PERFORMERS[kind]

    def noted(*given, **named):
        performed.append(named.get("through_host", False))
        return perform(*given, **named)

    monkeypatch.setitem(PERFORMERS, kind, noted)
    elsewhere, here = (engine.shared(np.ones(3), name=name) for name in ("elsewhere", "here"))
    storage = elsewhere.container.storage
    monkeypatch.setattr("synk_core._api.collectives.is_elsewhere", lambda v: v is storage[0])
    for variables in (here, elsewhere, [here, elsewhere]):
        getattr(trio.collectives, kind)(variables)
    assert performed == [False, True, True]


def test_reductions(runtime):
    for op in sorted(REDUCERS):
        for dtype, shape in (("float32", (3, 2)), ("float64", ()), ("float64", (2, 3, 1, 2))):
            variable, values = spread(runtime, dtype, shape)
            expected = REDUCERS[op](np.array(values, float), axis=0)
            result = runtime.collectives.reduce(variable, op=op, in_place=False)
            np.testing.assert_allclose(result, expected, rtol=1e-6)
            assert result.dtype == dtype
            for value, kept in zip(values, on_all_ranks(runtime, variable)):
                np.testing.assert_array_equal(kept, value)
            assert runtime.collectives.reduce(variable, op="c_" + op) is None
            np.testing.assert_allclose(variable.get_value(), expected, rtol=1e-6)

            variable, values = spread(runtime, dtype, shape)
            runtime.collectives.all_reduce(variable, op=op)
            first, *others = on_all_ranks(runtime, variable)
            np.testing.assert_allclose(first, expected, rtol=1e-6)
            for other in others:
                np.testing.assert_array_equal(other, first)


def test_weighted_averages_leave_out_ranks_of_weight_zero(runtime):
    variable, values = spread(runtime)
    weights = [float(rank + 1) for rank in range(runtime.size)]
    if runtime.size > 1:
        weights[0] = 0.0
        runtime.collectives.set_value(0, variable, np.full((3, 2), np.nan))
    expected = np.average(values, axis=0, weights=weights)
    runtime.collectives.all_reduce(variable, weights=weights)
    for result in on_all_ranks(runtime, variable):
        np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_gather_stacks_or_concatenates_also_ragged_values(runtime):
    variable, values = spread(runtime)
    np.testing.assert_array_equal(runtime.collectives.gather(variable), np.stack(values))
    np.testing.assert_array_equal(
        runtime.collectives.gather(variable, nd_up=0), np.concatenate(values)
    )
    ragged = [np.arange(float(rank + 1)) for rank in range(runtime.size)]
    vector = engine.shared(np.zeros(1), name="ragged")
    for rank, value in enumerate(ragged):
        runtime.collectives.set_value(rank, vector, value)
    expected = np.concatenate(ragged)
    np.testing.assert_array_equal(runtime.collectives.gather(vector, nd_up=0), expected)
    assert runtime.collectives.get_lengths(vector) == tuple(range(1, runtime.size + 1))
    assert runtime.collectives.get_shapes([vector]) == (
        tuple((n,) for n in range(1, runtime.size + 1)),
    )
    if runtime.size > 1:
        with pytest.raises(InputValueError, match=r"0: \(1,\), 1: \(2,\)"):
            runtime.collectives.gather(vector)
        for reduce in (runtime.collectives.all_reduce, runtime.collectives.reduce):
            with pytest.raises(InputValueError, match="do not fit together") as caught:
                reduce(vector, op="sum")
            assert isinstance(caught.value.__cause__, synk_comm.MismatchError)
            assert all(f"({rank + 1},)" in str(caught.value) for rank in range(runtime.size))
        np.testing.assert_array_equal(runtime.collectives.gather(vector, nd_up=0), expected)
    runtime.collectives.all_gather(vector)
    for result in on_all_ranks(runtime, vector):
        np.testing.assert_array_equal(result, expected)


def test_scatter_takes_values_of_different_lengths_at_once(runtime):
    variables = [engine.shared(np.zeros((1, 2)), "a"), engine.shared(np.zeros(1), "b")]
    values = [np.arange(18.0).reshape(9, 2), np.arange(4.0)]
    collectives = runtime.collectives
    for given in (values, [runtime.data(value) for value in values]):
        collectives.broadcast(variables, [np.zeros((1, 2)), np.zeros(1)])
        collectives.scatter(variables, given)
        if given is not values:
            given[0][:] = -1  # what was received is private
        for variable, value in zip(variables, values):
            parts = np.array_split(value, runtime.size)
            assert collectives.get_lengths(variable) == tuple(map(len, parts))
            np.testing.assert_array_equal(collectives.gather(variable, nd_up=0), value)
    values[0], values[1] = np.arange(18.0).reshape(9, 2), np.arange(4.0)
    for batch in ([3, 0, 0, 2], slice(3, 0, -2), slice(2)):
        collectives.scatter(variables, values, batch=batch.stop if batch == slice(2) else batch)
        for variable, value in zip(variables, values):
            np.testing.assert_array_equal(collectives.gather(variable, nd_up=0), value[batch])
    with pytest.raises(BatchError):
        collectives.scatter(variables, values, batch=[8])


def test_broadcast_gives_all_ranks_the_masters_value(pair):
    variable, _ = spread(pair)
    other = engine.shared(np.zeros(2, "float32"), name="other")
    variable.set_value(np.arange(8.0).reshape(4, 2))
    pair.collectives.broadcast([variable, other])
    for result in on_all_ranks(pair, variable):
        np.testing.assert_array_equal(result, np.arange(8.0).reshape(4, 2))
    data = pair.data(np.float32([3, 4, 5]))
    pair.collectives.broadcast([variable, other], [np.ones((1, 2)), data])
    data[:] = -1  # what was received is private
    for held in on_all_ranks(pair, [variable, other]):
        for got, value in zip(held, [np.ones((1, 2)), np.float32([3, 4, 5])]):
            np.testing.assert_array_equal(got, value)


def test_bad_arguments_are_refused_before_anything_is_sent(pair):
    variable = engine.shared(np.zeros((2, 2)), name="v")
    scalar = engine.shared(np.zeros(()), name="scalar")
    counts = engine.shared(np.zeros(2, "int64"), name="counts")
    both, value = pair.collectives, np.zeros((2, 2))
    no_array = type("NoArray", (), {"__array__": lambda *_, **__: None})()
    for error, words, act, arguments, options in (
        (NotSharedVariable, rf"{NAME}\.shared", both.all_reduce, (value,), {}),
        (OpError, "'mean'", both.reduce, (variable,), {"op": "mean"}),
        (OpError, "gather", both.all_reduce, (variable,), {"op": "gather"}),
        (SpecError, "an average of integers", both.all_reduce, (counts,), {}),
        (InputValueError, "rank", both.get_value, (2, variable), {}),
        (InputValueError, "nd_up", both.gather, (variable,), {"nd_up": 2}),
        (InputTypeError, "scalar", both.all_gather, (scalar,), {}),
        (InputTypeError, "one for each", both.broadcast, ([variable, scalar], [value]), {}),
        (InputTypeError, "expected 2", both.scatter, (variable, np.zeros(3)), {}),
        (InputTypeError, "expected 2", both.set_value, (1, variable, np.zeros(3)), {}),
        (InputTypeError, "float32", both.scatter, (variable, pair.data(np.float32(value))), {}),
        (BatchError, "only 2 rows", both.scatter, (variable, value), {"batch": [0, 2]}),
        (InputValueError, "NumPy says", both.scatter, (variable, value), {"batch": no_array}),
        (BatchError, "only 2 rows", both.set_value, (1, variable, value), {"batch": [0, 2]}),
        (InputValueError, "weights", both.all_reduce, (variable,), {"weights": [1.0]}),
        (InputTypeError, "one number for", both.all_reduce, (variable,), {"weights": [1, "b"]}),
        (InputValueError, "at least one", both.broadcast, ([],), {}),
        (InputValueError, "twice", both.all_reduce, ([variable, variable],), {}),
    ):
        with pytest.raises(error, match=words):
            act(*arguments, **options)
    assert both.gather(scalar).tolist() == [0.0, 0.0]


def test_variables_that_were_made_from_one_array_are_two_in_the_workers(pair):
    array = np.zeros(3)
    one, other = (engine.shared(array, name=name, borrow=True) for name in ("one", "other"))
    pair.collectives.get_shapes([one, other])
    one.set_value(np.ones(3))
    pair.collectives.broadcast(one)
    assert on_all_ranks(pair, other)[1].tolist() == [0, 0, 0]
    assert on_all_ranks(pair, one)[1].tolist() == [1, 1, 1]


def test_variables_without_arrays_or_of_fixed_length_are_refused(pair):
    stream = STREAMS["numpy"](1)
    stream.uniform(size=(2,))
    state = stream.state_updates[0][0]
    with pytest.raises(InputTypeError, match=r"RandomState|Generator"):
        pair.collectives.broadcast(state)
    vector = engine.shared(np.zeros(1), name="vector")
    row = engine.shared(np.zeros((1, 2)), name="row", broadcastable=(True, False))
    for act in (
        lambda: pair.collectives.all_gather([vector, row]),
        lambda: pair.collectives.scatter([vector, row], [np.zeros(1), np.zeros((1, 2))]),
    ):
        with pytest.raises(InputTypeError, match="broadcastable"):
            act()
    assert pair.collectives.get_lengths(vector) == (1, 1)
    with pytest.raises(InputValueError, match="broadcastable"):
        pair.collectives.broadcast(row, pair.data(np.zeros((3, 2))))


ARGUMENTS = {
    "scatter": lambda w: (w, np.arange(6.0)),
    "set_value": lambda w: (1, w, np.arange(3.0) + 5),
    "get_value": lambda w: (1, w),
}


def test_the_table_of_collectives_has_the_effects_of_each(pair):
    assert set(PERFORMERS) == set(COLLECTIVES)
    for name in set(COLLECTIVES) - {"reseed"}:
        w = engine.shared(np.zeros(3), "w")
        before = [np.arange(3.0) + 10 * rank for rank in range(2)]
        for rank, value in enumerate(before):
            pair.collectives.set_value(rank, w, value)
        getattr(pair.collectives, name)(*ARGUMENTS.get(name, lambda w: (w,))(w))
        after = [pair.collectives.get_value(rank, w) for rank in range(2)]
        same = [a.tobytes() == b.tobytes() for a, b in zip(before, after)]
        assert all(same) != COLLECTIVES[name].writes
        assert (after[0].tobytes() == after[1].tobytes()) == COLLECTIVES[name].equalizes
