"""Reminders: forgotten averaging is reported without asking, late averaging is not."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest

from synk_core import LintWarning, Runtime
from synk_core._watch.history import REMINDERS
from synk_testing.engine import T, engine

x = T.dmatrix("x")

FAST = {"mode": "FAST_COMPILE"}
ROWS = np.arange(12.0).reshape(4, 3)


def training(runtime, name="w", has_moment=False):
    """A step with a moment that has no name, as Lasagne's rules make them, or without one."""
    w = engine.shared(np.ones(3), name=name)
    loss = T.sqr(x.dot(w)).mean()
    change, moments = T.grad(loss, w), []
    if has_moment:
        moment = engine.shared(np.zeros(3))
        change = 0.9 * moment + 0.1 * change
        moments = [(moment, change)]
    updates = [*moments, (w, w - 1e-4 * change)]
    return runtime.function([x], loss, updates=updates, name="train", **FAST), w


@contextlib.contextmanager
def quiet():
    """No warning in here."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


DRIFT = (
    r"replicas-drift\]: rank-local updates of 'w' by train are never averaged.* build train "
    r"\(test_history.py:\d+\) with make_train_function.*weights="
)


def test_who_never_averages_is_told_at_the_second_call_once_unless_it_is_declared():
    with Runtime(2) as runtime:
        step, v = training(runtime, "v", has_moment=True)
        with quiet():
            runtime.let_drift(v)
            for _ in range(3):
                step(ROWS)
            assert runtime.lint() == []
        step, _ = training(runtime)
        with quiet():
            step(ROWS)
        with pytest.warns(LintWarning, match=DRIFT) as caught:
            step(ROWS)
        assert caught[0].filename == __file__
        with quiet():
            for _ in range(REMINDERS[0]):
                step(ROWS)
            runtime.close()


def test_a_reminder_that_is_an_error_takes_nothing_away(monkeypatch, tmp_path):
    path = tmp_path / "trace.json"
    with Runtime(2, timeline=str(path)) as runtime:
        step, _ = training(runtime)
        step(ROWS)
        with warnings.catch_warnings():
            warnings.simplefilter("error", LintWarning)
            with pytest.raises(LintWarning):
                step(ROWS[:3])
            assert step.rows == (2, 1)
            step(ROWS)
            monkeypatch.setattr(runtime._history, "_reported", set())
            with pytest.raises(LintWarning):
                runtime.close()
        assert runtime.closed
    assert path.is_file()
