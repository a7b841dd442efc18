"""The Trainer with a rule of `extensions.sync`: validation, checkpoints, early stopping."""

from __future__ import annotations

import numpy as np
import pytest
from _sync import (
    BATCH,
    EVERY,
    RATE,
    ROWS,
    RULES,
    STEPS,
    Linear,
    Ranks,
    Training,
    no_warning,
    rows,
    together,
)
from _training import assert_same, everywhere, forked, without_seconds

from synkhronos.extensions import updates
from synkhronos.extensions.train import (
    CheckpointError,
    EarlyStopping,
    Trainer,
    make_train_function_theano,
)


@pytest.fixture(scope="module")
def two_ranks():
    with forked(2):
        yield


@pytest.mark.parametrize("name", RULES)
def test_epochs_end_with_the_common_parameters_and_their_validation(two_ranks, name):
    x, y = rows(ROWS)
    valid_data = x_valid, y_valid = rows(23, seed=8)
    with no_warning():
        training = Training(name, update=updates.sgd, valid_data=valid_data, shuffle=False)
        history = training.trainer.run(3)
    expected = Ranks(2, name, EVERY, alpha=0.45)
    for epoch in range(3):
        for start in range(0, ROWS, BATCH):
            expected.step(x[start : start + BATCH], y[start : start + BATCH])
        expected.settle()
        theta = expected.replicas[0]
        loss = np.mean((x_valid @ theta[:-1] + theta[-1] - y_valid) ** 2)
        assert history["valid_loss"][epoch] == pytest.approx(loss, rel=1e-12)
    replicas = together(everywhere(training.model.params))
    np.testing.assert_allclose(replicas, expected.replicas, rtol=1e-12)
    assert (replicas[0] == replicas[1]).all()


def test_resuming_within_an_epoch_equals_an_uninterrupted_run_bit_for_bit(two_ranks, tmp_path):
    name = "easgd"  # the one with a centre, and with replicas that never become equal
    whole = Training(name)
    history = whole.trainer.run(3)
    parts = Training(name, tmp_path, stop=STEPS + 2)
    parts.trainer.run(3)
    values = everywhere(parts.model.params)
    assert (together(values)[0] != together(values)[1]).all(), "each rank has its own"
    for stop in (2 * STEPS + 1, None):
        parts = Training(name, tmp_path, stop=stop)
        again = parts.trainer.run(3, resume=True)
    for one, other in zip(parts.values(), whole.values()):
        assert_same(one, other)
    assert without_seconds(again) == without_seconds(history)
    assert parts.rule.steps == whole.rule.steps


def test_the_best_parameters_come_back_with_their_centre(two_ranks):
    stopping = EarlyStopping(1, min_delta=1e9, restore_best=True)
    first = Training("easgd")
    first.trainer.run(1)
    training = Training("easgd", callbacks=[stopping])
    history = training.trainer.run(9)
    assert (len(history), history.status) == (2, "stopped")
    best = together(everywhere(first.model.params))
    np.testing.assert_array_equal(together(everywhere(training.model.params)), best)
    np.testing.assert_array_equal(together(everywhere(training.rule.centre)), best)


def test_a_checkpoint_of_another_rule_is_refused(two_ranks, tmp_path):
    Training("downpour", tmp_path).trainer.run(1)
    for rule, match in (
        ("easgd", r"got the state of sync.downpour\(\), expected easgd\(\)"),
        ("average", "centre: .* in the checkpoint, none here"),
        (None, "schedule, callback or sync: SyncRule in the checkpoint, none here"),
    ):
        training = Training(rule, tmp_path)
        before = training.values()
        with pytest.raises(CheckpointError, match=match):
            training.trainer.resume()
        for one, other in zip(training.values(), before):
            assert_same(one, other)
    model = Linear()
    serial = make_train_function_theano(
        model.loss, model.params, [model.x, model.y], updates.momentum, RATE
    )
    with pytest.raises(CheckpointError, match="SyncRule in the checkpoint, none here"):
        Trainer(serial, rows(ROWS), BATCH, checkpoint=tmp_path).resume()


def test_a_checkpoint_without_a_rule(two_ranks, tmp_path):
    """Averaging may go on from one; a centre is not in it."""
    plain = Training(None, tmp_path)
    plain.trainer.run(1)
    values = [rank[:4] for rank in plain.values()]
    training = Training("average", tmp_path)
    training.trainer.resume()
    for one, other in zip(training.values(), values):
        assert_same(one, other)
    assert len(training.trainer.run(2)) == 2
    with pytest.raises(CheckpointError, match="centre: none in the checkpoint, centre"):
        Training("easgd").trainer.resume(tmp_path / "step-000000005.npz")
