"""Failures are exceptions, never hangs; and nothing is left behind."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import signal
import sys
import time
import traceback
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from _busy import await_stacks
from _leaks import no_ranks_left

import synk_comm
from synk_comm.cuda import CudaError
from synk_core import Runtime
from synk_core._shield import SHIELD
from synk_core._wire.channel import ChannelClosed
from synk_core._wire.flight import Phase
from synk_core._workers import interrupts
from synk_core._workers.interrupts import SIGNAL, obey, whole
from synk_core.engine import FLAGS, Apply, Op
from synk_core.exceptions import (
    Closed,
    InputValueError,
    Interrupted,
    SpecError,
    StartError,
    WorkerDied,
    WorkerFailed,
    WorkerStalled,
)
from synk_testing import wait_gone
from synk_testing.engine import T, as_op, engine

x = T.vector("x")


pytestmark = pytest.mark.usefixtures("unproved")


def misbehaving(act):
    """A function of one vector: on values above 0 `act` is called; else it doubles."""

    @as_op([T.dvector], [T.dvector])
    def behave(values):
        if values.size and values.max() > 0:
            act(values)
        return values * 2

    x = T.dvector("x")
    return x, behave(x)


class Final(type):
    """A class of it cannot be derived from."""

    def __new__(cls, name, bases, names):
        assert name == "Lonely"
        return super().__new__(cls, name, bases, names)


class Lonely(Exception, metaclass=Final):
    pass


OF_USERS = [
    (FileNotFoundError(2, "gone", "a.npy"), OSError),
    (MemoryError("no room left"), MemoryError),
    (CudaError("an illegal memory access was encountered"), RuntimeError),
    (Lonely("no child of mine"), WorkerFailed),
]

OF_OTHER_GROUPS_AND_RUNTIMES = [
    (synk_comm.PeerLost("rank 1 is lost", rank=1), synk_comm.PeerLost),
    (synk_comm.AbortedError("by itself", rank=0), synk_comm.AbortedError),
    (synk_comm.CommTimeout("too late", missing={1: "asleep"}), synk_comm.CommTimeout),
    (synk_comm.MismatchError("not alike"), synk_comm.MismatchError),
    (synk_comm.PeerDeclined("not now", reasons={1: "no", 0: "no"}), RuntimeError),
    (synk_comm.ClosedError("closed"), synk_comm.ClosedError),
    (ChannelClosed("end of messages"), ConnectionError),
    (WorkerDied(1, -9, "in another runtime"), WorkerDied),
    (WorkerStalled([1], "in another runtime", 9.0, {1: "f()"}, "late"), WorkerStalled),
    (Closed("another runtime is closed"), Closed),
    (KeyboardInterrupt(), KeyboardInterrupt),
]
"""They say nothing of this one."""

ERRORS = OF_USERS + OF_OTHER_GROUPS_AND_RUNTIMES


def test_an_error_of_any_rank_is_caught_by_its_class(runtime):
    def fail_as_told(values):
        raise copy.copy(ERRORS[int(values.max()) - 1][0])  # one would keep the frames of all calls

    x, y = misbehaving(fail_as_told)
    s = engine.shared(np.zeros(()), name="s")
    f = runtime.function([x], (y.sum(), "sum"), updates=[(s, s + 1)], name="touchy")
    began, last = time.monotonic(), runtime.size - 1
    for number, (error, kind) in enumerate(ERRORS, 1):
        with pytest.raises(type(error)):
            f(np.array([number, 0, 0, 0, 0, 0.0]))
        if last:
            with pytest.raises(WorkerFailed) as caught:
                f(np.array([0.0, 0, 0, 0, 0, number]))
            assert (type(caught.value).__name__, caught.value.rank) == ("WorkerFailed", last)
            assert str(error).partition("\n")[0] in str(caught.value)
            assert "in fail_as_told" in caught.value.traceback
            is_users = number <= len(OF_USERS)
            said = f"rank {last} failed in function 'touchy'"
            said += f", rows {6 - 6 // runtime.size} to 5 of the call's 6:" if is_users else ""
            assert str(caught.value).startswith(said)
            assert isinstance(caught.value if is_users else caught.value.__cause__, kind)
        assert s.get_value() == number - 1
        assert f(np.full(6, -1.0)) == -12.0
    assert time.monotonic() - began < 60  # of 300 that a rank waits


def fail(values):
    raise ValueError(f"cannot stand {values.max()}")


def test_an_error_keeps_its_causes_attributes_when_pickled():
    cause = FileNotFoundError(2, "gone", "a.npy")
    cause.code, cause.rank = 7, "the user's own"
    error = WorkerFailed.of(cause, 1, "function 'f'", "FileNotFoundError: gone", "File x, line 1")
    error.__cause__ = cause
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert isinstance(one, FileNotFoundError)
        assert (one.errno, one.filename, one.code, one.rank) == (2, "a.npy", 7, 1)
        assert (str(one), one.traceback) == (str(error), "File x, line 1")
        assert type(one.__cause__) is FileNotFoundError


def test_an_error_on_any_rank_says_function_rank_and_rows(pair):
    x, y = misbehaving(fail)
    f = pair.function([x], (y, "gather"), name="touchy")
    for row, said in ((1, "rows 0 to 1"), (5, "rows 4 to 5")):
        values = np.zeros(8)
        values[row] = 1
        with pytest.raises(ValueError, match="cannot stand") as caught:
            f(values, num_slices=2)
        printed = "".join(traceback.format_exception(type(caught.value), caught.value, None))
        if sys.version_info >= (3, 11) or row == 5:
            assert f"in function 'touchy', {said} of the call's 8" in printed
            assert f"rank {row // 4}" in printed


def test_a_traceback_shows_the_users_frames_only_unless_python_shows_more(pair, monkeypatch):
    x, y = misbehaving(fail)
    f = pair.function([x], (y, "gather"), name="touchy")
    for values, all_frames in itertools.product(([1.0, 0.0], [0.0, 1.0]), [False, True]):
        flags = SimpleNamespace(flags=SimpleNamespace(dev_mode=all_frames))
        monkeypatch.setattr("synk_core._tracebacks.sys", flags)
        with pytest.raises(ValueError, match="cannot stand") as caught:
            f(np.array(values))
        files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert files[0] == __file__
        own = [file for file in files if f"{os.sep}synk_core{os.sep}" in file]
        assert (len(own) > 1) is all_frames
    error = caught.value
    assert "_rank/call.py" not in str(error)
    assert "in fail" in str(error)
    assert "_rank/call.py" in error.traceback


class Mute(BaseException):
    """Not an `Exception`: Theano hands it on as it is."""

    def __str__(self):
        raise RuntimeError("no words")


def raising(what):
    raise what


def test_an_exception_without_words_or_that_does_not_travel_is_one_like_others(pair):
    errors = [SystemExit(3), TypeError("no pickling"), KeyboardInterrupt()]
    ways = [*itertools.product(["__reduce__", "__delattr__", "__bool__"], errors)]

    def fail_locally(values):
        if values.max() > len(ways):
            raise Mute
        method, error = ways[int(values.max()) - 1]
        raise type("Local", (Exception,), {method: lambda *_: raising(error)})("unpicklable")

    x, y = misbehaving(fail_locally)
    f = pair.function([x], (y, "gather"))
    for way in range(1, len(ways) + 2):
        with pytest.raises(WorkerFailed) as caught:
            f(np.array([0.0, way]))
        assert way > len(ways) or "unpicklable" in str(caught.value)
        assert f(np.zeros(2)).tolist() == [0, 0]
    with pytest.raises(Mute):
        f(np.array([way, 0.0]))
    assert f(np.zeros(2)).tolist() == [0, 0]


def test_a_function_that_cannot_be_built_in_a_worker_leaves_the_runtime_usable(pair):
    class Brittle(Op):
        __props__ = ()

        def __init__(self, home):
            self.home = home

        def make_node(self, x):
            return Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = inputs[0]

        def __setstate__(self, state):
            raise RuntimeError("not in this house")

    x = T.dvector("x")
    s = engine.shared(np.zeros(3), name="fresh")
    brittle = pair.function([x], (Brittle(1)(x) + s.sum(), "gather"))
    for _ in range(2):
        with pytest.raises(WorkerFailed, match="not in this house"):
            brittle(np.zeros(2))
    del pair._rank.functions[brittle.number]  # distribute() sends all there is, in later tests
    g = pair.function([x], ((x + s.sum()).sum(), "sum"))
    assert g(np.ones(4)) == 4.0


def test_a_function_that_cannot_be_pickled_is_named_and_does_no_harm(pair):
    once = (row for row in [1])
    x, y = misbehaving(lambda values: next(once))
    f = pair.function([x], (y, "gather"), name="once")
    for _ in range(2):
        with pytest.raises(SpecError, match="cannot send 'once' to the workers"):
            f(np.zeros(2))
    assert pair.function([x], (x.sum(), "sum"))(np.ones(4)) == 4.0
    del pair._rank.functions[f.number]  # distribute() sends all there is, in later tests


def test_workers_ignore_signals_that_batch_systems_send_to_all(pair):
    x, y = misbehaving(lambda _: None)
    f = pair.function([x], (y, "gather"), name="steady")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pair.worker_pids[0], number)
        assert f(np.ones(4)).tolist() == [2] * 4


def test_an_exception_out_of_a_signal_handler_in_a_worker_names_it():
    """It may come amid the protocol, where nothing can be put right."""

    def handle(_values):
        def fail(*_):
            raise ValueError("from a handler")

        signal.signal(signal.SIGUSR2, fail)

    x, y = misbehaving(handle)
    with no_ranks_left():
        runtime = Runtime(2)
        f = runtime.function([x], (y, "gather"))
        f(np.array([0.0, 1.0]))
        # On a busy machine it may be behind, and the handler come amid its own work.
        await_stacks(runtime._lifecycle.pool, 1, "in take")
        os.kill(runtime.worker_pids[0], signal.SIGUSR2)
        await_stacks(runtime._lifecycle.pool, 1, "in _await_verdict")
        with pytest.raises(WorkerDied, match="gave up with ValueError: from a handler") as caught:
            f(np.zeros(2))
        assert (caught.value.rank, caught.value.exitcode) == (1, None)
        assert runtime.closed


def test_the_error_names_a_folder_that_was_removed(zygote, tmp_path):
    done = zygote.run(
        "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir(os.getcwd())\n"
        "from synk_core import Runtime\nfrom synk_core.exceptions import StartError\n"
        "for sys.path[0] in ('', sys.path[0]):\n"
        "    try:\n        Runtime(2)\n    except StartError as error:\n        print(error)\n",
        folder=tmp_path,
    )
    assert (done.status, done.err) == (0, "")
    assert done.out.count("the current folder, in which workers start too, has been removed") == 2


def test_a_time_that_nobody_can_wait_is_refused():
    for what in ("timeout_s", "stall_s"):
        for seconds in (0, -1, "60", None, float("nan")):
            with no_ranks_left(), pytest.raises(InputValueError, match=f"{what}: got .*above 0"):
                Runtime(2, **{what: seconds})


EARLY = """
assert os.getpgrp() == os.getpid()
warnings.simplefilter("ignore")
with Runtime(3) as runtime:
    for _ in range(10):
        try:
            for pid in runtime.worker_pids:
                os.kill(pid, signal.SIGTERM)
            os.killpg(0, signal.SIGINT)
            time.sleep(0.1)
        except KeyboardInterrupt:
            pass
    f = runtime.function([x], x.sum() / 6, mode="FAST_COMPILE")
    print(f(np.ones(6)))
