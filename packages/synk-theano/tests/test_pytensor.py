"""What PyTensor has and Theano has not: random states that are NumPy's Generators."""

from __future__ import annotations

import numpy as np
import pytest

from synk_testing.engine import IS_THEANO, T, engine
from synk_theano import Runtime, SpecError
from synk_theano._graph.random_streams import reseed

BITS = [np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64]

needs_pytensor = pytest.mark.skipif(IS_THEANO, reason="PyTensor only")
x = T.vector("x")


class Odd(np.random.PCG64):
    """A bit generator that is not one of NumPy's."""


@pytest.mark.parametrize("bits", BITS)
def test_each_rank_has_a_generator_of_its_own_that_follows_from_the_state(bits):
    state = np.random.Generator(bits(5))
    draws = {rank: reseed(state, rank).random(100) for rank in (1, 2, 70_000)}
    again = {rank: reseed(np.random.Generator(bits(5)), rank).random(100) for rank in draws}
    np.testing.assert_equal(again, draws)
    assert type(reseed(state, 1).bit_generator) is bits
    plain = np.random.Generator(bits(5)).random(100)
    np.testing.assert_array_equal(state.random(100), plain)  # it was not drawn from
    later = reseed(state, 1).random(100)
    assert len(np.unique([plain, later, *draws.values()])) == 500


def drawing(runtime, rng, **options):
    """One number for each row."""
    state, draws = rng.uniform(size=x.shape)
    return runtime.function([x], (draws + 0 * x, "gather"), updates=[(rng, state)], **options)


@needs_pytensor
def test_ranks_and_slices_draw_numbers_of_their_own_again_and_again(runtime):
    runs = []
    for _ in range(2):
        f = drawing(runtime, T.random.shared_rng(seed=7))
        runs.append([f(np.zeros(60), num_slices=n) for n in (1, 1, 3)])
    np.testing.assert_array_equal(*runs)
    assert len(np.unique(runs[0])) == 180
    own = 60 // runtime.size
    serial = np.random.default_rng(7).uniform(size=(2, own))
    np.testing.assert_array_equal(np.array(runs[0])[:2, :own], serial)


@needs_pytensor
def test_what_draws_without_an_update_draws_the_same_again_but_not_on_another_rank(pair):
    f = pair.function([x], (T.random.normal(size=x.shape) + 0 * x, "gather"))
    first, second = f(np.zeros(20)), f(np.zeros(20))
    np.testing.assert_array_equal(first, second)
    assert len(np.unique(first)) == 20


@needs_pytensor
def test_ranks_draw_the_same_if_that_is_asked_for():
    with Runtime(2, random_streams="identical") as runtime:
        for bits in (np.random.PCG64, Odd):
            rng = T.random.shared_rng(np.random.Generator(bits(7)))
            draws = drawing(runtime, rng)(np.zeros(20))
            np.testing.assert_array_equal(draws[:10], draws[10:])


@needs_pytensor
def test_states_by_which_all_ranks_would_draw_the_same_are_refused(pair):
    odd = engine.shared(np.random.Generator(Odd(7)), name="odd")
    with pytest.raises(SpecError, match=r"odd is a Generator of Odd, .*identical"):
        drawing(pair, odd)
    fixed = odd.type.make_constant(np.random.default_rng(7))
    draws = T.random.uniform(size=(), rng=fixed)
    with pytest.raises(SpecError, match=r"constant of the graph of fixed, .*pytensor\.shared"):
        pair.function([x], (x + draws, "gather"), name="fixed")
    looped = engine.scan(lambda row: row + T.random.uniform(size=(), rng=fixed), x)
    looped = looped[0] if isinstance(looped, tuple) else looped
    with pytest.raises(SpecError, match="constant of the graph"):
        pair.function([x], (looped, "gather"))
