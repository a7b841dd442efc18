"""Clipping, decay, constraints and averages around a rule: their numbers, and PyTorch's.

In torch_reference.json epsilon is 0, because PyTorch adds it at another place than the paper of
Adam; and the limits of ``clip_grad_norm_`` and ``renorm`` are larger by the factor that makes up
for the 1e-6 and 1e-7 by which these enlarge a norm.
"""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from _training import Model, assert_close, assert_same, dataset, everywhere, forked
from _update_problem import (
    MODE,
    TOLERANCE,
    data,
    largest_difference,
    loss_of,
    made,
    make_params,
    run_split,
    start_values,
)

import synkhronos as synk
from synk_testing.engine import IS_THEANO, T, engine
from synkhronos.extensions import updates
from synkhronos.extensions.train import Trainer, make_train_function, make_train_function_theano

RATE = 0.07


def everything(rule):
    rule = updates.weight_decay(rule, 0.3, params=lambda param: param.ndim > 1)
    rule = updates.decoupled_weight_decay(rule, 0.4, lambda param: param.name != "b")
    rule = updates.value_constraint(updates.norm_constraint(rule, 0.9), -0.5, 0.5)
    return updates.clip_by_global_norm(updates.clip_by_value(rule, 0.2), 0.6)


def take_step(split):
    engine.function([], updates=split.grad_updates, mode=MODE)()
    engine.function([], updates=split.param_updates, mode=MODE)()


def test_gradients_that_are_apart_are_changed_like_flat_ones():
    x, found = T.dmatrix("x"), []
    for rule in (updates.sgd, updates.sgd_nonflat):
        params = make_params()
        run_split(everything(rule)(loss_of(x, *params), params, RATE), x)
        found.append(params)
    apart, flat = found
    assert largest_difference(apart, [param.get_value() for param in flat]) <= TOLERANCE


@pytest.mark.parametrize("name", ["adam", "sgd_nonflat"])
def test_values_within_their_bounds_do_not_change_by_one_bit(name):
    x = T.dmatrix("x")
    params, twins = make_params("float32"), make_params("float32")
    rule = updates.clip_by_value(updates.clip_by_global_norm(getattr(updates, name), 1e3), 1e3)
    rule = updates.value_constraint(updates.norm_constraint(rule, 1e3), -1e3, 1e3)
    run_split(rule(loss_of(x, *params), params, learning_rate=RATE), x)
    run_split(getattr(updates, name)(loss_of(x, *twins), twins, learning_rate=RATE), x)
    # PyTensor computes the sums of the norms and what they are of together, and rounds otherwise.
    rounding = 0 if IS_THEANO else 2 * np.finfo(np.float32).eps
    assert largest_difference(params, [twin.get_value() for twin in twins]) <= rounding


def test_zero_gradient_and_zero_weights_are_no_division_by_zero():
    w = engine.shared(np.zeros((3, 2)), name="w")
    rule = updates.norm_constraint(updates.clip_by_global_norm(updates.sgd, 0.5), 0.5)
    take_step(rule(T.sum(w**2), [w], 0.1))
    np.testing.assert_array_equal(w.get_value(), np.zeros((3, 2)))


@pytest.mark.parametrize("name", ["sgd", "sgd_nonflat"])
def test_a_gradient_whose_squares_exceed_float32_is_clipped_to_the_norm(name):
    w = engine.shared(np.zeros(2, "float32"), name="w")
    v = engine.shared(np.zeros(1, "float32"), name="v")
    loss = T.sum(w * np.float32([3e30, 0])) + T.sum(v * np.float32(4e30))
    take_step(updates.clip_by_global_norm(getattr(updates, name), 5)(loss, [w, v], 1.0))
    np.testing.assert_allclose(w.get_value(), [-3, 0], rtol=1e-6)
    np.testing.assert_allclose(v.get_value(), [-4], rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["amsgrad", pytest.param("adamax", marks=pytest.mark.nightly), "sgd_nonflat"]
)
def test_a_gradient_that_is_not_a_number_is_not_hidden(name):
    w = engine.shared(np.ones((2, 2)), name="w")
    v = engine.shared(np.ones(2), name="v")
    rule = updates.clip_by_global_norm(getattr(updates, name), 1.0)
    rule = updates.value_constraint(updates.norm_constraint(rule, 1.0), -1.0, 1.0)
    take_step(rule([np.full((2, 2), 0.5), np.array([0.5, np.nan])], [w, v], learning_rate=0.1))
    assert np.isnan(w.get_value()).all()
    assert np.isnan(v.get_value()).all()


