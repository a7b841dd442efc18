"""Who owns which memory: outputs, inputs and shared variables that are one another."""

from __future__ import annotations

import numpy as np
import pytest
import theano.tensor as T
from _lib import exact, on_all, same, shared, shares, still_there, values


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_an_input_is_an_output(synk, dtype):
    """Also twice, and through views; later calls and writing change no result."""
    x = T.TensorType(dtype, (False, False))("x")
    f = synk.function([x], [(x, "gather"), (x, "gather"), (x.T.T, "gather"), (x[:, 1:], "gather")])
    rows = values(dtype, (7, 3))
    held = synk.data(rows)
    for given in (rows, held):
        first = f(given)
        held[:] = 0
        f(values(dtype, (7, 3), 9))
        for result, expected in zip(first, (rows, rows, rows, rows[:, 1:])):
            np.testing.assert_array_equal(result, expected)
        first[0][:] = 1
        np.testing.assert_array_equal(first[1], rows)
        held[:] = rows


def test_a_shared_variable_is_an_output(synk, n, place):
    """It is the value before the update, and stays what it was."""
    s = shared(values("float32", (2, 3)), place)
    before = exact(s.get_value())
    f = synk.function([], [(s, "gather"), (s, None), s, (s.T, "sum")], updates=[(s, s + 1)])
    results = f()
    f()
    for result, expected in zip(results, (np.tile(before, (n, 1)), before, before, n * before.T)):
        same(result, expected, "float32")
    for got in on_all(synk, n, s):
        same(got, before + 2, "float32")
    results[1][:] = 0
    same(s.get_value(), before + 2, "float32")


def test_shared_variables_that_are_parts_of_one_array(synk, n, place):
    """Collectives on one of them leave the others, and the whole, as they are."""
    whole = shared(values("float32", (12,)), place, "whole")
    array = whole.get_value(borrow=True, return_internal_type=True)
    make = type(whole)  # of the type of its value, without a copy
    parts = [
        make(f"part{i}", whole.type, array[4 * i : 4 * i + 4], strict=False) for i in range(1, 3)
    ]
    before = exact(whole.get_value())
    for variable in (whole, *parts):
        synk.broadcast(variable)
    for times in range(1, 4):
        synk.all_reduce(parts[0], op="sum")
        for got in on_all(synk, n, parts[0]):
            same(got, before[4:8] * n**times, "float32")
        for got in on_all(synk, n, parts[1]):
            same(got, before[8:], "float32")
        for got in on_all(synk, n, whole):
            same(got, before, "float32")


def test_a_shared_variable_becomes_an_input(synk, n, place):
    """`s := x`: the variable keeps the values, whatever becomes of the input's memory."""
    x = T.matrix("x", dtype="float32")
    s, t = (shared(np.zeros((1, 3), "float32"), place, name) for name in "st")
    f = synk.function([x], updates=[(s, x, "last"), (t, x[::-1], "last")])
    rows = values("float32", (3 * n + 1, 3))
    given = rows.copy()
    held = synk.data(rows)
    for source in (given, held):
        f(source)
        source[:] = -7
        parts = shares(rows, n)
        np.testing.assert_array_equal(synk.gather(s, nd_up=0), rows)
        np.testing.assert_array_equal(
            synk.gather(t, nd_up=0), np.concatenate([part[::-1] for part in parts])
        )
        f(np.zeros((n, 3), "float32"))
    still_there(s, place)
    g = synk.function([], bcast_inputs=[x], updates=[(s, x)])
    g(held)
    held[:] = 4
    for got in on_all(synk, n, s):
        np.testing.assert_array_equal(got, np.full_like(rows, -7))


def test_two_shared_variables_swap(synk, n, place):
    a, b = shared(np.zeros(3, "float32"), place, "a"), shared(np.zeros(3, "float32"), place, "b")
    for rank in range(n):
        synk.set_value(
            rank, [a, b], [np.full(3, rank, "float32"), np.full(3, -rank - 1, "float32")]
        )
    f = synk.function([], [(a, "gather"), (b, "gather")], updates=[(a, b), (b, a)])
    for call in range(1, 4):
        f()
        for rank in range(n):
            swapped = (rank, -rank - 1)[:: -1 if call % 2 else 1]
            np.testing.assert_array_equal(synk.get_value(rank, a), np.full(3, swapped[0]))
            np.testing.assert_array_equal(synk.get_value(rank, b), np.full(3, swapped[1]))
    synk.all_reduce([a, b], op="sum")
    f()
    np.testing.assert_array_equal(a.get_value(), np.full(3, n * (n - 1) / 2))


@pytest.mark.parametrize("size", [16, 300_000])
def test_the_caller_may_write_to_inputs_as_soon_as_a_call_returns(synk, n, place, size):
    """Copies to a device are complete by then, also of calls without outputs."""
    x = T.matrix("x", dtype="float32")
    s = shared(np.zeros(size, "float32"), place)
    f = synk.function([x], updates=[(s, s + T.tanh(x[0]) + T.tanh(x[1]))], proof=False)
    array = np.zeros((2 * n, size), "float32")
    held = synk.data(array)
    expected = np.zeros((n, size))
    random = np.random.RandomState(1)
    for call in range(6):
        source = held if call % 2 else array
        rows = random.uniform(-1, 1, array.shape).astype("float32")
        source[:] = rows
        if call % 3:
            f(source)
            expected += [np.tanh(part).sum(axis=0) for part in shares(exact(rows), n)]
        else:
            f(source, batch=np.arange(2 * n)[::-1])
            expected += [np.tanh(part).sum(axis=0) for part in shares(exact(rows)[::-1], n)]
        source[:] = np.nan
    for got, want in zip(on_all(synk, n, s), expected):
        same(got, want, "float32")


def test_no_update_is_lost_between_calls_and_collectives(synk, n, place):
    """Each waits for what the one before has written, on whatever stream."""
    x = T.matrix("x", dtype="float32")
    size = 20_000
    s, g = (shared(np.zeros(size, "float32"), place, name) for name in "sg")
    f = synk.function([x], updates=[(g, x[0] * 1)], proof=False)
    h = synk.function([], updates=[(s, s + g)])
    expected = 0
    for call in range(40):
        f(np.full((n, size), call + 1, "float32") * np.arange(1, n + 1, dtype="float32")[:, None])
        synk.all_reduce(g, op="avg")
        h()
        expected += (call + 1) * (n + 1) / 2
    for got in on_all(synk, n, s):
        same(got, np.full(size, float(expected)), "float32")
