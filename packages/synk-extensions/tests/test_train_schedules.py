"""Learning rates against PyTorch's schedulers: torch_schedules.json has the numbers of each of 13
epochs (ReduceLROnPlateau with threshold_mode="abs")."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from _training import Model, assert_same, dataset, numpy_training, plain

from synkhronos.extensions import updates
from synkhronos.extensions.train import (
    ReduceOnPlateau,
    cosine,
    exponential,
    find_learning_rate,
    step_decay,
    warm_up,
)

EPOCHS = 13
PYTORCH = json.loads(Path(__file__).with_name("torch_schedules.json").read_text(encoding="utf-8"))


def rates(schedule, n=EPOCHS):
    return [schedule(t) for t in range(n)]


def test_schedules_refuse_senseless_arguments():
    for make, error in [
        (lambda: step_decay(0.1, 0), ValueError),
        (lambda: cosine(0.1, 0), ValueError),
        (lambda: warm_up(0.1, 0), ValueError),
        (lambda: ReduceOnPlateau(0.1, patience=0), ValueError),
        (lambda: ReduceOnPlateau(0.1, factor=1.0), ValueError),
        (lambda: step_decay(0.01, 0.5, 5), TypeError),  # its last two exchanged
        (lambda: step_decay(0.01, None), TypeError),
        (lambda: cosine(0.1, [5]), TypeError),
        (lambda: warm_up(0.1, None), TypeError),
        (lambda: ReduceOnPlateau(0.1, patience="2"), TypeError),
    ]:
        with pytest.raises(error, match="; expected" if error is ValueError else None):
            make()


@pytest.mark.parametrize("t_kept", [1, 4, 7])
def test_plateau_goes_on_from_its_state_also_within_a_warm_up(t_kept):
    losses = np.random.RandomState(0).rand(40)

    def make():
        return warm_up(ReduceOnPlateau(1.0, 0.5, patience=2, cooldown=1), 3)

    whole, first, second = make(), make(), make()
    expected, got = [], []
    for t, loss in enumerate(losses):
        if t == t_kept:
            second.load_state(first.state())
        half = first if t < t_kept else second
        for schedule, rates in ((whole, expected), (half, got)):
            rates.append(schedule(t))
            schedule.observe(loss)
    assert got == expected
    assert len(set(expected)) > 4


@pytest.mark.parametrize("by, expected", [("epoch", [0, 1]), ("step", [0, 1, 2, 3])])
def test_the_schedule_decides_the_rate_of_each_epoch_or_step(by, expected):
    asked, wrong, model = [], {}, Model()

    def schedule(t):
        asked.append(t)
        return wrong.get(t, 0.1 / (1 + t))

    how = {"learning_rate": model.rate, "schedule": schedule, "schedule_by": by}
    trainer = plain(model, 25, callbacks=[lambda *_: model.rate.set_value(0.5)], **how)
    history = trainer.run(2)
    assert asked == expected
    assert history["learning_rate"][-1] == 0.1 / (1 + expected[-1])
    for value, error, message in [
        (None, TypeError, "not 'NoneType'"),
        (float("nan"), ValueError, f"rate for {by} {len(expected)} is nan; expected"),
    ]:
        wrong[len(expected)] = value
        with pytest.raises(error, match=message):
            trainer.run(3)
        assert trainer.step == 4


@pytest.mark.parametrize(
    "name, schedule",
    {
        "step": step_decay(0.3, 4, 0.2),
        "steps": step_decay(0.3, [2, 3, 9], 0.2),
        "exponential": exponential(0.3, 0.8),
        "cosine": cosine(0.3, EPOCHS, 0.02),
        "warm-up": warm_up(0.3, 5, 0.25),
        "warm-up, exponential": warm_up(exponential(0.3, 0.8), 5, 0.25),
    }.items(),
)
def test_rates_are_those_of_pytorch(name, schedule):
    expected = PYTORCH["schedules"][name]
    assert len(set(expected)) > 2
    np.testing.assert_allclose(rates(schedule), expected, rtol=1e-12)


@pytest.mark.parametrize("case", PYTORCH["plateaus"])
def test_plateaus_are_those_of_pytorch(case):
    schedule = ReduceOnPlateau(
        0.3,
        factor=0.5,
        patience=case["patience"] + 1,  # PyTorch's acts when more than these have passed
        min_delta=case["threshold"],
        cooldown=case["cooldown"],
        lowest=0.02,
    )
    got = []
    for loss in case["losses"]:
        got.append(schedule(0))
        schedule.observe(loss)
    assert len(set(got)) > 2
    np.testing.assert_allclose(got, case["rates"], rtol=1e-12)


def test_a_range_test_takes_steps_at_growing_rates_and_undoes_them():
    model = Model(rule=updates.sgd)
    before = model.values()
    found = find_learning_rate(model.train, model.rate, dataset(), 20, 1e-4, 0.5, steps=30)
    np.testing.assert_allclose(found.rates, np.geomspace(1e-4, 0.5, 30)[: len(found.losses)])
    np.testing.assert_allclose(found.losses, numpy_training(found.rates, 20)[0], rtol=1e-9)
    assert_same(model.values(), before)
    averages, average = [], 0.0
    for count, loss in enumerate(found.losses, 1):
        average = 0.9 * average + 0.1 * loss
        averages.append(average / (1 - 0.9**count))
    np.testing.assert_allclose(found.smoothed, averages)
    assert found.suggestion == found.rates[np.argmin(averages)] / 10
    # It ends where the loss grows, or is not finite.
    found = find_learning_rate(model.train, model.rate, dataset(), 20, 1e-2, 1e4, steps=60)
    assert len(found.losses) < 60
    assert found.smoothed[-1] > 4 * found.smoothed.min()
    found = find_learning_rate(model.train, model.rate, dataset(), 20, 1e200, 1e300, steps=60)
    assert len(found.losses) < 10
    assert found.suggestion is None
    assert_same(model.values(), before)
    given = {"train": model.train, "learning_rate": model.rate, "data": dataset(), "batch_size": 20}
    for arguments, error, text in [
        ({"train": print}, TypeError, "train is .*expected a result of make_train_function"),
        ({"learning_rate": 0.1}, TypeError, "learning_rate is 0.1"),
        ({"lowest": 0.0}, ValueError, "expected 0 < lowest < highest"),
        ({"highest": float("nan")}, ValueError, "highest"),
        ({"steps": 1}, ValueError, "steps is 1; expected at least 2"),
        ({"steps": "many"}, TypeError, "not supported between"),
        ({"batch_size": 0}, ValueError, "batch_size"),
    ]:
        with pytest.raises(error, match=text):
            find_learning_rate(**{**given, **arguments})
    assert_same(model.values(), before)
