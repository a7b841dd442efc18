"""Seeds reach all ranks: the master draws as in serial, each worker numbers of its own."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
from _ops import FAST, picky

from synk_core import InputValueError, Runtime, WorkerFailed
from synk_testing.engine import IS_THEANO, STREAMS, T, as_op, engine

x = T.dvector("x")

# They show what each rank draws, which one process would not.
pytestmark = pytest.mark.usefixtures("unproved")


@as_op([T.dvector], [T.dvector])
def globally(values):
    return np.array([np.random.rand(), random.random()]) + 0 * values[0]


def drawing(runtime, kind):
    """A stream, its state, what returns each rank's draws, the serial ones, and the function."""
    stream = STREAMS[kind](1)
    draws = stream.uniform(size=(4,))
    f = runtime.function([x], [(draws + picky(x)[0], "gather")], **FAST)
    plain = STREAMS[kind](1)
    serial = engine.function([], plain.uniform(size=(4,)), **FAST)
    return stream, stream.state_updates[0][0], lambda: f(np.zeros(3))[0].reshape(-1, 4), serial, f


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.feature("replicas")
def test_a_stream_that_is_seeded_draws_the_same_again_on_every_rank(trio, kind):
    stream, state, draw, serial, f = drawing(trio, kind)
    start = draw()
    saved = state.get_value()
    following = draw()
    np.testing.assert_array_equal([start[0], following[0]], [serial(), serial()])

    def in_place():  # as Theano's tutorial does
        value = state.get_value(borrow=True)
        if kind == "mrg":
            value = value + 1
        elif IS_THEANO:
            value.seed(5)
        else:
            value.bit_generator.state = np.random.default_rng(5).bit_generator.state
        state.set_value(value, borrow=True)

    for seed in (
        lambda: stream.seed(5),
        lambda: state.set_value(saved),
        lambda: trio.seed(5),
        in_place,
    ):
        runs = []
        for fails in (False, True):
            state.set_value(copy.deepcopy(saved))
            seed()
            runs.append([draw(), draw()])
            if fails:
                with pytest.raises((ValueError, WorkerFailed), match="not this"):
                    f(np.full(3, 200.0))
            runs[-1].append(draw())
        np.testing.assert_array_equal(*runs)
        assert len(np.unique(runs[0])) == 36
    plain = STREAMS[kind](1)
    serial = engine.function([], plain.uniform(size=(4,)), **FAST)
    plain.seed(9)
    stream.seed(9)
    np.testing.assert_array_equal(draw()[0], serial())


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.feature("proof", "replicas")
def test_a_seed_is_not_lost_when_something_fails_or_looks_first(trio, kind):
    stream, _, draw, _, f = drawing(trio, kind)
    draw()
    stream.seed(5)
    wanted = draw()
    stream.seed(5)
    with pytest.raises((ValueError, WorkerFailed), match="not this"):
        f(np.full(3, 200.0))
    f.verify(np.zeros(3))
    np.testing.assert_array_equal(draw(), wanted)
    stream.seed(5)
    f.verify(np.zeros(3))
    np.testing.assert_array_equal(draw(), wanted)


@pytest.mark.feature("replicas")
def test_ranks_draw_the_same_from_a_seed_if_that_is_asked_for():
    with Runtime(2, random_streams="identical") as runtime:
        for kind in STREAMS:
            stream, _, draw, _, _ = drawing(runtime, kind)
            draw()
            for seed in (lambda: stream.seed(5), lambda: runtime.seed(5)):  # noqa: B023 - called here
                seed()
                first, second = draw()
                np.testing.assert_array_equal(first, second)


def test_workers_global_generator_follows_from_the_masters_at_the_start():
    runs = []
    for seed in (3, 3, 4):
        np.random.seed(seed)
        with Runtime(2, use_gpu=False) as runtime:
            runs.append(runtime.function([x], [(globally(x), "gather")])(np.zeros(2))[0][::2])
    np.testing.assert_array_equal(*runs[:2])
    np.random.seed(3)
    assert runs[0][0] == np.random.rand()
    assert len(np.unique(runs)) == 4


def test_seed_seeds_global_generators_of_all_ranks(runtime):
    f = runtime.function([x], [(globally(x), "gather")])
    runs = []
    for _ in range(2):
        runtime.seed(7)
        runs.append(f(np.zeros(4))[0])
    np.testing.assert_array_equal(*runs)
    assert len(np.unique(runs)) == 2 * runtime.size
    np.random.seed(7)
    random.seed(7)
    np.testing.assert_array_equal(runs[0][:2], [np.random.rand(), random.random()])
    for bad in (-1, 2**32, 1.5, None):
        with pytest.raises(InputValueError, match=r"seed\(\): got"):
            runtime.seed(bad)
