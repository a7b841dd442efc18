"""Ten steps of each wrapper equal those of PyTorch's CPU optimisers.

test_updates.py has each rule's formula. torch_reference.json has PyTorch's numbers, in the
settings in which the definitions agree:

* epsilon is 0, because PyTorch adds it at another place than the paper of Adam does;
* ``clip_grad_norm_`` divides by the norm plus 1e-6 and ``renorm`` by the norm plus 1e-7: their
  limits were made larger by the same factor, which leaves the ratio of limit and norm.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from _update_graphs import MODE, TOLERANCE, loss_of, make_params
from _update_problem import data

from synk_testing.engine import T, engine
from synkhronos.extensions import updates

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


def _steps(rule, settings):
    """Yield the elements of all parameters, end to end, after each of ten steps."""
    x = T.dmatrix("x")
    params = make_params()
    split = rule(loss_of(x, *params), params, **settings)
    f_grad = engine.function([x], updates=split.grad_updates, mode=MODE)
    f_step = engine.function([], updates=split.param_updates, mode=MODE)
    for batch in data():
        f_grad(batch)
        f_step()
        yield np.concatenate([param.get_value().ravel() for param in params])


def test_every_case_is_there_and_none_is_like_another():
    """A setting that did nothing would make its case like the one without it."""
    assert set(REFERENCE["cases"]) == set(CASES)
    assert REFERENCE["torch"].split(".")[0].isdecimal()
    for one, other in itertools.combinations(REFERENCE["cases"].values(), 2):
        assert np.abs(np.subtract(one["10"], other["10"])).max() > 1e-4


@pytest.mark.parametrize("name", CASES)
def test_ten_steps_equal_the_recorded_ones_of_pytorch(name):
    steps, expected = list(_steps(*CASES[name])), REFERENCE["cases"][name]
    assert list(expected) == ["1", "2", "10"]
    for number, values in expected.items():
        np.testing.assert_allclose(steps[int(number) - 1], values, rtol=0, atol=TOLERANCE)