@pytest.mark.parametrize("dtype, floatx", [("float32", "float64"), ("float64", "float32")])
def test_everything_stays_in_the_parameters_dtype(dtype, floatx):
    rule = everything(updates.amsgrad)
    _, split = made(floatx, dtype, rule, learning_rate=RATE)
    for target, expression in split.grad_updates + split.param_updates:
        assert expression.broadcastable == target.broadcastable


def test_parameters_of_several_dtypes_are_clipped_together():
    narrow = engine.shared(np.zeros(1, "float32"), name="narrow")
    wide = engine.shared(np.zeros(1, "float64"), name="wide")
    rule = updates.clip_by_global_norm(updates.sgd_nonflat, 1.0)
    rule = updates.value_constraint(updates.weight_decay(rule, 0.1), low=-0.7)
    take_step(rule(3 * narrow.sum() + 4 * wide.sum(), [narrow, wide], 1.0))
    assert narrow.dtype == "float32"
    np.testing.assert_allclose(narrow.get_value(), [-0.6], rtol=1e-6)
    np.testing.assert_allclose(wide.get_value(), [-0.7], rtol=1e-15)


@pytest.mark.parametrize(
    "build, wrong, right",
    [
        (updates.clip_by_global_norm, 9.0, 0.5),
        (updates.clip_by_value, 9.0, 0.25),
        (updates.weight_decay, 9.0, 0.125),
        (updates.decoupled_weight_decay, 9.0, 0.125),
        (updates.norm_constraint, 9.0, 0.125),
        (lambda rule, bound: updates.value_constraint(rule, low=bound), 9.0, -0.125),
        (lambda rule, bound: updates.value_constraint(rule, high=bound), -9.0, -0.2),
    ],
    ids=["global-norm", "value", "decay", "decoupled", "norm-constraint", "low", "high"],
)
def test_numbers_may_be_shared_variables_that_change(build, wrong, right):
    start, gradient = np.array([0.3, -0.4, 0.2]), np.array([0.6, -0.3, 0.1])
    number, found = engine.shared(np.float32(wrong), name="number"), []
    for bound in (right, number):
        w = engine.shared(start[:, np.newaxis], name="w")
        split = build(updates.sgd, bound)([gradient[:, np.newaxis]], [w], 1.0)
        number.set_value(np.float32(right))
        take_step(split)
        found.append(w.get_value())
    np.testing.assert_allclose(*found, rtol=1e-7)
    number.set_value(np.float32(wrong))
    engine.function([], updates=split.param_updates, mode=MODE)()
    assert np.abs(w.get_value() - (2 * found[0] - start[:, np.newaxis])).max() > 1e-4


def _own_rule(loss, params, gain, learning_rate=0.5):
    return updates.sgd(loss, params, gain * learning_rate)


