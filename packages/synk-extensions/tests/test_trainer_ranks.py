"""The Trainer over several ranks: the serial training, and checkpoints that move between them."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import theano
from _training import FEATURES, ROWS, Model, assert_close, assert_same, dataset, without_seconds

import synkhronos as synk
from synk_theano.testing import child_processes
from synkhronos.extensions import updates
from synkhronos.extensions.train import (
    Callback,
    EarlyStopping,
    Trainer,
    exponential,
    make_train_function,
    make_train_function_theano,
)


@contextlib.contextmanager
def forked(n, **settings):
    before = child_processes()
    synk.fork(n, use_gpu=False, verbose=False, **settings)
    try:
        yield
    finally:
        synk.close()
    assert child_processes() <= before


class StopAt(Callback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, trainer, loss):
        if trainer.step == self.step:
            trainer.stop()


def parallel(folder=None, stop=None, **kind):
    """A model, and a trainer of it over the ranks there are; three steps make an epoch."""
    model = Model(make_train_function, **kind)
    trainer = Trainer(
        model.train,
        dataset(),
        17,
        learning_rate=model.rate,
        schedule=exponential(0.1, 0.7),
        checkpoint=folder,
        callbacks=[StopAt(stop)],
    )
    return model, trainer


def serial(epochs):
    model = Model()
    trainer = Trainer(
        model.train, dataset(), 17, learning_rate=model.rate, schedule=exponential(0.1, 0.7)
    )
    return model, trainer.run(epochs)


def everywhere(shareds):
    """Values in all ranks: a list over ranks of lists over variables."""
    ranks = synk._default.default().size
    return [list(synk.get_value(rank, list(shareds))) for rank in range(ranks)]


def streams(model):
    return model.train.state.random


def masks(model):
    """What the two ranks draw next, as an array of two rows; this draws it."""
    f = synk.function([model.x], (model.seen, "gather"))
    return f(np.ones((2, FEATURES)))


def test_training_on_two_ranks_is_the_serial_one():
    with forked(2):
        model = Model(make_train_function)
        valid = synk.function([model.x, model.y], [model.clean, model.error])
        x_valid, y_valid = dataset(23, seed=2)
        trainer = Trainer(
            model.train,
            dataset(),
            17,
            valid=valid,
            valid_data=valid.build_inputs(x_valid, y_valid),
            valid_slices=3,  # of 12 rows in one rank, and of 11 in the other
            valid_names=["error"],
            learning_rate=model.rate,
            schedule=exponential(0.1, 0.7),
            callbacks=[EarlyStopping(1, min_delta=1e9, restore_best=True)],
        )
        history = trainer.run(3)
        # The first epoch is the best, and the second not better: its parameters come back.
        assert (len(history), history.status) == (2, "stopped")
        twin, expected = serial(1)
        values, other = everywhere(model.params)
        assert_same(values, other)
        assert_close(values, twin.values()[:2])
        assert [float(v) for v in synk.gather(model.rate)] == [0.1 * 0.7] * 2
        assert_close([history["train_loss"][:1]], [expected["train_loss"]])
        residual = x_valid @ values[0] + values[1] - y_valid
        assert_close([history["valid_loss"][0]], [(residual**2).mean()])
        assert_close([history["valid_error"][0]], [abs(residual).mean()])
        assert [finding for finding in synk.lint() if "error" in repr(finding).lower()] == []


@pytest.mark.parametrize("noise", ["mrg", "numpy"])
def test_resuming_on_two_ranks_equals_an_uninterrupted_run_bit_for_bit(tmp_path, noise):
    kind = {"noise": noise, "running": True}
    with forked(2):
        whole, trainer = parallel(tmp_path / "whole", **kind)
        expected = trainer.run(3)
        state = whole.train.state
        shareds = [*state.params, *state.optimizer, *state.local]
        values = everywhere(shareds)
        drawn = masks(whole)
    with forked(2):
        model, trainer = parallel(tmp_path / "parts", stop=4, **kind)
        trainer.run(3)
        state = model.train.state
        means = [rank[0] for rank in everywhere([model.mean])]
        assert (means[0] != means[1]).any()  # in the middle of an epoch each rank has its own
    with forked(2):
        model, trainer = parallel(tmp_path / "parts", **kind)
        history = trainer.run(3, resume=True)
        state = model.train.state
        again = everywhere([*state.params, *state.optimizer, *state.local])
        for rank in range(2):
            assert_same(again[rank], values[rank])
        assert_same([masks(model)], [drawn])
    assert without_seconds(history) == without_seconds(expected)
    assert (drawn[0] != drawn[1]).any()  # the two ranks draw different masks


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
    alone = Model()
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
    kind = {"noise": "mrg", "running": True}
    with forked(2):
        model, trainer = parallel(tmp_path, stop=4, **kind)
        trainer.run(3)
        saved = everywhere([model.mean, model.count])
        drawn = everywhere(streams(model))
    with forked(3):
        model, trainer = parallel(tmp_path, **kind)
        synk.distribute()
        own = everywhere(streams(model))
        assert trainer.resume()
        now = everywhere(streams(model))
        assert_same(now[0], drawn[0])
        assert_same(now[1], drawn[1])
        assert_same(now[2], own[2])
        assert (now[2][0] != now[1][0]).any()
        mean = (saved[0][0] + saved[1][0]) / 2
        for values in everywhere([model.mean, model.count]):
            np.testing.assert_allclose(values[0], mean, rtol=1e-15)
            assert values[1] == saved[0][1] == 4
    with forked(2, random_streams="identical"):
        model, trainer = parallel(tmp_path, **kind)
        assert trainer.resume()
        for state in everywhere(streams(model)):
            assert_same(state, drawn[0])
        same = trainer.save()
    with forked(2):
        model, trainer = parallel(tmp_path, **kind)
        synk.distribute()
        own = everywhere(streams(model))
        assert trainer.resume(same)
        now = everywhere(streams(model))
        assert_same(now[0], drawn[0])
        assert_same(now[1], own[1])


def test_running_averages_are_averaged_after_each_epoch_unless_not_wanted():
    x, y = dataset()
    with forked(2):
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


def test_data_in_shared_memory_is_taken_as_it_is():
    with forked(2):
        model, other = Model(make_train_function), Model(make_train_function_theano)
        data = model.train.build_inputs(*dataset())
        trainer = Trainer(model.train, data, 17)
        assert all(one is another for one, another in zip(trainer._data, data))
        mixed = Trainer(other.train, (data[0], dataset()[1]), 17)
        trainer.run(1)
        mixed.run(1)
        assert_close(model.values(), other.values())


def test_default_updates_are_part_of_the_state():
    x = theano.tensor.dmatrix("x")
    w, inner, outer, mean = (theano.shared(1.0, name=n) for n in ("w", "inner", "outer", "mean"))
    inner.default_update = inner * 0.5
    outer.default_update = outer + inner  # reached through an update only
    # As Lasagne's batch normalisation: a clone is updated, whose value is the variable's own.
    running = theano.clone(mean, share_inputs=False)
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