"""


def test_workers_that_still_start_ignore_these_signals(run_script):
    """A terminal sends Ctrl-C to the whole group; the program may go on with something else."""
    status, out, err = run_script(EARLY)
    assert (status, out.strip(), err) == (0, str(1.0 / 3), "")


@pytest.mark.parametrize("number", [SIGNAL, signal.SIGINT])
def test_nothing_interrupts_a_worker_within_the_shield(number):
    record = SimpleNamespace(interrupted=7, phase=(Phase.COMPUTE, 0))
    rank = SimpleNamespace(serial=7, flight=record)
    words = SimpleNamespace(take_all=lambda: [(7).to_bytes(8, "little")])
    done, usual = [], signal.getsignal(number)

    def strike():
        signal.raise_signal(number)
        for _ in range(1000):  # handlers run between bytecodes
            pass

    try:
        obey(rank, None if number == SIGNAL else words)
        with pytest.raises(Interrupted):
            strike()
        with pytest.raises(Interrupted):
            with SHIELD:
                strike()
                done.append(number)
            strike()
        assert done
        record.phase = Phase.COLLECTIVE, 0
        with SHIELD:
            strike()
        strike()
    finally:
        signal.signal(number, usual)


def test_nothing_interrupts_the_master_within_the_shield(pair, monkeypatch):
    done = []
    monkeypatch.setattr(interrupts, "GRACE_S", 20)  # a busy machine wakes a worker late

    def careful(values):
        with SHIELD:
            with SHIELD:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            done.append(len(values))
        time.sleep(30)

    x, y = misbehaving(careful)
    f = pair.function([x], (y, "gather"))
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        f(np.ones(2))
    assert time.monotonic() - began < 25
    assert done == [1]
    assert f(np.zeros(2)).tolist() == [0, 0]


def test_ctrl_c_in_an_arrays_finalizer_within_close_is_raised_all_the_same():
    """Python drops errors of finalizers."""

    def _died(_reference):  # the name of that of arrays
        signal.raise_signal(signal.SIGINT)

    runtime = Runtime(2)
    kept = {"array": np.zeros(1)}
    reference, close = weakref.ref(kept["array"], _died), runtime._lifecycle.store.close
    runtime._lifecycle.store.close = lambda: (kept.clear(), close())
    with pytest.raises(KeyboardInterrupt):
        runtime.close()
        time.sleep(10)
    assert reference() is None
    assert runtime.closed


def test_ctrl_c_that_is_held_back_is_not_lost_by_an_error():
    undone = []

    def act():
        signal.raise_signal(signal.SIGINT)
        raise OSError("the disk is full")

    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as raised:
            whole(act, lambda: undone.append(True), ends=False)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert isinstance(raised.value.__context__, OSError)
    assert undone == [True]


COMPILING = """
@as_op([T.dvector], [T.dvector])
def compile_in_workers(values, master=os.getpid()):
    if os.getpid() != master:
        quiet = dict.fromkeys(["stdout", "stderr"], subprocess.DEVNULL)
        print(os.getpid(), subprocess.Popen(["sleep", "60"], **quiet).pid, flush=True)
        threading.Thread(target=lambda: os.kill(master, signal.SIGUSR1)).start()
        time.sleep(30)
    return values