def test_decoupled_decay_finds_the_learning_rate():
    partial = functools.partial(updates.sgd, lr=0.25)
    for rule, args, kwargs, rate in [
        (updates.sgd, (0.5,), {}, 0.5),
        (updates.sgd, (), {"learning_rate": 0.5}, 0.5),
        (updates.sgd, (), {"lr": 0.5}, 0.5),
        (updates.sgd, (engine.shared(0.5),), {}, 0.5),
        (updates.adadelta, (), {}, 1.0),
        (functools.partial(updates.sgd, learning_rate=0.5), (), {}, 0.5),
        (partial, (), {}, 0.25),
        (partial, (), {"lr": 0.5}, 0.5),
        (updates.clip_by_value(partial, 1.0), (), {}, 0.25),
        (updates.weight_decay(updates.clip_by_value(updates.adadelta, 1.0), 0), (), {}, 1.0),
        (_own_rule, (1.0,), {}, 0.5),
        (_own_rule, (1.0, 0.75), {}, 0.75),
    ]:
        w = engine.shared(np.full(3, 2.0), name="w")
        take_step(updates.decoupled_weight_decay(rule, 0.125)([np.zeros(3)], [w], *args, **kwargs))
        np.testing.assert_allclose(w.get_value(), np.full(3, 2.0 * (1 - rate * 0.125)), rtol=1e-15)


def test_decoupled_decay_without_a_learning_rate_is_asked_for_by_name():
    def fixed(loss, params):
        return updates.sgd(loss, params, 0.5)

    w = engine.shared(np.full(3, 2.0), name="w")
    with pytest.raises(TypeError, match=r"'fixed' has no argument learning_rate.*=False"):
        updates.decoupled_weight_decay(fixed, 0.125)(T.sum(w), [w])
    rule = updates.decoupled_weight_decay(fixed, 0.125, times_learning_rate=False)
    take_step(rule([np.zeros(3)], [w]))
    np.testing.assert_array_equal(w.get_value(), np.full(3, 1.75))


def test_norms_are_taken_over_the_axes():
    for shape, norm_axes, over in [
        ((4, 3), None, (0,)),
        ((4, 3, 2), None, (1, 2)),
        ((4, 3, 2, 2, 1), None, (1, 2, 3, 4)),
        ((4, 3), 1, (1,)),
        ((4, 3), [0, 1], (0, 1)),
        ((4, 3, 2), (-1,), (2,)),
        ((5,), 0, (0,)),
        ((2, 2, 2, 1, 1, 2), (5, -6), (0, 5)),
    ]:
        start = np.random.RandomState(3).randn(*shape)
        w = engine.shared(start, name="w")
        rule = updates.norm_constraint(updates.sgd, 0.8, norm_axes, params=[w])
        split = rule([np.zeros(shape)], [w], 1.0)
        engine.function([], updates=split.param_updates, mode=MODE)()
        norms = np.sqrt((start**2).sum(axis=over, keepdims=True))
        np.testing.assert_allclose(w.get_value(), start * np.minimum(1, 0.8 / norms), rtol=1e-14)
        assert (norms > 0.8).any()


def test_a_rule_of_ones_own_is_wrapped_as_well():
    steps = engine.shared(0.0, name="steps")

    def own(loss, params, learning_rate):
        grads, moves, flat = updates.sgd(loss, params, learning_rate)
        return grads, {**dict(moves), steps: steps + 1}, flat

    w, frozen = engine.shared(np.full(3, 2.0), name="w"), engine.shared(9.0, name="frozen")
    rule = updates.value_constraint(updates.clip_by_value(own, 0.5), high=1.75)
    take_step(rule(T.sum(w * [1.0, 0.25, 0.125]) + 0 * frozen, [w], 1.0))
    np.testing.assert_array_equal(w.get_value(), [1.5, 1.75, 1.75])
    assert steps.get_value() == 1
    assert rule.__name__ == "value_constraint(clip_by_value(own))"


def test_the_choice_of_parameters_may_be_an_iterator():
    x = T.dmatrix("x")
    params, again = make_params(), make_params()
    for group in (params, again):
        rule = updates.weight_decay(updates.sgd, 0.5, params=iter(group[:2]))
        run_split(rule(loss_of(x, *group), iter(group), RATE), x)
        split = rule(loss_of(x, *group), group, RATE)  # the choice is not used up
        assert split.param_updates
    assert largest_difference(params, [p.get_value() for p in again]) == 0


def _apply(wrapped, *params):
    return wrapped(sum(T.sum(param) for param in params), list(params), 0.1)


