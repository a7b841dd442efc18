"""Starting, watching and ending workers: nothing waits longer than it has to."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from _busy import await_stacks, computing, hold_the_lock
from _leaks import no_ranks_left

import synk_comm
from synk_core import Runtime
from synk_core._rank.rank import Rank
from synk_core._wire.channel import Channel
from synk_core._wire.messages import Ready
from synk_core._workers import processes as _processes
from synk_core._workers import worker as _worker
from synk_core._workers.pool import KILL_TIMEOUT_S, STOP_TIMEOUT_S
from synk_core.exceptions import StartError, WorkerDied
from synk_testing import Mark, descriptors, wait_gone
from synk_testing.processes import stat

END_S = 2.9
"""What `stop()` and `kill()` may take together."""

QUICK_END_S = 1.2
BUSY_S = 2.0


@contextmanager
def started(size):
    """A runtime whose workers are ready, and its pool; at the end nothing of it is left."""
    with no_ranks_left(), Runtime(size) as runtime:
        runtime.distribute()
        yield runtime, runtime._lifecycle.pool


def wait_until(happened, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.alone
def test_stop_is_quick_whatever_the_workers_do():
    assert STOP_TIMEOUT_S + KILL_TIMEOUT_S + 0.1 <= END_S + 1e-9
    with computing(hold_the_lock, size=3) as pool:
        pids = pool.pids
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        pool.stop()
        pool.kill()
        took_s = time.monotonic() - began
        assert took_s < QUICK_END_S + BUSY_S
        wait_gone(pids)
    print(f"{took_s:.3f} s")


def test_a_killed_worker_that_still_ends_is_named_with_its_signal(monkeypatch):
    """Such as a process whose GPU is busy: it is waited for in vain."""
    with started(3) as (_, pool):
        first, killed = pool._workers
        is_alive = type(killed).is_alive
        os.kill(killed.process.pid, signal.SIGKILL)
        wait_until(lambda: stat(killed.process.pid).state == "Z")
        wait_until(killed.channel.at_end)  # which its other threads may still have
        with monkeypatch.context() as patch:
            patch.setattr(type(killed), "is_alive", lambda each: each is killed or is_alive(each))
            assert not killed.has_ended(0.0)
            with pytest.raises(WorkerDied, match="rank 2 was killed by SIGKILL") as caught:
                pool.check("at rest")
            assert (caught.value.exitcode, caught.value.signal) == (-signal.SIGKILL, "SIGKILL")
            assert first.exitcode(0.0) is None
            # One has not closed its channel: the kernel frees its memory first, and another worker
            # ends because of it meanwhile.
            ending = {first.process.pid: -9, killed.process.pid: 1}
            patch.setattr(_processes, "_status_while_ending", ending.get)
            with pytest.raises(WorkerDied, match="rank 1 was killed by SIGKILL"):
                pool.check("at rest")


def test_the_wait_for_workers_has_a_limit_and_names_the_killed():
    with no_ranks_left(), Runtime(3) as runtime:
        pool = runtime._lifecycle.pool
        stopped, killed = runtime.worker_pids
        os.kill(stopped, signal.SIGSTOP)  # it will never be ready
        with pytest.raises(StartError, match=r"rank 1 was not ready in 0\.2 s.*-cache unlock"):
            pool.wait_ready(0.2)

        def enough():
            raise InterruptedError("enough")

        def kill():
            if pool._workers[1].is_ready:
                os.kill(killed, signal.SIGKILL)

        with pytest.raises(InterruptedError, match="enough"):
            pool.wait_ready(60.0, enough)
        began = time.monotonic()
        with pytest.raises(WorkerDied, match="in its start") as caught:
            pool.wait_ready(60.0, kill)
        assert (caught.value.rank, caught.value.signal) == (2, "SIGKILL")
        assert time.monotonic() - began < 30
        os.kill(stopped, signal.SIGCONT)


def test_of_several_that_are_gone_the_killed_one_is_named():
    with started(4) as (runtime, pool):
        pids = runtime.worker_pids
        runtime._rank.comm.abort("a test")
        for rank in (1, 2, 3):
            await_stacks(pool, rank, "in _await_verdict")
        pool.check("a test")  # all are there
        # Ranks 1 and 3 end by themselves, as if their master were gone.
        for worker in (pool._workers[0], pool._workers[2]):
            worker.channel.close()
            assert worker.process.wait(20) == 0
        with pytest.raises(WorkerDied, match="exited with status 0"):
            pool.check("a test")
        os.kill(pool.pids[1], signal.SIGKILL)
        pool._workers[1].process.wait(20)
        with pytest.raises(WorkerDied) as caught:
            pool.check(lambda rank: f"the doing of rank {rank}")
        assert (caught.value.rank, caught.value.signal) == (2, "SIGKILL")
        assert "the doing of rank 2" in str(caught.value)
        began = time.monotonic()
        runtime.close()
        assert time.monotonic() - began < QUICK_END_S + BUSY_S
        wait_gone(pids)


class RankThat:
    in_step = False
    rank = 1
    serial = 7
    doing = "a test"
    failed_at = 0.0
    clock_offset_s = 0.0
    _groups = ()
    group_raised = Rank.group_raised

    def __init__(self, error):
        self.error = error
        self.closed = False

    def join(self, *_):
        pass

    def perform(self):
        raise self.error

    def close(self):
        self.closed = True


def test_a_worker_without_a_group_waits_as_long_as_it_takes(monkeypatch):
    rank, channel, serving = serve(monkeypatch, synk_comm.PeerLost("gone"))
    serving.join(_worker.VERDICT_S + 0.5)
    assert serving.is_alive()
    assert not rank.closed  # it would look like the one that left
    channel.close()
    serving.join(30)
    assert not serving.is_alive()
    assert rank.closed


@pytest.mark.parametrize("error", [ValueError("own"), synk_comm.MisuseError("own")])
def test_a_worker_out_of_step_by_its_own_fault_ends_by_itself(monkeypatch, error):
    rank, channel, serving = serve(monkeypatch, error)
    serving.join(30)
    assert not serving.is_alive()
    assert rank.closed
    assert channel.at_end() == isinstance(error, synk_comm.MisuseError)
    if isinstance(error, ValueError):
        assert pickle.loads(channel.recv(1.0)).serial == 7
    channel.close()


def test_a_worker_without_a_thread_says_so_and_how_to_get_one(monkeypatch):
    channel, theirs = Channel.pair()

    def prepare(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_worker, "_prepare", prepare)
    with theirs:
        _worker.serve(Channel(theirs), SimpleNamespace(rank=1))
    failure = pickle.loads(channel.recv(1.0))
    with (
        Runtime(1) as runtime,
        pytest.raises(StartError, match=r"(?s)rank 1.*thread; end some.*-u "),
    ):
        runtime._lifecycle.pool.require_started([failure])
    channel.close()


def serve(monkeypatch, error):
    """Return the rank, channel and thread of a worker whose first order fails."""
    rank = RankThat(error)
    monkeypatch.setattr(_worker, "_prepare", lambda *_: rank)
    channel, theirs = Channel.pair()
    hello = SimpleNamespace(rank=1, ticket=None)

    def run():
        with theirs:
            _worker.serve(Channel(theirs), hello)

    serving = threading.Thread(target=run)
    serving.start()
    assert isinstance(pickle.loads(channel.recv(30.0)), Ready)
    channel.send(b"join")
    return rank, channel, serving


def test_nothing_that_workers_inherit_stays_open():
    def once():
        runtime = Runtime(2)
        os.kill(runtime.worker_pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied):
            runtime.distribute()
        assert runtime.closed

    with no_ranks_left():
        once()  # opens what this process keeps
        before = len(descriptors())
        for _ in range(2):
            once()
        assert len(descriptors()) <= before


TALKATIVE = """
import contextlib, logging, os, signal, sys
import numpy as np
import pytest
from synk_core import Runtime
from synk_core.exceptions import WorkerDied
from synk_testing import Mark
from synk_testing.engine import T, as_op

