"""The Trainer over two ranks: it is the serial training, and resumes bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
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
    without_seconds,
)

import synkhronos as synk
from synk_testing.engine import STREAMS, T, engine, theano_only
from synkhronos.extensions import updates
from synkhronos.extensions.train import (
    Callback,
    Trainer,
    make_train_function,
    make_train_function_theano,
)


@pytest.fixture(scope="module")
def two_ranks():
    with forked(2):
        yield


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
