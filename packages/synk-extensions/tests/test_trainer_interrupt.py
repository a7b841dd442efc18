"""Ctrl-C while the Trainer is at work: it stops after the step, and the second time at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from _programs import zygote
from _training import Model, assert_close, assert_same, dataset

from synkhronos.extensions.train import Callback, Checkpoints, EarlyStopping, Trainer

LIMIT_S = 120

PROGRAM = """
import signal, sys, time
sys.path.insert(0, sys.argv[1])
from synk_testing.engine import T, engine
from synk_core.engine import Apply, Op
from _training import Model, dataset
import synkhronos as synk
from synk_testing import children
from synkhronos.extensions.train import Callback, Trainer, make_train_function
from synkhronos.extensions.train import make_train_function_theano

folder, kind, wait_s = sys.argv[2], sys.argv[3], float(sys.argv[4])
# Whatever this was started from: Ctrl-C is as Python has it.
signal.signal(signal.SIGINT, signal.default_int_handler)

def wait(seconds):
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        time.sleep(0.01)

class Slow(Op):
    __props__ = ()
    def make_node(self, value, seconds):
        return Apply(self, [value, seconds], [value.type()])
    def perform(self, node, inputs, outputs, params=None):
        wait(float(inputs[1]))
        outputs[0][0] = inputs[0]

class Tell(Callback):
    def on_run_begin(self, trainer):
        if trainer.step:
            set_seconds(wait_s)
            print("step", trainer.step + 1, flush=True)

    def on_step_end(self, trainer, loss):
        if trainer.step == 2:
            set_seconds(1.5)
            print("step 3", flush=True)
        elif trainer.step > 2:
            print("end of step", trainer.step, flush=True)

if kind == "parallel":
    synk.fork(2, use_gpu=False, verbose=False)
seconds = engine.shared(0.0, name="seconds")
model = Model(
    make_train_function if kind == "parallel" else make_train_function_theano,
    # All ranks take their time within the step.
    slow=lambda value: Slow()(value, seconds),
)
def set_seconds(value):
    if kind == "parallel":
        synk.broadcast(seconds, value)
    seconds.set_value(value)
trainer = Trainer(model.train, dataset(), 16, checkpoint=folder, callbacks=[Tell()])
try:
    history = trainer.run(1000)
    print(history.status, len(history), trainer.step, flush=True)
    if kind == "parallel":
        # The ranks are there as before.
        print("ranks", len(synk.gather(model.b)), flush=True)
    trainer.run(1000)
except KeyboardInterrupt:
    print("KeyboardInterrupt", flush=True)
synk.close()
print("children", len(children()), flush=True)
"""


def lines_until(process, last):
    lines = [process.line()]
    while lines[-1] != last:
        lines.append(process.line())
    return lines


def interrupted(folder, kind, wait_s):
    """Run the program, and send it SIGINT within step 3, and twice within step 4.

    Returns what it prints, its status, and its standard error.
    """
    arguments = (Path(__file__).parent, folder, kind, wait_s)
    lines = []
    with zygote().start(PROGRAM, *arguments, limit_s=LIMIT_S) as process:
        for step, times in [("step 3", 1), ("step 4", 2)]:
            lines += lines_until(process, step)
            for _ in range(times):
                time.sleep(0.5)  # into the step; and two signals that come together are one
                # As a terminal does: to all processes of the group.
                os.killpg(process.pid, signal.SIGINT)
        done = process.finish()
    return lines + done.out.splitlines(), done.status, done.err


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_the_first_ctrl_c_finishes_the_step_and_the_second_ends_at_once(tmp_path, kind):
    # Ranks that are in the middle of their step may finish it before they stop.
    wait_s = LIMIT_S if kind == "serial" else 2.5
    lines, status, err = interrupted(tmp_path, kind, wait_s)
    first = ["step 3", "end of step 3", "interrupted 0 3"]
    ranks = ["ranks 2"] if kind == "parallel" else []
    assert lines == [*first, *ranks, "step 4", "KeyboardInterrupt", "children 0"], err
    assert status == 0
    assert "training interrupted: Ctrl-C, after step 3" in err
    assert "Traceback" not in err
    (path,) = Checkpoints(tmp_path).paths()
    assert path.name == "step-000000003.npz"

    # What it wrote goes on here, as a run that nobody interrupted.
    model, whole = Model(), Model()
    trainer = Trainer(model.train, dataset(), 16, checkpoint=tmp_path)
    history = trainer.run(2, resume=True)
    expected = Trainer(whole.train, dataset(), 16).run(2)
    same = assert_same if kind == "serial" else assert_close
    same(model.values(), whole.values())
    same([history["train_loss"]], [expected["train_loss"]])


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


def test_an_interrupted_run_keeps_its_last_parameters_to_go_on_from():
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
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert trainer.run(3).interrupted
    finally:
        signal.signal(signal.SIGINT, usual)
    twin = Model()
    Trainer(twin.train, dataset(), 50).run(2)
    assert_same(model.values(), twin.values())
    assert trainer.run(3).status == "finished"
    best = Model()
    Trainer(best.train, dataset(), 50).run(1)
    assert_same(model.values()[:2], best.values()[:2])


def test_ctrl_c_while_rows_are_shuffled_changes_nothing_of_the_rest():
    class Shuffling(np.random.RandomState):
        epochs = 0

        def permutation(self, rows):
            order = super().permutation(rows)
            self.epochs += 1
            if self.epochs == 2:
                signal.raise_signal(signal.SIGINT)
            return order

    model, twin = Model(), Model()
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        trainer = Trainer(model.train, dataset(), 16, seed=Shuffling(5))
        assert trainer.run(3).interrupted
    finally:
        signal.signal(signal.SIGINT, usual)
    trainer.run(3)
    Trainer(twin.train, dataset(), 16, seed=np.random.RandomState(5)).run(3)
    assert_same(model.values(), twin.values())


@pytest.mark.parametrize(
    "moment", ["on_run_begin", "on_step_end", "on_epoch_end", "on_run_end", "on_run_exit"]
)
def test_ctrl_c_before_an_error_is_not_forgotten(moment):
    def fail(*_):
        signal.raise_signal(signal.SIGINT)
        raise OSError("the disk is gone")

    failing = Callback()
    setattr(failing, moment, fail)
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        trainer = Trainer(Model().train, dataset(), 16, callbacks=[failing])
        with pytest.raises(KeyboardInterrupt) as raised:
            trainer.run(1)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert isinstance(raised.value.__cause__, OSError)