@as_op([T.dvector], [T.dvector])
def talkative(values):
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            os.write(fd, 2000 * b"talk ")
    return values

folder, streams = sys.argv[1:]
how = {"use_gpu": False}
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
if streams == "closed":
    for fd in range(3):
        os.close(fd)
else:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The first one that the leader of a session opens becomes its own.
    os.close(os.open(os.ttyname(0), os.O_RDWR))
    logging.basicConfig(level=logging.INFO)  # what engines log would fill the terminal
    logging.getLogger("synk_core").setLevel(logging.DEBUG)
    how.update(stall_s=0.1, report=logging.info)
x = T.dvector("x")
with Runtime(2, **how) as runtime:
    f = runtime.function([x], (talkative(x).sum(), "sum"))
    if streams == "gone":
        Mark(folder + "/ready").set()
        Mark(folder + "/gone").wait()
        logging.error("a line that nobody reads")
    assert [float(f(np.ones(4))) for _ in range(3)] == [4, 4, 4]
    pool = runtime._lifecycle.pool
    os.kill(pool.pids[0], signal.SIGKILL)
    pool._workers[0].process.wait()
    with pytest.raises(WorkerDied):
        pool.send(b"anybody there?", "a test")
os._exit(7)  # what the streams still hold cannot be written
"""


@pytest.mark.parametrize("streams", ["closed", "gone"])
def test_a_program_whose_streams_are_closed_or_whose_terminal_goes_away_goes_on(
    zygote, tmp_path, streams
):
    terminal, theirs = os.openpty()
    with no_ranks_left(), zygote.start(TALKATIVE, tmp_path, streams, terminal=theirs) as program:
        os.close(theirs)
        if streams == "gone":
            Mark(tmp_path / "ready").wait(200)
        os.close(terminal)
        Mark(tmp_path / "gone").set()
        assert program.wait(200) == 7, program.printed()
