"""Ctrl-C while the Trainer is at work: it stops after the step, and the second time at once.

test_trainer_sigterm.py sends it to a program on two ranks.
"""

from __future__ import annotations

import signal

import numpy as np
import pytest
from _training import Model, assert_same, dataset

from synkhronos.extensions.train import Callback, EarlyStopping, Trainer


def test_a_handler_of_the_users_is_asked_the_second_time_and_restored():
    calls = []

    def handler(number, frame):
        calls.append(number)

    def interrupt(trainer, record):
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)

    usual = signal.signal(signal.SIGINT, handler)
    try:
        trainer = Trainer(Model().train, dataset(), 50, callbacks=[interrupt])
        history = trainer.run(5)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, usual)
    assert calls == [signal.SIGINT] * 2
    assert (history.interrupted, len(history)) == (True, 1)
    assert np.isfinite(history["train_loss"]).all()


def test_an_interrupted_run_keeps_its_last_parameters_to_go_on_from(ctrl_c):
    def build(*callbacks):
        model = Model()
        # By mode="max" the first epoch is the best.
        stopping = EarlyStopping(9, restore_best=True)
        callbacks = [stopping, *callbacks]
        return model, Trainer(model.train, dataset(), 50, mode="max", callbacks=callbacks)

    def interrupt(trainer, record):
        if trainer.epoch == 2:
            signal.raise_signal(signal.SIGINT)

    model, trainer = build(interrupt)
    assert trainer.run(3).interrupted
    twin = Model()
    Trainer(twin.train, dataset(), 50).run(2)
    assert_same(model.values(), twin.values())
    assert trainer.run(3).status == "finished"
    best = Model()
    Trainer(best.train, dataset(), 50).run(1)
    assert_same(model.values()[:2], best.values()[:2])


@pytest.mark.parametrize("moment", ["on_step_end", "on_run_exit"])
def test_ctrl_c_before_an_error_is_not_forgotten(ctrl_c, moment):
    def fail(*_):
        signal.raise_signal(signal.SIGINT)
        raise OSError("the disk is gone")

    failing = Callback()
    setattr(failing, moment, fail)
    trainer = Trainer(Model().train, dataset(), 16, callbacks=[failing])
    with pytest.raises(KeyboardInterrupt) as raised:
        trainer.run(1)
    assert isinstance(raised.value.__cause__, OSError)
