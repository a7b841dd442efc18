"""What fails on any rank has changed nothing on any: calls, collectives and steps, on devices."""

from __future__ import annotations

import sys

import cloudpickle
import numpy as np
import pytest
import theano.tensor as T
from _lib import exact, on_all, ranks_have, same, shared, spread, still_there, values
from theano.compile.ops import as_op

# Workers cannot import the tests' modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

LIMIT = 100


@as_op([T.fmatrix], [T.fmatrix])
def picky(array):
    if array.max(initial=0) > LIMIT:
        raise ValueError("not this")
    return array


@pytest.fixture
def refused(synk):
    def check(act, *args, **kwargs):
        with pytest.raises((ValueError, synk.WorkerFailed), match="not this"):
            act(*args, **kwargs)

    return check


def bad_rows(rows, rank, n):
    bad = rows.copy()
    bad[sum(len(part) for part in np.array_split(rows, n)[:rank])] = LIMIT + 1
    return bad


@pytest.mark.parametrize("num_slices", [1, 2])
def test_a_failed_call_leaves_all_variables_as_they_were(synk, n, place, refused, num_slices):
    x = T.fmatrix("x")
    w, held = spread(synk, n, values("float32", (50, 3)), place, "w")
    v = shared(np.zeros((), "float32"), place, "v")
    early = w * 2 + x.sum(axis=0)
    late = picky(x + early.sum(axis=0) * 0)
    part = T.set_subtensor(w[1:3], early[1:3]) + late.sum()
    f = synk.function(
        [x], [(late.sum(), "sum"), (late, "gather")], updates=[(w, part), (v, v + early[0, 0])]
    )
    rows = values("float32", (4 * n, 3))
    for rank in range(n):
        internal = w.get_value(borrow=True, return_internal_type=True)
        refused(f, bad_rows(rows, rank, n), num_slices=num_slices)
        ranks_have(synk, n, w, held)
        ranks_have(synk, n, v, 0)
        assert w.get_value(borrow=True, return_internal_type=True) is internal
    still_there(w, place)
    total, gathered = f(rows, num_slices=num_slices)
    same(total, exact(rows).sum(), "float32")
    np.testing.assert_array_equal(gathered, rows)
    for rank, (got, own) in enumerate(zip(on_all(synk, n, w), np.array_split(exact(rows), n))):
        pieces = np.array_split(own, num_slices)
        expected = 0
        for piece in pieces:
            moved = exact(held[rank]).copy()
            moved[1:3] = (2 * moved + piece.sum(axis=0))[1:3]
            expected = expected + (moved + piece.sum()) * len(piece) / len(own)
        same(got, expected, "float32", f"rank {rank}")


def test_a_failed_step_leaves_all_variables_as_they_were(synk, n, place, refused):
    x = T.fmatrix("x")
    start = values("float32", (200, 7))
    w, held = spread(synk, n, start, place, "w")
    g, held_g = spread(synk, n, 2 * start, place, "g")
    other = shared(np.ones((1, 3), "float32"), "host", "other")
    move = synk.function([x], updates=[(w, w + x.sum()), (g, g * 2), (other, other + x.sum())])
    fail = synk.function([x], (picky(x * 1).sum(), "sum"), updates=[(g, g - 1)])
    rows = values("float32", (2 * n, 3))
    delayed = synk.delayed
    collectives = [
        delayed.all_reduce,
        lambda v: delayed.all_reduce(v, op="max"),
        lambda v: delayed.all_reduce(v, weights=move),
        delayed.broadcast,
        lambda v: delayed.broadcast(v, np.zeros((200, 7), "float32")),
        lambda v: delayed.scatter(v, np.zeros((3 * n, 7), "float32")),
        lambda v: delayed.set_value(n - 1, v, np.zeros((2, 7), "float32")),
        delayed.all_gather,
        lambda v: delayed.reduce(v, op="sum", in_place=True),
    ]

    def unchanged():
        ranks_have(synk, n, w, held)
        ranks_have(synk, n, g, held_g)
        ranks_have(synk, n, other, 1)

    for k, collective in enumerate(collectives):
        rank = k % n
        bad = fail.delayed(bad_rows(rows, rank, n))
        acts = [move.delayed(rows), collective(w), collective(w), bad]
        refused(synk.step, *acts)
        unchanged()
        if k != 2:
            refused(synk.step, collective(g), collective(w), *acts[:1], collective(w), bad)
            unchanged()
    refused(synk.step, delayed.all_reduce([w, g], op="sum"), fail.delayed(bad_rows(rows, 0, n)))
    unchanged()
    synk.step(delayed.all_reduce([w, g], op="sum"), fail.delayed(rows))
    ranks_have(synk, n, w, sum(map(exact, held)), "float32")
    ranks_have(synk, n, g, sum(map(exact, held_g)) - 1, "float32")
    still_there(w, place)


def test_a_collective_leaves_the_array_that_was_there(synk, n, place):
    """Two arrays take turns, but for one that somebody may hold."""
    s, held = spread(synk, n, values("float32", (1000,)), place)
    x = T.fmatrix("x")
    f = synk.function([x], updates=[(s, s + x.sum())], proof=False)
    expected = [exact(value) for value in held]
    rows = np.ones((n, 1), "float32")
    if n > 1:
        for k in range(7):
            before = s.get_value(borrow=True, return_internal_type=True)
            kept = np.array(np.asarray(before))
            if k % 3 == 2:
                synk.step(f.delayed(rows), synk.delayed.all_reduce(s))
                expected = [value + 1 for value in expected]
            else:
                synk.all_reduce(s, op="avg")
            assert s.get_value(borrow=True, return_internal_type=True) is not before
            np.testing.assert_array_equal(np.asarray(before), kept)
            expected = [sum(expected) / n] * n
            if k % 2:
                synk.set_value(n - 1, s, held[-1])
                expected[-1] = exact(held[-1])
            ranks_have(synk, n, s, expected, "float32")