def test_errors_name_the_given_and_the_expected():
    w, other = (engine.shared(np.ones(3), name=name) for name in ("w", "other"))

    def own(_loss, _params, learning_rate):
        """Move other parameters than asked to."""
        return updates.sgd(T.sum(w) + T.sum(other), [w, other], learning_rate)

    sgd, called = updates.sgd, _apply(updates.sgd, w)
    decay, decoupled = updates.weight_decay, updates.decoupled_weight_decay
    norm, value, average = updates.norm_constraint, updates.value_constraint, updates.moving_average
    by_norm, by_value = updates.clip_by_global_norm, updates.clip_by_value
    dictionary = by_value(lambda *_: {}, 1.0)
    axes = r"norm_axes=\(1,\) for the parameter w with 1 dimensions; expected .* -1 and 0"
    for message, build in [
        ("got a int as the rule.*not yet called", lambda: decay(1, 2)),
        ("clip_by_value.. got a SplitUpdates as the rule", lambda: by_value(called, 1.0)),
        ("got a TensorVariable as the rule", lambda: norm(T.sum(w), 1.0)),
        ("returned a dict; expected .grad_updates, param_up", lambda: _apply(dictionary, w)),
        ("max_value is None of type NoneType; expected a number or", lambda: by_value(sgd, None)),
        ("got 'W' of type str in its params; expected", lambda: decay(sgd, 0.1, params=["W"])),
        ("got 3 of type int in its params", lambda: value(sgd, 0, params=3)),
        ("norm_axes is 'columns'; expected an integer or", lambda: norm(sgd, 1.0, "columns")),
        ("neither low nor high", lambda: value(sgd)),
        ("decay is 'a'", lambda: average(sgd, "a")),
        ("got a float as the rule", lambda: average(0.9)),
        ("both lr and learning_rate", lambda: by_value(sgd, 1.0)(T.sum(w), [w], 0.1, lr=0.1)),
    ]:
        with pytest.raises(TypeError, match=message):
            build()
    for message, build in [
        ("by_global_norm: max_norm is 0; expected a number larger than 0", lambda: by_norm(sgd, 0)),
        ("max_norm is nan; expected", lambda: norm(sgd, float("nan"))),
        ("decay is -1; expected a number of at least 0", lambda: decoupled(sgd, -1)),
        ("decay is w with 1 dimensions; expected a scalar", lambda: decay(sgd, w)),
        ("got other in its params, which is not", lambda: _apply(decay(sgd, 0.1, [w, other]), w)),
        ("norm_constraint.. select none of the rule's", lambda: _apply(norm(sgd, 1.0), w)),
        ("w with 1 dimensions, for which", lambda: _apply(norm(sgd, 1.0, params=w), w)),
        (axes, lambda: _apply(norm(sgd, 1.0, 1, params=[w]), w)),
        (r"norm_axes=\(0, -1\) for", lambda: _apply(norm(sgd, 1.0, (0, -1), params=[w]), w)),
        ("low=1 and high=0; expected low <= high", lambda: value(sgd, 1, 0)),
        ("decay is 1; expected a num", lambda: average(sgd, 1)),
        ("decay is -0.1; expected", lambda: average(sgd, -0.1)),
        ("of rule 'own' has 6 elements; expected 3", lambda: _apply(decay(own, 0.1), w)),
    ]:
        with pytest.raises(ValueError, match=message):
            build()


REFERENCE = json.loads(Path(__file__).with_name("torch_reference.json").read_text(encoding="utf-8"))
MOMENTUM = {"learning_rate": 0.05, "momentum": 0.8}
ADAM = {"learning_rate": 0.02, "beta1": 0.8, "beta2": 0.95, "epsilon": 0}


def _is_matrix(param):
    return param.ndim > 1


decoupled = updates.decoupled_weight_decay


def several(rule):
    rule = decoupled(updates.clip_by_global_norm(rule, 0.6), 0.4)
    return updates.value_constraint(updates.norm_constraint(rule, 0.9), -0.3, 0.4)


