"""Ctrl-C while the Trainer is at work: it stops after the step, and the second time at once.

test_trainer_sigterm.py sends it to a program on two ranks.
"""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest
from _training import Model, assert_same, plain

from synkhronos.extensions.train import Callback, EarlyStopping


def test_ctrl_c_is_left_alone_in_threads_and_where_it_is_ignored():
    usual, sigterm = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    seen = []

    def look(trainer, record):
        seen.append(signal.getsignal(signal.SIGINT))
        assert signal.getsignal(signal.SIGTERM) is sigterm

    trainer = plain(Model(), 50, callbacks=[look])
    trainer.run(1)
    assert signal.getsignal(signal.SIGINT) is usual
    thread = threading.Thread(target=trainer.run, args=(2,))
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        trainer.run(3)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert seen[0] is not usual
    assert seen[1:] == [usual, signal.SIG_IGN]


def test_a_handler_of_the_users_is_asked_the_second_time_and_restored():
    calls = []

    def handler(number, frame):
        calls.append(number)

    def interrupt(trainer, record):
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)

    usual = signal.signal(signal.SIGINT, handler)
    try:
        history = plain(Model(), 50, callbacks=[interrupt]).run(5)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, usual)
    assert calls == [signal.SIGINT] * 2
    assert (history.interrupted, len(history)) == (True, 1)
    assert np.isfinite(history["train_loss"]).all()


def test_an_interrupted_run_keeps_its_last_parameters_to_go_on_from(ctrl_c):
    def interrupt(trainer, record):
        if trainer.epoch == 2:
            signal.raise_signal(signal.SIGINT)

    model, twin, best = Model(), Model(), Model()
    # By mode="max" the first epoch is the best.
    callbacks = [EarlyStopping(9, restore_best=True), interrupt]
    trainer = plain(model, 50, mode="max", callbacks=callbacks)
    assert trainer.run(3).interrupted
    plain(twin, 50).run(2)
    assert_same(model.values(), twin.values())
    assert trainer.run(3).status == "finished"
    plain(best, 50).run(1)
    assert_same(model.values()[:2], best.values()[:2])


@pytest.mark.parametrize("moment", ["on_step_end", "on_run_exit"])
def test_ctrl_c_before_an_error_is_not_forgotten(ctrl_c, moment):
    def fail(*_):
        signal.raise_signal(signal.SIGINT)
        raise OSError("the disk is gone")

    failing = Callback()
    setattr(failing, moment, fail)
    with pytest.raises(KeyboardInterrupt) as raised:
        plain(Model(), callbacks=[failing]).run(1)
    assert isinstance(raised.value.__cause__, OSError)
