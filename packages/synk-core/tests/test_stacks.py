"""What a worker says of where it is, whatever it is doing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from _busy import (
    await_stacks,
    calling_in_threads,
    computing,
    hold_the_lock,
    sleep_deep_down,
    sleep_in_a_thread,
    sleep_in_python,
)
from _leaks import no_ranks_left

from synk_core import Runtime
from synk_core._workers import stacks as _stacks
from synk_testing import descriptors

BEGINNING = "in <module>\n"
SIGNALS = [int(_stacks.BETWEEN_BYTECODES), int(_stacks.AT_ONCE)]


@pytest.fixture(
    scope="module",
    params=[pytest.param(sleep_in_python, marks=pytest.mark.nightly), hold_the_lock],
)
def busy(request):
    """What the last of three ranks computes, and the pool."""
    with computing(request.param, size=3) as pool:
        yield request.param, pool


def test_a_worker_that_computes_says_where(busy, record_property):
    act, pool = busy
    stacks = {}
    slowest_s = 0.0
    for _ in range(20):
        began = time.monotonic()
        stacks = pool.stacks()
        slowest_s = max(slowest_s, time.monotonic() - began)
    assert sorted(stacks) == [1, 2]
    assert f"in {act.__name__}" in stacks[2]
    assert "in take" in stacks[1] or "in gather" in stacks[1] or "in _finish" in stacks[1]
    for text in stacks.values():
        assert "Current thread" in text
        assert "in with_master" in text  # all threads
        assert text.endswith(BEGINNING)
    assert list(pool.stacks([2])) == [2]
    assert pool.stacks([]) == {}
    record_property("slowest_s", slowest_s)
    print(f"{act.__name__}: slowest of 20 {slowest_s * 1000:.1f} ms")


def test_who_runs_bytecodes_is_asked_between_two_of_them(monkeypatch, busy):
    """Stacks that are read in the middle of one end the process, in one case of thousands."""
    act, pool = busy
    asked, ask = set(), _stacks.StackFile.ask

    def noted(self, process, number):
        asked.add(number)
        ask(self, process, number)

    monkeypatch.setattr(_stacks.StackFile, "ask", noted)
    monkeypatch.setattr(_stacks, "PATIENCE_S", 2.0)  # for machines that are busy
    text = pool.stacks([2], timeout_s=20.0)[2]
    assert f"in {act.__name__}" in text
    assert "in answer" not in text
    assert asked == ({_stacks.BETWEEN_BYTECODES} if act is sleep_in_python else set(SIGNALS))


def test_other_threads_are_shown_too():
    with computing(sleep_in_a_thread) as pool:
        text = await_stacks(pool, 1, "in sleep_in_python")[1]
        assert text.count("Thread 0x") >= 2
        assert "in sleep_in_a_thread" in text


@pytest.mark.nightly
def test_of_many_calls_the_last_are_shown_without_waiting_for_more():
    with computing(sleep_deep_down) as pool:
        began = time.monotonic()
        (text,) = pool.stacks(timeout_s=30.0).values()
        assert time.monotonic() - began < 15
        assert text.endswith("  ...\n")


def test_a_worker_that_still_starts_says_where():
    with no_ranks_left(), Runtime(2) as runtime:
        text = await_stacks(runtime._controller._pool, 1, "import")[1]
        assert text.endswith(BEGINNING)
        runtime.distribute()  # it was not disturbed


def test_of_a_stopped_or_dead_worker_that_is_said():
    with no_ranks_left():
        runtime = Runtime(3)
        runtime.distribute()
        pool = runtime._controller._pool
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


WAITS_IN_THE_KERNEL = """
import os, sys
# The child opens a FIFO, which takes until somebody writes, and its parent waits for that.
opening = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
os.posix_spawn("/bin/true", ["true"], {}, file_actions=opening)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/wchan"), reason="Linux tells what waits where")
def test_of_a_worker_that_is_stuck_in_the_kernel_that_is_said(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    file = _stacks.StackFile()
    process = subprocess.Popen([sys.executable, "-c", WAITS_IN_THE_KERNEL, str(fifo)])
    try:
        deadline = time.monotonic() + 30
        seen = 0
        while seen < 20:  # and not just reading from a disk for a moment
            assert time.monotonic() < deadline
            seen = seen + 1 if _stacks._state(process.pid) == "D" else 0
            time.sleep(0.01)
        began = time.monotonic()
        text = _stacks.Stacks().gather({7: (process, file)}, 0.5)[7]
        took_s = time.monotonic() - began
        assert f"process {process.pid} is in uninterruptible sleep in the kernel" in text
        assert 0.4 < took_s < 5
    finally:
        with contextlib.suppress(OSError):  # nobody reads
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        process.kill()
        process.wait()
        file.close()


def test_a_process_that_does_not_answer_is_told_apart_from_one_that_did():
    file = _stacks.StackFile()
    # Where it has nothing to do with Python, the signals have to be ignored.
    deaf = (
        "import signal, sys; [signal.signal(int(n), signal.SIG_IGN) for n in sys.argv[1:]];"
        "print(flush=True); sys.stdin.read(); sys.exit(1)"
    )
    command = [sys.executable, "-c", deaf, *map(str, SIGNALS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        text = _stacks.Stacks().gather({1: (process, file)}, 0.2)[1]
        assert "has not written all its stacks in 0.2 s" in text
    assert "is gone: it exited with status 1" in _stacks.Stacks().gather({1: (process, file)}, 9)[1]
    file.close()


@pytest.mark.nightly
def test_several_threads_may_ask_and_another_one_may_close():
    with computing(hold_the_lock) as pool:
        texts = []

        def ask():
            for _ in range(30):
                texts.extend(pool.stacks(timeout_s=10.0).values())

        with calling_in_threads([ask] * 4):
            time.sleep(0.05)
            pool.kill()
        assert texts
        for text in texts:
            assert text.endswith(BEGINNING) or "is gone" in text or "not written" in text, text


TELLS = """
import faulthandler, sys
for number in sys.argv[2:]:
    faulthandler.register(int(number), int(sys.argv[1]))
print(flush=True)
sys.stdin.read()
"""


def test_without_files_in_memory_there_is_a_temporary_one_without_a_name(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = len(descriptors())
    file = _stacks.StackFile()
    assert list(tmp_path.iterdir()) == []
    command = [sys.executable, "-c", TELLS, str(file.fd), *map(str, SIGNALS)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, pass_fds=(file.fd,), **pipes) as process:
        process.stdout.readline()
        for _ in range(3):
            text = _stacks.Stacks().gather({1: (process, file)}, 0.3)[1]
            assert text.count("Current thread") == 1
    file.close()
    assert len(descriptors()) <= before
