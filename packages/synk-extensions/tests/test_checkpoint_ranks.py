"""Checkpoints that move to another number of ranks, and to plain Theano."""

from __future__ import annotations

import numpy as np
from _sync import Training, together
from _training import (
    Model,
    assert_close,
    assert_same,
    dataset,
    everywhere,
    forked,
    parallel,
    serial,
)

import synkhronos as synk
from synk_testing.engine import IS_THEANO
from synkhronos.extensions import updates
from synkhronos.extensions.train import Trainer, exponential


def states(trainer):
    """The states of the random streams, which may be objects: arrays by rank, then by stream."""
    ranks = trainer._ranks
    streams = trainer.train.state.random
    return list(zip(*ranks.perform([*map(ranks.get_states, streams)])))


def test_a_checkpoint_of_two_ranks_goes_on_with_three_and_in_plain_theano(tmp_path):
    twin, expected = serial(3)
    with forked(2):
        _, trainer = parallel(tmp_path, stop=4)
        trainer.run(3)
    with forked(3, master_rank=1):
        model, trainer = parallel(tmp_path)
        history = trainer.run(3, resume=True)
        ranks = everywhere(model.params)
        for values in ranks:
            assert_close(values, twin.values()[:2])
            assert_same(values, ranks[0])
    assert_close([history["train_loss"]], [expected["train_loss"]])
    alone = Model(rule=updates.adam)
    trainer = Trainer(
        alone.train,
        dataset(),
        17,
        learning_rate=alone.rate,
        schedule=exponential(0.1, 0.7),
        checkpoint=tmp_path,
    )
    assert trainer.resume()
    assert_same(alone.values()[:2], ranks[0])
    trainer.run(4)
    twin, _ = serial(4)
    assert_close(alone.values(), twin.values())


def test_streams_and_local_values_on_another_number_of_ranks(tmp_path):
    kind = {"noise": "mrg" if IS_THEANO else "numpy", "running": True}
    with forked(2):
        model, trainer = parallel(tmp_path, stop=4, **kind)
        trainer.run(3)
        saved = everywhere([model.mean, model.count])
        drawn = states(trainer)
        path = trainer.save()
    with forked(2, random_streams="identical"):
        model, trainer = parallel(tmp_path / "same", **kind)
        assert trainer.resume(path)
        for state in states(trainer):
            assert_same(state, drawn[0])
        same = trainer.save()
    with forked(3):
        model, trainer = parallel(tmp_path, **kind)
        synk.distribute()
        own = states(trainer)
        assert trainer.resume()
        now = states(trainer)
        assert_same(now[0], drawn[0])
        assert_same(now[1], drawn[1])
        assert_same(now[2], own[2])
        assert (now[2][0] != now[1][0]).any()
        mean = (saved[0][0] + saved[1][0]) / 2
        for values in everywhere([model.mean, model.count]):
            np.testing.assert_allclose(values[0], mean, rtol=1e-15)
            assert values[1] == saved[0][1] == 4
        # Ranks that drew the same no longer do: one of them continues the stream.
        assert trainer.resume(same)
        again = states(trainer)
        assert_same(again[0], drawn[0])
        assert_same(again[1], now[1])
        assert_same(again[2], own[2])


def test_local_steps_go_on_from_the_mean_on_another_number_of_ranks(tmp_path):
    with forked(3, master_rank=1):
        parts = Training("easgd", tmp_path, stop=4)
        parts.trainer.run(1)
        replicas = together(everywhere(parts.model.params))
        velocities = together(everywhere(parts.train.state.optimizer))
        centre = together(everywhere(parts.rule.centre))[0]
        assert parts.rule.steps == 1
    with forked(2):
        parts = Training("easgd", tmp_path)
        assert parts.trainer.resume()
        found = [parts.model.params, parts.train.state.optimizer, parts.rule.centre]
        expected = [replicas.mean(axis=0), velocities.mean(axis=0), centre]
        for variables, value in zip(found, expected):
            np.testing.assert_allclose(together(everywhere(variables)), [value] * 2, rtol=1e-15)
        assert parts.rule.steps == 1
        assert len(parts.trainer.run(2)) == 2
