"""Learning rates against the closed formulas of papers, and against PyTorch's schedulers.

torch_schedules.json has the numbers of StepLR, MultiStepLR, ExponentialLR, CosineAnnealingLR,
LinearLR and SequentialLR, before each of 13 epochs.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from _training import Model, plain

from synkhronos.extensions.train import cosine, exponential, step_decay, warm_up

EPOCHS = 13
PYTORCH = json.loads(Path(__file__).with_name("torch_schedules.json").read_text(encoding="utf-8"))


def test_schedules_refuse_what_makes_no_sense():
    for make, error in [
        (lambda: step_decay(0.1, 0), ValueError),
        (lambda: cosine(0.1, 0), ValueError),
        (lambda: warm_up(0.1, 0), ValueError),
        (lambda: step_decay(0.01, 0.5, 5), TypeError),  # its last two exchanged
        (lambda: step_decay(0.01, None), TypeError),
        (lambda: cosine(0.1, [5]), TypeError),
        (lambda: warm_up(0.1, None), TypeError),
    ]:
        with pytest.raises(error, match="; expected" if error is ValueError else None):
            make()


@pytest.mark.parametrize("by, expected", [("epoch", [0, 1]), ("step", [0, 1, 2, 3])])
def test_the_schedule_decides_the_rate_of_each_epoch_or_step(by, expected):
    """Whatever a callback sets in between; a value that is no rate ends the run before."""
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
    rates = [schedule(t) for t in range(EPOCHS)]
    np.testing.assert_allclose(rates, expected, rtol=1e-12)
