"""Who owns which memory: outputs, inputs and shared variables that are one another."""

from __future__ import annotations

import numpy as np
import pytest
import theano.tensor as T
from _lib import exact, ranks_have, same, shared, still_there, values


def test_a_shared_variable_is_an_output(synk, n, place):
    """It is the value before the update, and stays what it was."""
    s = shared(values("float32", (2, 3)), place)
    before = exact(s.get_value())
    f = synk.function([], [(s, "gather"), (s, None), s, (s.T, "sum")], updates=[(s, s + 1)])
    results = f()
    f()
    for result, expected in zip(results, (np.tile(before, (n, 1)), before, before, n * before.T)):
        same(result, expected, "float32")
    ranks_have(synk, n, s, before + 2, "float32")
    results[1][:] = 0
    same(s.get_value(), before + 2, "float32")


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
        parts = np.array_split(rows, n)
        np.testing.assert_array_equal(synk.gather(s, nd_up=0), rows)
        np.testing.assert_array_equal(
            synk.gather(t, nd_up=0), np.concatenate([part[::-1] for part in parts])
        )
        f(np.zeros((n, 3), "float32"))
    still_there(s, place)
    g = synk.function([], bcast_inputs=[x], updates=[(s, x)])
    g(held)
    held[:] = 4
    ranks_have(synk, n, s, np.full_like(rows, -7))


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
            expected += [np.tanh(part).sum(axis=0) for part in np.array_split(exact(rows), n)]
        else:
            f(source, batch=np.arange(2 * n)[::-1])
            expected += [np.tanh(part).sum(axis=0) for part in np.array_split(exact(rows)[::-1], n)]
        source[:] = np.nan
    ranks_have(synk, n, s, list(expected), "float32")


def test_no_update_is_lost_between_calls_and_collectives(synk, n, place):
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
    ranks_have(synk, n, s, np.full(size, float(expected)), "float32")