# PyTorch's case -> (the same rule here, its settings)
CASES = {
    "momentum, clip_grad_norm_": (updates.clip_by_global_norm(updates.momentum, 0.6), MOMENTUM),
    "momentum, clip_grad_value_": (updates.clip_by_value(updates.momentum, 0.2), MOMENTUM),
    "momentum, weight_decay": (updates.weight_decay(updates.momentum, 0.3), MOMENTUM),
    "adam, weight_decay of matrices": (updates.weight_decay(updates.adam, 0.3, _is_matrix), ADAM),
    "AdamW": (decoupled(updates.adam, 0.4), ADAM),
    "AdamW of matrices, amsgrad": (decoupled(updates.amsgrad, 0.4, _is_matrix), ADAM),
    "momentum, renorm": (updates.norm_constraint(updates.momentum, 0.9), MOMENTUM),
    "adam, clamp": (updates.value_constraint(updates.adam, -0.3, 0.4), ADAM),
    "clip_grad_norm_, AdamW, renorm, clamp": (several(updates.adam), ADAM),
}


def steps_of(rule, **settings):
    x = T.dmatrix("x")
    params = make_params()
    split = rule(loss_of(x, *params), params, **settings)
    f_grad = engine.function([x], updates=split.grad_updates, mode=MODE)
    f_step = engine.function([], updates=split.param_updates, mode=MODE)
    found = []
    for batch in data():
        f_grad(batch)
        f_step()
        found.append([param.get_value() for param in params])
    return found


def test_every_case_is_there_and_none_is_like_another():
    """A setting that did nothing would make its case like the one without it."""
    assert set(REFERENCE["cases"]) == set(CASES)
    assert REFERENCE["torch"].split(".")[0].isdecimal()
    for one, other in itertools.combinations(REFERENCE["cases"].values(), 2):
        assert np.abs(np.subtract(one["10"], other["10"])).max() > 1e-4


@pytest.mark.parametrize("name", CASES)
def test_ten_steps_equal_the_recorded_ones_of_pytorch(name):
    rule, settings = CASES[name]
    steps, expected = steps_of(rule, **settings), REFERENCE["cases"][name]
    assert list(expected) == ["1", "2", "10"]
    for number, values in expected.items():
        found = np.concatenate([value.ravel() for value in steps[int(number) - 1]])
        np.testing.assert_allclose(found, values, rtol=0, atol=TOLERANCE)


DECAY = 0.8


@pytest.mark.parametrize(
    "rule, symbolic",
    [(updates.sgd_nonflat, True), (updates.norm_constraint(updates.momentum, 0.9), False)],
)
def test_averages_are_those_of_numpy_and_steps_those_of_the_rule(rule, symbolic):
    expected = start_values("float64")
    for values in steps_of(rule, learning_rate=RATE):
        expected = [DECAY * a + (1 - DECAY) * v for a, v in zip(expected, values)]
    x = T.dmatrix("x")
    params = make_params()
    decay = engine.shared(np.float32(DECAY)) if symbolic else DECAY
    tolerance = 1e-6 if symbolic else TOLERANCE
    averaged = updates.moving_average(rule, decay)
    run_split(averaged(loss_of(x, *params), params, learning_rate=RATE), x)
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


def test_a_parameter_that_its_rule_does_not_move_is_its_own_average():
    none = lambda *given: updates.sgd(*given)._replace(param_updates=[])  # noqa: E731
    rule, w = updates.moving_average(none, 0.5), engine.shared(np.ones(3), "w")
    take_step(_apply(rule, w))
    assert rule.averages[w].get_value().tolist() == [1, 1, 1]


def trained(make, epochs, folder=None, resume=False):
    rule = updates.moving_average(updates.adam, DECAY)
    model = Model(make, rule)
    trainer = Trainer(model.train, dataset(), 17, checkpoint=folder, verbose=False)
    trainer.run(epochs, resume=resume)
    return model, list(rule.averages.values()), rule


@pytest.mark.parametrize("flat", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_two_ranks_have_the_averages_of_one_also_in_checkpoints_and_validation(tmp_path, flat):
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
