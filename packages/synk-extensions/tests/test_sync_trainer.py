"""The rules of `extensions.sync` in use: in the Trainer, in checkpoints, and after failures."""

from __future__ import annotations

import numpy as np
import pytest
from _sync import (
    BATCH,
    EVERY,
    RATE,
    ROWS,
    RULES,
    START,
    STEPS,
    Linear,
    Ranks,
    Training,
    no_warning,
    rows,
    together,
)
from _training import assert_same, everywhere, without_seconds

import synkhronos as synk
from synk_testing.engine import T, engine
from synkhronos.exceptions import SynkError
from synkhronos.extensions import sync, updates
from synkhronos.extensions.train import (
    CheckpointError,
    EarlyStopping,
    Trainer,
    make_train_function,
    make_train_function_theano,
)


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
        (None, "callback or sync: SyncRule in the checkpoint, none here"),
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


def test_the_first_step_gives_all_ranks_the_masters_parameters(two_ranks):
    model = Linear()
    rule = sync.easgd(model.params, every=1)
    synk.set_value(1, model.w, np.full(3, 9.0))
    rule.step(synk.delayed.gather(model.w))
    replicas = together(everywhere(model.params))
    np.testing.assert_array_equal(replicas, [START, START])
    np.testing.assert_array_equal(together(everywhere(rule.centre)), [START, START])


@pytest.mark.parametrize("name", RULES)
def test_a_synchronisation_that_fails_changes_nothing_and_the_step_did_not_happen(two_ranks, name):
    p = engine.shared(np.zeros(3), name="p")
    taken = engine.shared(0.0, name="taken")
    rule = RULES[name](p, every=2)
    step = synk.function([], updates=[(taken, taken + 1)])
    rule.step(step)
    synk.set_value(0, p, np.full(3, 2.0))
    synk.set_value(1, p, np.full(4, 4.0))  # which no rule can combine with three elements
    centre = everywhere(rule.centre) if rule.centre else None
    with pytest.raises((SynkError, ValueError)):
        rule.step(step)
    np.testing.assert_array_equal(synk.gather(taken), [1, 1])
    for rank, value in enumerate([np.full(3, 2.0), np.full(4, 4.0)]):
        np.testing.assert_array_equal(synk.get_value(rank, p), value)
    if centre:
        np.testing.assert_array_equal(everywhere(rule.centre), centre)
    assert rule.steps == 1
    with pytest.raises((SynkError, ValueError)):
        rule.settle()
    assert rule.steps == 1
    synk.set_value(1, p, np.full(3, 4.0))
    rule.step(step)
    assert rule.steps == 0
    np.testing.assert_array_equal(synk.gather(taken), [2, 2])
    expected = {
        "average": [[3.0] * 3] * 2,
        "downpour": [[6.0] * 3] * 2,
        "easgd": [[1.1] * 3, [2.2] * 3],
    }[name]
    np.testing.assert_allclose(synk.gather(p), expected, rtol=1e-15)


def test_a_local_step_that_fails_is_not_counted(two_ranks):
    model, (x, y) = Linear(), rows()
    train = synk.function([model.x, model.y], model.loss, updates=model.sgd())
    rule = sync.average(model.params, every=2)
    rule.step(train.delayed(x, y))
    before = everywhere(model.params)
    with pytest.raises((SynkError, ValueError)):
        rule.step(train.delayed(x, y[:-1]))
    np.testing.assert_array_equal(together(everywhere(model.params)), together(before))
    assert rule.steps == 1


@pytest.mark.parametrize("make", RULES.values())
def test_bad_arguments_are_refused(two_ranks, make):
    p, n = engine.shared(np.zeros(3), name="p"), engine.shared(np.arange(3), name="n")
    for error, message, params, every in (
        *(
            (ValueError, f"every is {every}; expected at least 1 step", p, every)
            for every in (0, -2)
        ),
        *((TypeError, "number of steps, an integer", p, every) for every in (1.5, "2", None, True)),
        (TypeError, "parameter n has dtype int64; expected a floating-point", [p, n], 2),
        (TypeError, r"params\[0\] is .*expected a .* shared variable", [T.dvector()], 2),
        (ValueError, "params is empty", [], 2),
        (ValueError, "parameter p is listed twice", [p, p], 2),
    ):
        with pytest.raises(error, match=message):
            make(params, every)
    rule = make(p, np.int64(2))
    with pytest.raises(TypeError, match=r"expected f\.delayed"):
        rule.step(3)
    with pytest.raises(TypeError, match="nothing to do"):
        rule.step()
    rule.settle()  # before the first step there is nothing to settle
    np.testing.assert_array_equal(synk.gather(p), np.zeros((2, 3)))
    assert rule.steps == 0
    assert repr(rule) == f"<sync.{rule.name} of 1 variables, every 2 steps, 0 since the last time>"


def test_an_alpha_with_which_nothing_approaches_is_refused(two_ranks):
    p = engine.shared(np.zeros(3), name="p")
    for alpha in [0, -0.1, 2 / 3, float("nan"), float("inf")]:
        with pytest.raises(ValueError, match=r"on 2 ranks .* 2 / \(ranks \+ 1\) = 0.667.*0.45"):
            sync.easgd(p, 2, alpha)
    for alpha in ("0.1", True, T.dscalar()):
        with pytest.raises(TypeError, match=r"alpha is .*expected a number"):
            sync.easgd(p, 2, alpha)


def test_a_training_step_refuses_an_unfit_rule(two_ranks):
    model = Linear()
    arguments = (model.loss, model.params, [model.x, model.y], updates.sgd, RATE)
    with pytest.raises(ValueError, match=r"does not combine the parameter b; make the rule with"):
        make_train_function(*arguments, sync=sync.average(model.w, 2))
    with pytest.raises(TypeError, match=r"sync is .*expected a rule"):
        make_train_function(*arguments, sync=sync.average)


def test_a_rule_ends_with_its_runtime():
    """The last one: it ends that of the tests before."""
    rule = sync.average(engine.shared(np.zeros(3), name="p"), 2)
    step = synk.function([], rule.params[0].sum())
    rule.step(step)
    synk.close()
    with pytest.raises(SynkError, match=r"fork\(\)"):
        rule.step(step)
    assert rule.steps == 1