def end(*_):
    exec(sys.argv[1])
    os._exit(0)

signal.signal(signal.SIGUSR1, end)
runtime = Runtime(2)
f = runtime.function([x], (compile_in_workers(x), "gather"))
f(np.ones(2))
"""


@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), 9)", pytest.param("runtime.close()", marks=pytest.mark.nightly)]
)
def test_a_worker_that_ends_kills_the_processes_that_it_started(run_script, end):
    with no_ranks_left():
        _, out, err = run_script(COMPILING, end)
        pids = [int(word) for word in out.split()]
        assert len(pids) == 2, err
        wait_gone(pids)


def test_a_worker_that_cannot_start_is_named_with_the_cause(monkeypatch):
    monkeypatch.setenv(FLAGS, "floatX=nonsense")
    with no_ranks_left():
        runtime = Runtime(2)
        with pytest.raises(StartError, match=r"(?s)rank 1.*nonsense"):
            runtime.distribute()
        assert runtime.closed


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (synk_comm.PeerLost("rank 1 is lost: it was cut off", rank=1), WorkerDied),
        (synk_comm.CommTimeout("rank 1 has not come"), WorkerStalled),
    ],
)
def test_a_rank_lost_while_ranks_join_is_named(monkeypatch, error, expected):
    with no_ranks_left(), Runtime(2) as runtime:

        def join(*_args, **_kwargs):
            if expected is WorkerDied:
                os.kill(runtime.worker_pids[0], signal.SIGKILL)
                # Until it has ended; whoever looks at it later still finds it.
                os.waitid(os.P_PID, runtime.worker_pids[0], os.WEXITED | os.WNOWAIT)
            raise error

        monkeypatch.setattr(runtime._rank, "join", join)
        with pytest.raises(expected) as caught:
            runtime.distribute()
        assert caught.value.rank == 1
        if expected is WorkerDied:
            assert caught.value.signal == "SIGKILL"
        assert runtime.closed


def test_long_failures_of_several_ranks_are_all_read(pair):
    def shout(values):
        raise ValueError("x" * 1_000_000)

    x, y = misbehaving(shout)
    f = pair.function([x], (y, "gather"))
    for _ in range(4):
        with pytest.raises(ValueError, match="xxx"):
            f(np.ones(2))
        start = time.monotonic()
        np.testing.assert_array_equal(f(np.zeros(2)), np.zeros(2))
        assert time.monotonic() - start < 30
    with pytest.raises(WorkerFailed) as caught:
        f(np.array([0.0, 1.0]))
    assert len(str(caught.value)) < 300_000


def test_a_forked_child_cannot_use_its_parents_runtime_and_does_it_no_harm(pair):
    f = pair.function([x], (x, "gather"))
    f(np.zeros(2))
    calls = [act for act in pair.orders.acts._acts.values() if act.label == f.label]
    staged = [copied._target for call in calls for copied in call.copies]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            f(np.full(2, 7.0))
            answer = b"no error"
        except Closed:
            answer = b"closed"
        except BaseException as error:
            answer = repr(error).encode()
        os.write(writing, answer)
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 1000) == b"closed"
    os.close(reading)
    os.waitpid(child, 0)
    assert staged
    for array in staged:
        np.testing.assert_array_equal(array, 0.0)
    np.testing.assert_array_equal(f(np.arange(2.0)), np.arange(2.0))


def test_a_frame_that_is_interrupted_is_read_on():
    from synk_core._wire.channel import Channel

    ours, theirs = Channel.pair()
    frame = (5).to_bytes(8, "little") + b"hello"
    for cut in range(1, len(frame)):
        theirs.send(frame[:cut])
        with pytest.raises(TimeoutError):
            ours.recv(timeout_s=0.01)
        theirs.send(frame[cut:])
        assert ours.recv(timeout_s=5) == b"hello"
    theirs.send(frame + frame)
    received = [(ours.recv(timeout_s=5), ours.pending()) for _ in range(2)]
    assert received == [(b"hello", True), (b"hello", False)]
    ours.close()
    theirs.close()
