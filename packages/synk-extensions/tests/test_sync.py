"""The rules of `extensions.sync` over one to four ranks give the numbers of their formulas."""

from __future__ import annotations

import numpy as np
import pytest
from _sync import RATE, RULES, Linear, Ranks, no_warning, require_equal, rows, together
from _training import everywhere, forked

import synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.extensions.batches import index_batches
from synkhronos.extensions.train import make_train_function

KINDS = [("average", 3, None), ("easgd", 1, 0.1), ("easgd", 2, None), ("downpour", 4, None)]
SIZES = [3, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 2, 4))]
BATCH = 9  # of 41 rows: uneven shares on 2 and 4 ranks, five rows in the last batch


@pytest.fixture(scope="module", params=SIZES, ids=lambda n: f"{n}-ranks")
def ranks(request):
    with forked(request.param):
        yield request.param


def made(name, params, every, alpha):
    more = {} if alpha is None else {"alpha": alpha}
    return RULES[name](params, every, **more)


def expected_of(size, name, every, alpha, mu=0.0):
    return Ranks(size, name, every, 0.9 / size if alpha is None else alpha, mu)


def batches(count=2):
    rng = np.random.RandomState(5)
    chosen = [b for _ in range(count) for b in index_batches(41, BATCH, rng)]
    return [*chosen, np.array([7, 3]), np.array([11]), np.arange(4, 40)]


@pytest.mark.parametrize(("name", "every", "alpha"), KINDS)
def test_rules_with_a_function_of_ones_own(ranks, name, every, alpha):
    model, (x, y) = Linear(), rows()
    with no_warning():
        train = synk.function([model.x, model.y], model.loss, updates=model.sgd())
        rule = made(name, model.params, every, alpha)
        expected = expected_of(ranks, name, every, alpha)
        x_data, y_data = train.build_inputs(x, y)
        for batch in batches():
            (loss,) = rule.step(train.delayed(x_data, y_data, batch=batch))
            expected.step(x[batch], y[batch])
            require_equal(rule, expected)
        assert float(loss) > 0
        rule.settle()
        expected.settle()
        require_equal(rule, expected)
        rule.step(train.delayed(x, y))
        expected.step(x, y)
        require_equal(rule, expected)


@pytest.mark.parametrize(("name", "every", "alpha"), KINDS[::2])
@pytest.mark.parametrize("flat", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_rules_in_a_training_step(ranks, name, every, alpha, flat):
    model, (x, y) = Linear(), rows()
    with no_warning():
        rule = made(name, model.params, every, alpha)
        train = make_train_function(
            *(model.loss, model.params, [model.x, model.y], updates.momentum, RATE),
            momentum=0.8,
            flat=flat,
            sync=rule,
        )
        expected = expected_of(ranks, name, every, alpha, mu=0.8)
        velocities = [train.state.optimizer[i] for i in (0, 1)]
        chosen = batches()
        for batch, loss in zip(chosen, train.steps(*train.build_inputs(x, y), chosen)):
            shares = np.array_split(batch, ranks)
            residuals = [
                x[share] @ replica[:-1] + replica[-1] - y[share]
                for share, replica in zip(shares, expected.replicas)
            ]
            expected.step(x[batch], y[batch])
            assert float(loss) == pytest.approx(np.mean(np.concatenate(residuals) ** 2), rel=1e-12)
            require_equal(rule, expected)
            found = together(everywhere(velocities))
            np.testing.assert_allclose(found, expected.velocities, rtol=1e-11, atol=1e-12)
