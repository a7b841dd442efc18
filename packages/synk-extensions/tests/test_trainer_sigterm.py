"""SIGTERM while the Trainer is at work: it finishes the step, saves, and the program ends.

And Ctrl-C to a program on two ranks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest
from _programs import zygote
from _training import Model, assert_close, assert_same, dataset, without_seconds

from synk_testing import nothing_left
from synkhronos.extensions.train import Callback, Checkpoints, EarlyStopping, Trainer

LIMIT_S = 120
STATUS = 143  # as a shell reports a program that SIGTERM ended

PROGRAM = """
import atexit, os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from synk_core.engine import Apply, Op
from _training import Model, dataset
import synkhronos as synk
from synk_testing import children
from synkhronos.extensions.train import Callback, Trainer, make_train_function
from synkhronos.extensions.train import make_train_function_theano
from synkhronos.extensions.train._interrupt import Interrupt

folder, kind, gate = sys.argv[2:]
os.environ["MASTER"] = str(os.getpid())
# Whatever this was started from: Ctrl-C is as Python has it.
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(lambda: print("atexit", len(children()), flush=True))

class Wait(Op):
    # While the file is there, all ranks are in the middle of their step.
    __props__ = ()
    def make_node(self, value):
        return Apply(self, [value], [value.type()])
    def perform(self, node, inputs, outputs, params=None):
        if os.path.exists(gate) and os.environ["MASTER"] == str(os.getpid()):
            print("in the step", flush=True)
        while os.path.exists(gate):
            time.sleep(0.01)
        outputs[0][0] = inputs[0]

if kind == "parallel, twice":
    note = Interrupt._note  # print() may be what the signal interrupts
    Interrupt._note = lambda self, number: (note(self, number), os.write(1, b"noted\\n"))

class Tell(Callback):
    def on_run_begin(self, trainer):
        print("begin", trainer.step, flush=True)

    def on_step_end(self, trainer, loss):
        if trainer.step == 2:
            open(gate, "x").close()
        print("end of step", trainer.step, flush=True)

    def on_run_end(self, trainer, history):
        print(history.status, history.reason, flush=True)

    def on_run_exit(self, trainer, error):
        print("exit", repr(error), flush=True)

make = make_train_function_theano
if kind != "serial":
    synk.fork(2, use_gpu=False, verbose=False)
    make = make_train_function
model = Model(make, slow=Wait())
trainer = Trainer(
    model.train, dataset(), 16, checkpoint=folder, callbacks=[Tell()], on_sigterm="checkpoint"
)
try:
    trainer.run(1000, resume=True)
    print("returned", flush=True)
finally:
    print("finally", flush=True)
    synk.close()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", [pytest.param("serial", marks=pytest.mark.nightly), "parallel"])
def test_a_signal_finishes_the_step_and_saves(tmp_path, kind, number):
    """Sent to all processes, as batch systems and terminals do; SIGTERM twice."""
    folder, gate = tmp_path / "kept", tmp_path / "gate"
    arguments = (Path(__file__).parent, folder, kind, gate)
    with zygote().start(PROGRAM, *arguments, limit_s=LIMIT_S) as process:
        lines = [process.line()]
        while lines[-1] != "in the step":
            lines.append(process.line())
        for _ in range(2 if number == signal.SIGTERM else 1):
            os.killpg(process.pid, number)
        gate.unlink()
        done = process.finish()
    lines += done.out.splitlines()
    by, ends = "Ctrl-C", ["exit None", "returned"]
    if number == signal.SIGTERM:
        by, ends = "SIGTERM", ["exit SystemExit(143)"]
    assert lines == [
        "begin 0",
        "end of step 1",
        "end of step 2",
        "in the step",
        "end of step 3",
        f"interrupted {by}, after step 3",
        *ends,
        "finally",
        "atexit 0",
    ], done.err
    assert done.status == (STATUS if number == signal.SIGTERM else 0)
    assert f"training interrupted: {by}, after step 3" in done.err
    assert "Traceback" not in done.err
    assert [path.name for path in Checkpoints(folder).paths()] == ["step-000000003.npz"]

    # What it wrote goes on here, as a run that nothing ended.
    model, whole = Model(), Model()
    history = Trainer(model.train, dataset(), 16, checkpoint=folder).run(2, resume=True)
    expected = Trainer(whole.train, dataset(), 16).run(2)
    same = assert_same if kind == "serial" else assert_close
    same(model.values(), whole.values())
    same([history["train_loss"]], [expected["train_loss"]])


