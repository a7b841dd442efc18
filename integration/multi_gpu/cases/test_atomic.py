"""What fails on any rank has changed nothing on any: calls, collectives and steps, on devices."""

from __future__ import annotations

import sys

import cloudpickle
import numpy as np
import pytest
import theano.tensor as T
from _lib import exact, on_all, same, shared, spread, still_there, values
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
    """Assert that an act fails on the rank with the bad row."""

    def check(act, *args, **kwargs):
        with pytest.raises((ValueError, synk.WorkerFailed), match="not this"):
            act(*args, **kwargs)

    return check


def bad_rows(rows, rank, n):
    """The same rows, one of this rank's share too large."""
    bad = rows.copy()
    bad[sum(len(part) for part in np.array_split(rows, n)[:rank])] = LIMIT + 1
    return bad


@pytest.mark.parametrize("num_slices", [1, 2])
def test_a_failed_call_leaves_all_variables_as_they_were(synk, n, place, refused, num_slices):
    """Updates before the operation that fails, and after it; some rows at a time, too."""
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
        for got, want in zip(on_all(synk, n, w), held):
            np.testing.assert_array_equal(got, want)
        for got in on_all(synk, n, v):
            np.testing.assert_array_equal(got, 0)
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
    """Whatever collectives were in it, before and after calls that update the same variables."""
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
        for variable, values_held in ((w, held), (g, held_g)):
            for rank, (got, want) in enumerate(zip(on_all(synk, n, variable), values_held)):
                np.testing.assert_array_equal(got, want, err_msg=f"{variable} of rank {rank}")
        for got in on_all(synk, n, other):
            np.testing.assert_array_equal(got, 1)

    for k, collective in enumerate(collectives):
        rank = k % n
        # Twice: the second one works on what the first has given.
        bad = fail.delayed(bad_rows(rows, rank, n))
        acts = [move.delayed(rows), collective(w), collective(w), bad]
        refused(synk.step, *acts)
        unchanged()
        if k != 2:
            refused(synk.step, collective(g), collective(w), *acts[:1], collective(w), bad)
            unchanged()
    # Both, as one list, and after all of that it is done whole.
    refused(synk.step, delayed.all_reduce([w, g], op="sum"), fail.delayed(bad_rows(rows, 0, n)))
    unchanged()
    synk.step(delayed.all_reduce([w, g], op="sum"), fail.delayed(rows))
    for got in on_all(synk, n, w):
        same(got, sum(map(exact, held)), "float32")
    for got in on_all(synk, n, g):
        same(got, sum(map(exact, held_g)) - 1, "float32")
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
            for got, want in zip(on_all(synk, n, s), expected):
                same(got, want, "float32")


class Program:
    """Three variables, two functions, and the same in NumPy: `state[k][r]` is rank r's value."""

    def __init__(self, synk, n, seed, place):
        self.synk, self.n = synk, n
        self.random = np.random.RandomState(seed)
        made = [
            spread(synk, n, values("float32", (5, k + 1), seed), where, name)
            for k, (name, where) in enumerate(zip("abc", [place, place, "host"]))
        ]
        self.variables = [variable for variable, _ in made]
        self.state = [[exact(value) for value in held] for _, held in made]
        a, b, c = self.variables
        x = T.fmatrix("x")
        self.halve = synk.function(
            [x], updates=[(a, a * 0.5 + x.mean()), (c, c * 0.25 + b.mean())], proof=False
        )
        mean = a.sum(axis=0).mean()
        self.mix = synk.function([], [(a.sum(), "sum")], updates=[(b, b * 0.5 + mean)], proof=False)
        self.fail = synk.function([x], picky(x * 1).mean(), updates=[(a, -a)], proof=False)
        self.rows = values("float32", (2 * n, 3), seed)

    def halved(self, old):
        a, b, c = old
        shares = np.array_split(exact(self.rows), self.n)
        new_a = [v * 0.5 + share.mean() for v, share in zip(a, shares)]
        return [new_a, b, [v * 0.25 + w.mean() for v, w in zip(c, b)]]

    def mixed(self, old):
        a, b, c = old
        return [a, [w * 0.5 + v.sum(axis=0).mean() for v, w in zip(a, b)], c]

    def any_act(self):
        """An act of a step, and what it makes of the state."""
        kind = self.random.randint(5)
        if kind == 0:
            return self.halve.delayed(self.rows), self.halved
        if kind == 1:
            return self.mix.delayed(), self.mixed
        # Some in one place, or of both.
        which = [[0], [1], [0, 1], [2], [0, 2], [0, 1, 2]][self.random.randint(6)]
        chosen = [self.variables[k] for k in which]
        delayed = self.synk.delayed
        act, combine = {
            2: (delayed.broadcast(chosen), lambda held: held[0]),
            3: (delayed.all_reduce(chosen, op="max"), lambda held: np.max(held, axis=0)),
            4: (delayed.all_reduce(chosen, op="avg"), lambda held: np.mean(held, axis=0)),
        }[kind]

        def apply(old):
            return [[combine(held)] * self.n if k in which else held for k, held in enumerate(old)]

        return act, apply


@pytest.mark.parametrize("seed", [0, 1])
def test_random_steps_are_done_whole_or_not_at_all(synk, n, seed, refused, device_set):
    """Calls and collectives in any order, a rank failing in every third step; and in NumPy."""
    program = Program(synk, n, seed, "host" if device_set.kind == "cpu" else "device")
    random = program.random
    for number in range(30):
        acts, effects = zip(*(program.any_act() for _ in range(random.randint(1, 5))))
        if number % 3 == 2:
            where = random.randint(len(acts) + 1)
            bad = program.fail.delayed(bad_rows(program.rows, random.randint(n), n))
            refused(synk.step, *acts[:where], bad, *acts[where:])
        else:
            synk.step(*acts)
            for effect in effects:
                program.state = effect(program.state)
        for variable, held in zip(program.variables, program.state):
            for rank, (got, want) in enumerate(zip(on_all(synk, n, variable), held)):
                same(got, want, "float32", f"step {number}: {variable} of rank {rank}")
