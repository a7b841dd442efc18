"""The rules of `extensions.sync` over one to four ranks: the same numbers as their formulas in
NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from _sync import (
    RATE,
    RULES,
    START,
    Linear,
    Ranks,
    gradient,
    no_warning,
    require_equal,
    rows,
    together,
)
from _training import everywhere

import synkhronos as synk
from synk_testing.engine import engine
from synkhronos.extensions import sync, updates
from synkhronos.extensions.batches import index_batches
from synkhronos.extensions.train import make_train_function

KINDS = [
    ("average", 1, None),
    ("average", 3, None),
    ("easgd", 1, 0.1),
    ("easgd", 2, None),
    ("easgd", 5, 0.35),
    ("downpour", 1, None),
    ("downpour", 4, None),
]
SIZES = [1, 2, 3, 4]
BATCH = 9  # of 41 rows: uneven shares on 2 and 4 ranks, five rows in the last batch


@pytest.fixture(scope="module", params=SIZES, ids=lambda n: f"{n}-ranks")
def ranks(request):
    synk.fork(request.param, use_gpu=False, verbose=False)
    yield request.param
    synk.close()


def made(name, params, every, alpha):
    more = {} if alpha is None else {"alpha": alpha}
    return RULES[name](params, every, **more)


def expected_of(size, name, every, alpha, mu=0.0):
    return Ranks(size, name, every, 0.9 / size if alpha is None else alpha, mu)


def batches(count=2):
    """Batches of two epochs, and some with fewer rows than ranks."""
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
        # It goes on from there.
        rule.step(train.delayed(x, y))
        expected.step(x, y)
        require_equal(rule, expected)
        assert synk.lint() == []


@pytest.mark.parametrize(("name", "every", "alpha"), KINDS[1::2])
@pytest.mark.parametrize("flat", [False, True])
def test_rules_in_a_training_step(ranks, name, every, alpha, flat):
    model, (x, y) = Linear(), rows()
    with no_warning():
        rule = made(name, model.params, every, alpha)
        train = make_train_function(
            model.loss,
            model.params,
            [model.x, model.y],
            updates.momentum,
            RATE,
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
        assert synk.lint() == []


def test_slices_of_a_local_step_add_up_to_its_gradient(ranks):
    """Also with a rule whose step is no linear function of the gradient."""
    x, y = rows()
    found = []
    for num_slices in (1, 3):
        model = Linear()
        rule = sync.easgd(model.params, every=2)
        train = make_train_function(
            model.loss, model.params, [model.x, model.y], updates.adam, 0.1, sync=rule
        )
        for batch in batches(1):
            train(x, y, batch=batch, num_slices=num_slices)
        found.append(together(everywhere([*model.params, *train.state.optimizer])))
    np.testing.assert_allclose(*found, rtol=1e-9, atol=1e-12)


def test_shares_that_stay_on_their_ranks_in_an_order_of_each_rank(ranks):
    """As in Platoon each worker draws minibatches from its own part of the data."""
    model, (x, y) = Linear(), rows(40)
    x_part, y_part = engine.shared(x), engine.shared(y)
    synk.scatter([x_part, y_part], [x, y])
    givens = [(model.x, x_part), (model.y, y_part)]
    train = synk.function(
        [],
        model.loss,
        updates=model.sgd(),
        givens=givens,
        sliceable_shareds=[x_part, y_part],
    )
    rule = sync.average(model.params, every=2)
    lengths = synk.get_lengths(x_part)
    orders = [index_batches(n, 3, np.random.RandomState(i)) for i, n in enumerate(lengths)]
    replicas, since = np.tile(START, (ranks, 1)), 0
    starts = np.cumsum([0, *lengths])
    for of_ranks in zip(*orders):
        rule.step(train.delayed(batch_s=list(of_ranks)))
        for rank, batch in enumerate(of_ranks):
            own = starts[rank] + batch
            replicas[rank] = replicas[rank] - RATE * gradient(replicas[rank], x[own], y[own])
        since += 1
        if since % 2 == 0:
            replicas = np.tile(replicas.mean(axis=0), (ranks, 1))
        np.testing.assert_allclose(together(everywhere(model.params)), replicas, rtol=1e-12)
    assert since == 40 // ranks // 3 + (40 // ranks % 3 > 0)


def test_an_average_after_each_step_of_gradient_descent_is_the_serial_step(ranks):
    """If all ranks have the same number of rows."""
    model, (x, y) = Linear(), rows(36)
    rule = sync.average(model.params, every=1)
    train = make_train_function(
        model.loss, model.params, [model.x, model.y], updates.sgd, RATE, sync=rule
    )
    theta = START
    for _ in range(5):
        train(x, y)
        theta = theta - RATE * gradient(theta, x, y)
    np.testing.assert_allclose(together(everywhere(model.params)), [theta] * ranks, rtol=1e-13)


@pytest.mark.parametrize("name", RULES)
def test_many_parameters_of_two_dtypes(ranks, name):
    """So many that their updates are computed as one."""
    rng = np.random.RandomState(1)
    shapes = [(), (3,), (2, 1), (1, 1, 2)] * 20
    dtypes = ["float64"] * 70 + ["float32"] * 10
    values = [np.asarray(rng.randn(*s), d) for s, d in zip(shapes, dtypes)]
    params = [engine.shared(v, name=f"p{i}") for i, v in enumerate(values)]
    rule = RULES[name](params, every=1)
    moved = [[np.asarray(v + rng.randn(*v.shape), v.dtype) for v in values] for _ in range(ranks)]
    nothing = synk.delayed.gather(params[0])
    rule.step(nothing)
    for rank in range(ranks):
        synk.set_value(rank, params, moved[rank])
    rule.step(nothing)
    # The first step has synchronised what was equal.
    before = together([values])[0]
    replicas = together(moved)
    if name == "average":
        expected = np.tile(replicas.mean(axis=0), (ranks, 1))
    elif name == "downpour":
        expected = np.tile(before + (replicas - before).sum(axis=0), (ranks, 1))
    else:
        expected = replicas - 0.9 / ranks * (replicas - before)
        mean = 0.1 * before + 0.9 * replicas.mean(axis=0)
        np.testing.assert_allclose(together(everywhere(rule.centre)), [mean] * ranks, 1e-6, 1e-6)
    found = everywhere(params)
    exact = sum(v.size for v in values[:70])
    np.testing.assert_allclose(together(found)[:, :exact], expected[:, :exact], 1e-12, 1e-12)
    np.testing.assert_allclose(together(found), expected, rtol=1e-5, atol=1e-6)
    assert [v.dtype for v in found[0]] == dtypes