def test_the_second_ctrl_c_ends_a_parallel_step_at_once(tmp_path):
    folder, gate = tmp_path / "kept", tmp_path / "gate"
    arguments = (Path(__file__).parent, folder, "parallel, twice", gate)
    with zygote().start(PROGRAM, *arguments, limit_s=LIMIT_S) as process:
        while process.line() != "in the step":
            pass
        os.killpg(process.pid, signal.SIGINT)
        assert process.line() == "noted"
        os.killpg(process.pid, signal.SIGINT)
        gate.unlink()  # for the other rank, which may finish
        done = process.finish()
    assert done.out.splitlines() == ["exit KeyboardInterrupt()", "finally", "atexit 0"], done.err
    assert done.status != 0
    assert Checkpoints(folder).paths() == []


def handler(number, frame):
    raise AssertionError("it is for after the run")


@pytest.fixture
def restored():
    """The signal's handler is the same after the test, and nothing is left."""
    usual = signal.signal(signal.SIGTERM, handler)
    try:
        with nothing_left():
            yield
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, usual)


def trainer_of(folder, *callbacks, **settings):
    model = Model()
    settings.setdefault("on_sigterm", "checkpoint")
    trainer = Trainer(
        model.train, dataset(), 16, checkpoint=folder, callbacks=callbacks, **settings
    )
    return model, trainer


class Signals(Callback):
    """Send signals at a moment of the run."""

    def __init__(self, moment, *numbers, step=0):
        self.numbers, self.step = numbers, step
        setattr(self, moment, self._send)

    def _send(self, trainer, *_):
        if trainer.step == self.step:
            for number in self.numbers:
                signal.raise_signal(number)


@pytest.mark.parametrize(
    "moment, at, saved",
    [
        ("on_run_begin", 0, []),
        ("on_step_end", 4, [4]),  # the epoch's last
        ("on_epoch_end", 4, [4]),
        ("on_run_exit", 8, [4, 8]),
    ],
)
def test_whenever_it_comes_the_program_ends_and_another_run_continues(
    restored, tmp_path, moment, at, saved
):
    _, trainer = trainer_of(tmp_path, Signals(moment, signal.SIGTERM, step=at))
    with pytest.raises(SystemExit) as ended:
        trainer.run(2)
    assert ended.value.code == STATUS
    assert signal.getsignal(signal.SIGTERM) is handler
    assert [path.name for path in Checkpoints(tmp_path).paths()] == [
        f"step-{step:09d}.npz" for step in saved
    ]
    model, trainer = trainer_of(tmp_path)
    history = trainer.run(2, resume=True)
    whole = Model()
    expected = Trainer(whole.train, dataset(), 16).run(2)
    assert_same(model.values(), whole.values())
    assert without_seconds(history) == without_seconds(expected)


@pytest.mark.parametrize(
    "numbers, error",
    [
        ((signal.SIGINT, signal.SIGTERM), SystemExit),
        ((signal.SIGTERM, signal.SIGTERM, signal.SIGINT), SystemExit),
        ((signal.SIGINT, signal.SIGTERM, signal.SIGINT), KeyboardInterrupt),
    ],
)
def test_beside_ctrl_c(restored, ctrl_c, tmp_path, numbers, error):
    """The second Ctrl-C ends the run at once, in any case; SIGTERM never does."""
    _, trainer = trainer_of(tmp_path, Signals("on_step_end", *numbers, step=2))
    with pytest.raises(error):
        trainer.run(2)
    assert len(Checkpoints(tmp_path).paths()) == (error is SystemExit)
    if error is KeyboardInterrupt:
        with pytest.raises(SystemExit):
            trainer.run(2)


