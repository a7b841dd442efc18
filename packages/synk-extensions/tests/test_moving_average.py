"""Averages of the parameters: those of NumPy, in one process and in two, and in checkpoints."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from _training import Model, assert_close, assert_same, dataset, everywhere, forked
from _update_graphs import TOLERANCE, largest_difference, loss_of, make_params, run_split
from _update_problem import data, start_values

import synkhronos as synk
from synk_testing.engine import T, engine
from synkhronos.extensions import updates
from synkhronos.extensions.train import Trainer, make_train_function, make_train_function_theano

DECAY = 0.8


def steps_of(rule, **settings):
    """The values of all parameters after each step, of the rule alone."""
    x = T.dmatrix("x")
    params = make_params()
    split = rule(loss_of(x, *params), params, learning_rate=0.07, **settings)
    f_grad = engine.function([x], updates=split.grad_updates)
    f_step = engine.function([], updates=split.param_updates)
    found = []
    for batch in data():
        f_grad(batch)
        f_step()
        found.append([param.get_value() for param in params])
    return found


@pytest.mark.parametrize(
    "rule, symbolic",
    [(updates.sgd_nonflat, True), (updates.norm_constraint(updates.momentum, 0.9), False)],
)
def test_averages_are_those_of_numpy_and_steps_those_of_the_rule(rule, symbolic):
    expected = start_values("float64")
    for values in steps_of(rule):
        expected = [DECAY * a + (1 - DECAY) * v for a, v in zip(expected, values)]
    x = T.dmatrix("x")
    params = make_params()
    decay = engine.shared(np.float32(DECAY)) if symbolic else DECAY
    tolerance = 1e-6 if symbolic else TOLERANCE
    averaged = updates.moving_average(rule, decay)
    run_split(averaged(loss_of(x, *params), params, learning_rate=0.07), x)
    assert list(averaged.averages) == params
    averages = list(averaged.averages.values())
    names = [p.name or f"params[{i}]" for i, p in enumerate(params)]
    assert [a.name for a in averages] == [f"average({name})" for name in names]
    assert [a.type for a in averages] == [p.type for p in params]
    assert largest_difference(averages, expected) < tolerance
    assert largest_difference(params, values) < TOLERANCE


def test_only_chosen_parameters_have_averages():
    x = T.dmatrix("x")
    params = make_params("float32")
    rule = updates.clip_by_global_norm(
        updates.moving_average(updates.sgd, 0.5, params=lambda param: param.ndim > 1), 1e9
    )
    split = rule(loss_of(x, *params), params, learning_rate=np.float32(0.07))
    averages = rule.averages  # also through other wrappers
    assert [p.name for p in averages] == [p.name for p in params if p.ndim > 1]
    assert {str(a.dtype) for a in averages.values()} == {"float32"}
    assert len(split.param_updates) == len(params) + len(averages)


def test_wrong_arguments_are_refused():
    for error, message, arguments in [
        (ValueError, "decay is 1; expected a num", (updates.sgd, 1)),
        (ValueError, "decay is -0.1; expected", (updates.sgd, -0.1)),
        (TypeError, "decay is 'a'", (updates.sgd, "a")),
        (TypeError, "got a float as the rule", (0.9,)),
    ]:
        with pytest.raises(error, match=message):
            updates.moving_average(*arguments)


def trained(make, epochs, folder=None, resume=False):
    rule = updates.moving_average(updates.adam, DECAY)
    model = Model(make, rule)
    trainer = Trainer(model.train, dataset(), 17, checkpoint=folder, verbose=False)
    trainer.run(epochs, resume=resume)
    return model, list(rule.averages.values()), rule


@pytest.mark.parametrize("flat", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_two_ranks_have_the_averages_of_one_also_in_checkpoints_and_validation(tmp_path, flat):
    """Moved apart, and by one computation."""
    _, expected, _ = trained(make_train_function_theano, 3)
    expected = [average.get_value() for average in expected]
    make = functools.partial(make_train_function, flat=flat)
    with forked(2):
        _, whole, _ = trained(make, 3)
        trained(make, 1, tmp_path)
        model, averages, rule = trained(make, 3, tmp_path, resume=True)
        names = {average.name for average in model.train.state.optimizer}
        assert names >= {"average(w)", "average(b)"}
        again, once = everywhere(averages), everywhere(whole)
        for values, others in zip(again, once):
            assert_same(values, again[0])
            assert_same(values, others)
            assert_close(values, expected)
        x, y = dataset(9)
        validate = synk.function([model.x, model.y], model.clean, givens=rule.averages)
        loss = ((x @ expected[0] + expected[1] - y) ** 2).mean()
        np.testing.assert_allclose(validate(x, y), loss)
