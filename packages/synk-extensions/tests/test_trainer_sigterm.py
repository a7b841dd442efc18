"""SIGTERM and Ctrl-C while the Trainer is at work: it finishes the step, saves, and ends."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from _programs import zygote
from _training import Model, assert_close, assert_same, plain, without_seconds

from synk_testing import nothing_left
from synkhronos.extensions.train import Callback, Checkpoints, EarlyStopping

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


@contextlib.contextmanager
def started(folder, kind):
    """The program, in the middle of its third step on all ranks; its lines; and what ends that."""
    gate = folder / "gate"
    arguments = (Path(__file__).parent, folder / "kept", kind, gate)
    with zygote().start(PROGRAM, *arguments, limit_s=LIMIT_S) as process:
        lines = [process.line()]
        while lines[-1] != "in the step":
            lines.append(process.line())
        yield process, lines, gate.unlink


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", [pytest.param("serial", marks=pytest.mark.nightly), "parallel"])
def test_a_signal_finishes_the_step_and_saves(tmp_path, kind, number):
    """Sent to all processes, as batch systems and terminals do; SIGTERM twice."""
    with started(tmp_path, kind) as (process, lines, open_the_gate):
        for _ in range(2 if number == signal.SIGTERM else 1):
            os.killpg(process.pid, number)
        open_the_gate()
        done = process.finish()
    lines += done.out.splitlines()
    by, ends, status = "Ctrl-C", ["exit None", "returned"], 0
    if number == signal.SIGTERM:
        by, ends, status = "SIGTERM", ["exit SystemExit(143)"], STATUS
    assert lines == [
        *("begin 0", "end of step 1", "end of step 2", "in the step", "end of step 3"),
        *(f"interrupted {by}, after step 3", *ends, "finally", "atexit 0"),
    ], done.err
    assert done.status == status
    assert f"training interrupted: {by}, after step 3" in done.err
    assert "Traceback" not in done.err
    assert saved_in(tmp_path / "kept") == [3]

    model, whole = Model(), Model()
    history = plain(model, checkpoint=tmp_path / "kept").run(2, resume=True)
    expected = plain(whole).run(2)
    same = assert_same if kind == "serial" else assert_close
    same(model.values(), whole.values())
    same([history["train_loss"]], [expected["train_loss"]])


def test_the_second_ctrl_c_ends_a_parallel_step_at_once(tmp_path):
    with started(tmp_path, "parallel, twice") as (process, _, open_the_gate):
        os.killpg(process.pid, signal.SIGINT)
        assert process.line() == "noted"
        os.killpg(process.pid, signal.SIGINT)
        open_the_gate()  # for the other rank, which may finish
        done = process.finish()
    assert done.out.splitlines() == ["exit KeyboardInterrupt()", "finally", "atexit 0"], done.err
    assert done.status != 0
    assert saved_in(tmp_path / "kept") == []


def saved_in(folder):
    return [int(path.stem[5:]) for path in Checkpoints(folder).paths()]


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


def saving(folder, *callbacks, model=None):
    how = {"checkpoint": folder, "callbacks": callbacks, "on_sigterm": "checkpoint"}
    return plain(model or Model(), **how)


class At(Callback):
    """Send signals at a moment of the run, and raise an error then; once."""

    def __init__(self, moment, *numbers, step=0, error=None):
        self.numbers, self.step, self.error = numbers, step, error
        setattr(self, moment, self._act)

    def _act(self, trainer, *_):
        numbers, error = self.numbers, self.error
        if trainer.step >= self.step:
            self.numbers, self.error = (), None
            for number in numbers:
                signal.raise_signal(number)
            if error is not None:
                raise error


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
    with pytest.raises(SystemExit) as ended:
        saving(tmp_path, At(moment, signal.SIGTERM, step=at)).run(2)
    assert ended.value.code == STATUS
    assert signal.getsignal(signal.SIGTERM) is handler
    assert saved_in(tmp_path) == saved
    model, whole = Model(), Model()
    history = saving(tmp_path, model=model).run(2, resume=True)
    expected = plain(whole).run(2)
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
    trainer = saving(tmp_path, At("on_step_end", *numbers, step=2))
    with pytest.raises(error):
        trainer.run(2)
    assert len(saved_in(tmp_path)) == (error is SystemExit)
    if error is KeyboardInterrupt:
        with pytest.raises(SystemExit):
            trainer.run(2)


@pytest.mark.parametrize(
    "moment, error, saved",
    [
        ("on_step_end", RuntimeError("a bad batch"), [1]),
        ("on_run_begin", OSError(), []),
        ("on_step_end", FloatingPointError(), [1]),
        ("on_run_exit", OSError(), [4, 8]),
    ],
)
def test_after_an_error_the_program_ends_or_the_next_run_ends_it(
    restored, tmp_path, caplog, moment, error, saved
):
    trainer = saving(tmp_path, At(moment, signal.SIGTERM, error=error))
    if isinstance(error, RuntimeError):
        with pytest.raises(SystemExit, match=str(STATUS)):
            trainer.run(2)
        assert "RuntimeError: a bad batch" in caplog.text
    else:
        with pytest.raises(type(error)):
            trainer.run(2)
        with pytest.raises(SystemExit, match=str(STATUS)):
            trainer.run(9)
    assert saved_in(tmp_path) == saved
    assert trainer.step == max([0, *saved])
    assert trainer.run(2).status == "finished"


def test_a_signal_to_a_run_within_a_run_ends_both(restored, tmp_path):
    def search(trainer, record):
        inner = saving(tmp_path / "inner", At("on_step_end", signal.SIGTERM, step=2))
        assert inner.run(2).status == "interrupted"

    with pytest.raises(SystemExit):
        saving(tmp_path, search).run(3)
    assert [saved_in(tmp_path / "inner"), saved_in(tmp_path)] == [[2], [4]]


def test_a_child_that_a_run_has_forked_obeys_the_signal(restored, tmp_path):
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

    assert saving(tmp_path, fork).run(1).status == "finished"
    assert ended == [7]


def test_a_run_in_another_thread_is_refused_before_the_first_step(restored, tmp_path):
    trainer = saving(tmp_path)
    with ThreadPoolExecutor() as threads, pytest.raises(RuntimeError) as refused:
        threads.submit(trainer.run, 1).result()
    assert "on_sigterm='checkpoint' needs run() in the main thread" in str(refused.value)
    assert trainer.step == 0


def test_handlers_are_restored_and_the_users_is_asked_the_second_time():
    seen, calls, usual = [], [], signal.getsignal(signal.SIGINT)
    sigterm = signal.getsignal(signal.SIGTERM)

    def look(trainer, record):
        seen.append(signal.getsignal(signal.SIGINT))
        assert signal.getsignal(signal.SIGTERM) is sigterm

    def interrupt(trainer, record):
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)

    def users(number, frame):
        calls.append(number)

    trainer = plain(Model(), 50, callbacks=[look])
    try:
        for epochs, handler in ((1, users), (2, signal.SIG_IGN)):
            signal.signal(signal.SIGINT, handler)
            trainer.run(epochs)
            assert signal.getsignal(signal.SIGINT) is handler
        signal.signal(signal.SIGINT, users)
        thread = threading.Thread(target=trainer.run, args=(3,))
        thread.start()
        thread.join()
        history = plain(Model(), 50, callbacks=[interrupt]).run(5)
        assert signal.getsignal(signal.SIGINT) is users
    finally:
        signal.signal(signal.SIGINT, usual)
    assert seen[0] is not users
    assert seen[1:] == [signal.SIG_IGN, users]
    assert calls == [signal.SIGINT] * 2
    assert (history.interrupted, len(history)) == (True, 1)


def test_an_interrupted_run_keeps_its_last_parameters_to_go_on_from(ctrl_c):
    def interrupt(trainer, record):
        if trainer.epoch == 2:
            signal.raise_signal(signal.SIGINT)

    model, twin, best = Model(), Model(), Model()
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
