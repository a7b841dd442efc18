"""The Trainer over ranks equals the serial one, resumes, and moves to other numbers of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from _sync import Training, together
from _training import (
    FEATURES,
    ROWS,
    Model,
    assert_close,
    assert_same,
    dataset,
    everywhere,
    forked,
    parallel,
    plain,
    serial,
    without_seconds,
)

import synkhronos as synk
from synk_testing.engine import IS_THEANO, STREAMS, T, engine, theano_only
from synkhronos.extensions import updates
from synkhronos.extensions.train import (
    Callback,
    Trainer,
    exponential,
    make_train_function,
    make_train_function_theano,
)

# These fork for themselves; those below share two ranks.


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


def masks(model):
    """What the two ranks draw next, as an array of two rows; this draws it."""
    f = synk.function([model.x], (model.seen, "gather"))
    return f(np.ones((2, FEATURES)))


@pytest.mark.parametrize(
    "noise", ["numpy", pytest.param([*STREAMS][-1], marks=pytest.mark.nightly)]
)
def test_resuming_on_two_ranks_equals_an_uninterrupted_run_bit_for_bit(two_ranks, tmp_path, noise):
    kind = {"noise": noise, "running": True}

    def final(model):
        state = model.train.state
        values = everywhere([*state.params, *state.optimizer, *state.local])
        return values[0], values[1], masks(model)

    whole, trainer = parallel(tmp_path / "whole", **kind)
    expected = trainer.run(3)
    values = final(whole)

    model, trainer = parallel(tmp_path / "parts", stop=4, **kind)
    trainer.run(3)
    means = [rank[0] for rank in everywhere([model.mean])]
    assert (means[0] != means[1]).any()  # in the middle of an epoch each rank has its own

    model, trainer = parallel(tmp_path / "parts", **kind)
    history = trainer.run(3, resume=True)
    for again, before in zip(final(model), values):
        assert_same(again, before)
    assert without_seconds(history) == without_seconds(expected)
    drawn = values[-1]
    assert (drawn[0] != drawn[1]).any()  # the two ranks draw different masks


def test_running_averages_are_averaged_after_each_epoch_unless_not_wanted(two_ranks):
    x, y = dataset()
    for average in (True, False):
        model = Model(make_train_function, rule=updates.sgd, running=True)
        trainer = Trainer(model.train, (x, y), ROWS, shuffle=False, average_local=average)
        trainer.run(1)
        half = ROWS // 2
        shares = [0.1 * x[:half].mean(axis=0), 0.1 * x[half:].mean(axis=0)]
        expected = [np.mean(shares, axis=0)] * 2 if average else shares
        for (mean, count), value in zip(everywhere([model.mean, model.count]), expected):
            np.testing.assert_allclose(mean, value, rtol=1e-13)
            assert count == 1


@pytest.mark.parametrize(
    "when, schedule", [("on_epoch_end", None), ("on_step_end", lambda epoch: 0.05)]
)
def test_a_rate_that_a_callback_sets_reaches_all_ranks(two_ranks, when, schedule):
    """As in Keras: with set_value, which changes the variable of this process alone."""
    finals = []
    for make in (make_train_function, make_train_function_theano):
        model = Model(make, rule=updates.sgd)
        lower = Callback()
        setattr(lower, when, lambda t, _, rate=model.rate: rate.set_value(0.05 / (1 + t.step)))
        how = {"learning_rate": model.rate, "schedule": schedule, "callbacks": [lower]}
        plain(model, 17, **how).run(2)
        finals.append(model)
    parallel, serial = finals
    for values in everywhere(parallel.params):
        assert_close(values, serial.values()[:2])


def test_data_in_shared_memory_is_taken_as_it_is(two_ranks):
    model, other = Model(make_train_function), Model(make_train_function_theano)
    data = model.train.build_inputs(*dataset())
    trainer = Trainer(model.train, data, 17)
    assert all(one is another for one, another in zip(trainer._data, data))
    trainer.run(1)
    Trainer(other.train, (data[0], dataset()[1]), 17).run(1)
    assert_close(model.values(), other.values())


@theano_only("clones with a default update of their own")
def test_default_updates_are_part_of_the_state():
    x = T.dmatrix("x")
    w, inner, outer, mean = (engine.shared(1.0, name=n) for n in ("w", "inner", "outer", "mean"))
    inner.default_update = inner * 0.5
    outer.default_update = outer + inner  # reached through an update only
    # As Lasagne's batch normalisation: a clone is updated, whose value is the variable's own.
    running = engine.clone(mean, share_inputs=False)
    running.default_update = 0.5 * running + 0.5 * x.mean()
    loss = (x * w).mean() + 0 * outer + 0 * running
    train = make_train_function_theano(loss, [w], [x], updates.momentum, learning_rate=0.1)
    state = train.state
    assert [v.name for v in state.params] == ["w"]
    assert [v.name for v in state.optimizer] == ["velocity(w)"]
    assert {v.name for v in state.local} == {"inner", "outer", "mean"}
    assert state.random == ()
    trainer = Trainer(train, np.full((4, 1), 3.0), 2)
    trainer.run(1)
    assert float(mean.get_value()) == 2.5  # 1, 2, 2.5
    values = trainer.get_values()
    trainer.run(2)
    trainer.set_values(values)
    assert float(mean.get_value()) == 2.5
