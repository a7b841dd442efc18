"""What a worker says of where it is, whatever it is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from _busy import await_stacks, computing, hold_the_lock, sleep_beside_a_thread
from _leaks import no_ranks_left

from synk_core import Runtime
from synk_core._workers import stacks as _stacks

BEGINNING = "in <module>\n"


@pytest.mark.parametrize("act", [hold_the_lock, sleep_beside_a_thread])
def test_a_worker_that_computes_says_where(monkeypatch, act):
    """A thread answers between two bytecodes; in the middle of one it may end the process."""
    asked, ask = set(), _stacks.StackFile.ask

    def noted(self, process, number):
        asked.add(number)
        ask(self, process, number)

    with computing(act, size=3) as pool:
        for _ in range(5):
            stacks = pool.stacks()
            assert sorted(stacks) == [1, 2]
            assert f"in {act.__name__}" in stacks[2]
            assert "in take" in stacks[1] or "in gather" in stacks[1] or "in _finish" in stacks[1]
            if act is sleep_beside_a_thread:
                assert "in sleep_in_a_thread" in stacks[2]
            for text in stacks.values():
                assert "Current thread" in text
                assert text.endswith(BEGINNING)
        assert pool.stacks([]) == {}
        monkeypatch.setattr(_stacks.StackFile, "ask", noted)
        monkeypatch.setattr(_stacks, "PATIENCE_S", 2.0)  # for machines that are busy
        ((rank, text),) = pool.stacks([2], timeout_s=20.0).items()
        assert rank == 2
        assert "in answer" not in text
        if act is hold_the_lock:
            assert asked == set(_stacks.SIGNALS)
        else:
            assert asked == {_stacks.BETWEEN_BYTECODES}
            assert "in sleep_in_a_thread" in text


def test_a_worker_that_still_starts_says_where():
    with no_ranks_left(), Runtime(2) as runtime:
        text = await_stacks(runtime._lifecycle.pool, 1, "import")[1]
        assert text.endswith((BEGINNING, "  ...\n")), "of deep imports, only the latest"
        runtime.distribute()  # it was not disturbed


def test_a_stopped_or_dead_worker_is_described():
    with no_ranks_left():
        runtime = Runtime(3)
        runtime.distribute()
        pool = runtime._lifecycle.pool
        stopped, dead = runtime.worker_pids
        os.kill(stopped, signal.SIGSTOP)
        os.kill(dead, signal.SIGKILL)
        pool._workers[1].process.wait(20)
        began = time.monotonic()
        stacks = pool.stacks(timeout_s=30.0)
        assert time.monotonic() - began < 15
        assert f"process {stopped} is stopped" in stacks[1]
        assert f"kill -CONT {stopped}" in stacks[1]
        assert f"process {dead} is gone: it was killed by signal 9" in stacks[2]
        os.kill(stopped, signal.SIGCONT)
        assert await_stacks(pool, 1, BEGINNING)[1].count("Current thread") == 1
        runtime.close()
        assert pool.stacks() == {}


@contextmanager
def answering(code, file):
    """A Python process that runs this code, with the file and the signals, until its input ends."""
    code = f"import faulthandler, signal, sys\n{code}\nprint(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(file.fd), *map(str, _stacks.SIGNALS)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, pass_fds=(file.fd,), **pipes) as process:
        process.stdout.readline()
        yield process


def test_a_process_that_does_not_answer_is_described_by_the_system(monkeypatch):
    file = _stacks.StackFile()
    # Where it has nothing to do with Python, the signals have to be ignored.
    with answering("[signal.signal(int(n), signal.SIG_IGN) for n in sys.argv[2:]]", file) as deaf:
        text = _stacks.Stacks().gather({1: (deaf, file)}, 0.2)[1]
        assert "has not written all its stacks in 0.2 s" in text
        with monkeypatch.context() as patch:
            patch.setattr(_stacks, "_state", lambda _pid: "D")
            text = _stacks.Stacks().gather({1: (deaf, file)}, 0.2)[1]
        assert f"process {deaf.pid} is in uninterruptible sleep in the kernel" in text
    assert "is gone: it exited with status 0" in _stacks.Stacks().gather({1: (deaf, file)}, 9)[1]
    file.close()
