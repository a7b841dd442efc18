"""The rules of `extensions.sync` in use: warnings, failures, and bad arguments."""

from __future__ import annotations

import numpy as np
import pytest
from _sync import RATE, RULES, START, Linear, rows, together
from _training import everywhere, forked

import synkhronos as synk
from synk_testing.engine import T, engine
from synkhronos.exceptions import SynkError
from synkhronos.extensions import sync, updates
from synkhronos.extensions.train import make_train_function


@pytest.fixture(scope="module")
def two_ranks():
    with forked(2):
        yield


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
    # With the cause gone it is made up for.
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


def test_a_training_step_refuses_what_does_not_fit_it(two_ranks):
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