class Failing(Callback):
    """Raise an error at a moment of the run, once, after SIGTERM."""

    def __init__(self, moment, error):
        self.error = error
        setattr(self, moment, self._fail)

    def _fail(self, trainer, *_):
        error, self.error = self.error, None
        if error is not None:
            signal.raise_signal(signal.SIGTERM)
            raise error


def test_an_error_after_the_signal_does_not_keep_the_program(restored, tmp_path, caplog):
    _, trainer = trainer_of(tmp_path, Failing("on_step_end", RuntimeError("a bad batch")))
    with pytest.raises(SystemExit, match=str(STATUS)):
        trainer.run(2)
    assert [path.name for path in Checkpoints(tmp_path).paths()] == ["step-000000001.npz"]
    assert "RuntimeError: a bad batch" in caplog.text


@pytest.mark.parametrize(
    "moment, error, saved",
    [
        ("on_run_begin", OSError(), 0),
        ("on_step_end", FloatingPointError(), 1),
        ("on_run_exit", OSError(), 8),
    ],
)
def test_after_other_errors_the_next_run_ends_the_program(restored, tmp_path, moment, error, saved):
    _, trainer = trainer_of(tmp_path, Failing(moment, error))
    with pytest.raises(type(error)):
        trainer.run(2)
    with pytest.raises(SystemExit, match=str(STATUS)):
        trainer.run(9)
    assert trainer.step == saved
    assert len(Checkpoints(tmp_path).paths()) == (saved > 0) + (saved == 8)
    assert trainer.run(2).status == "finished"


def test_a_signal_to_a_run_within_a_run_ends_both(restored, tmp_path):
    def search(trainer, record):
        term = Signals("on_step_end", signal.SIGTERM, step=2)
        _, inner = trainer_of(tmp_path / "inner", term)
        assert inner.run(2).status == "interrupted"

    _, trainer = trainer_of(tmp_path, search)
    with pytest.raises(SystemExit):
        trainer.run(3)
    kept = [path.name for place in ("inner", ".") for path in Checkpoints(tmp_path / place).paths()]
    assert kept == ["step-000000002.npz", "step-000000004.npz"]


def test_a_child_that_a_run_has_forked_obeys_the_signal(restored, tmp_path):
    """Such as a loader's processes, which are ended by it."""
    ended = []

    def fork(trainer, record):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LIMIT_S)
            with contextlib.suppress(AssertionError):  # of the handler of before the run
                signal.raise_signal(signal.SIGTERM)
                os._exit(1)
            os._exit(7)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    _, trainer = trainer_of(tmp_path, fork)
    assert trainer.run(1).status == "finished"
    assert ended == [7]


def test_what_cannot_be_done_is_refused_before_the_first_step(restored, tmp_path):
    model = Model()
    with pytest.raises(ValueError, match=r"needs a folder: Trainer\(checkpoint=\.\.\.\)"):
        Trainer(model.train, dataset(), 16, on_sigterm="checkpoint")
    with pytest.raises(ValueError, match="on_sigterm is 'stop'; expected one of 'checkpoint'"):
        trainer_of(tmp_path, on_sigterm="stop")
    _, trainer = trainer_of(tmp_path)
    errors = []

    def run():
        try:
            trainer.run(1)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert trainer.step == 0
    assert "on_sigterm='checkpoint' needs run() in the main thread" in errors[0]


def test_after_an_error_the_rest_of_an_epochs_end_is_done_and_saved(restored, tmp_path):
    stopping = EarlyStopping(3)

    def fail(_trainer, _record):
        raise OSError("the disk is full")

    signals = Signals("on_epoch_end", signal.SIGTERM, step=4)
    _, trainer = trainer_of(tmp_path, signals, fail, stopping)
    with pytest.raises(SystemExit):
        trainer.run(2)
    best = stopping.state()["best"]
    again = EarlyStopping(3)
    _, other = trainer_of(tmp_path, again)
    assert other.resume()
    assert again.state()["best"] == best == other.score(other.records[-1])
