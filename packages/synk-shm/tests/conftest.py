"""What the tests share: limits on time, names of their own, programs that run beside them."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["synk_shm.testing"]

TIMEOUT_S = 60  # for what a program does
LIMIT_S = 180  # for a test, however it hangs
SLOW_LIMIT_S = 900

PRELUDE = """
import gc, multiprocessing as mp, os, pickle, signal, sys, threading, time
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import synk_shm as shm

def mine():
    return [info.name for info in shm.list() if info.mine]
"""
MAIN = """
if __name__ == "__main__":
    expected = main(mp.get_context(sys.argv[1])) or 0
    gc.collect()
    assert len(mine()) == expected, mine()
"""


@pytest.fixture(autouse=True)
def _limit(request):
    """Every test ends: if need be by a failure at the very place where it waits."""
    limit_s = SLOW_LIMIT_S if request.node.get_closest_marker("slow") else LIMIT_S

    def late(number, frame):
        pytest.fail(f"the test took longer than {limit_s} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def _clean(no_segments_left: None) -> None:
    """No test leaves a segment behind."""


@pytest.fixture
def descriptors():
    """A function that counts this process's open files."""
    return lambda: len(os.listdir("/proc/self/fd"))


@pytest.fixture
def given():
    """A function that makes names nobody else uses, so that two suites can run side by side."""
    return lambda word: f"{word}-{secrets.token_hex(5)}"


@pytest.fixture
def left():
    """A function: what is in shared memory, lock files included, with one of these in its name.

    It waits a moment for that to go, since another program may be sweeping it just now.
    """

    def look(*parts: str) -> list[str]:
        deadline = time.monotonic() + 2
        while True:
            names = os.listdir("/dev/shm")
            found = [name for name in names if any(part in name for part in parts)]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.01)

    return look


class Script:
    """Fresh interpreters that run a file each, with every warning an error.

    Each has a session of its own: at the end no process of it may be left.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(self, code: str, *arguments: Any, prefix: tuple[str, ...] = ()) -> Any:
        path = self._folder / f"script{len(self._started)}.py"
        path.write_text(textwrap.dedent(code))
        process = subprocess.Popen(
            [*prefix, sys.executable, "-W", "error", str(path), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(self, code: str, *arguments: Any, prefix: tuple[str, ...] = ()) -> str:
        """Run to the end; the exit code must be 0 and stderr empty. Returns stdout."""
        return self.finish(self.start(code, *arguments, prefix=prefix))

    def finish(self, process: subprocess.Popen[str], input_: str | None = None) -> str:
        try:
            out, err = process.communicate(input_, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            err = process.communicate(timeout=TIMEOUT_S)[1]
            raise AssertionError(f"not finished after {TIMEOUT_S} s, and it said:\n{err}") from None
        if process.returncode or err:
            raise AssertionError(f"exit code {process.returncode}, and it said:\n{err}")
        return out.strip()

    def line(self, process: subprocess.Popen[str]) -> str:
        """The next line that it prints. If none comes in time it is killed, and this fails."""
        timer = threading.Timer(TIMEOUT_S, os.killpg, [process.pid, signal.SIGKILL])
        timer.start()
        text = process.stdout.readline()
        timer.cancel()
        timer.join()
        if not text:
            raise AssertionError(f"it said nothing more: {process.communicate(timeout=10)[1]}")
        return text.strip()

    def go_on(self, process: subprocess.Popen[str]) -> None:
        """Give it a line to read."""
        process.stdin.write("\n")
        process.stdin.flush()

    def kill(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait(TIMEOUT_S)

    def kill_group(self, process: subprocess.Popen[str]) -> None:
        """Kill it and all its children at one stroke."""
        os.killpg(process.pid, signal.SIGKILL)
        self.wait_for_all(process)

    def wait_for_all(self, process: subprocess.Popen[str]) -> None:
        """Wait until it and all its children have ended."""
        process.wait(TIMEOUT_S)
        assert not self._wait({process.pid}), "a process is left"

    def _wait(self, sessions: set[int]) -> list[int]:
        deadline = time.monotonic() + TIMEOUT_S
        while (left := members(sessions)) and time.monotonic() < deadline:
            time.sleep(0.01)
        return left

    def end(self) -> None:
        left = self._wait({made.pid for made in self._started if made.poll() is not None})
        for pid in members({process.pid for process in self._started}):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self._started:
            process.wait(TIMEOUT_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                stream.close()
        assert not left, f"programs that had ended left processes: {left}"


def members(sessions: set[int]) -> list[int]:
    """The living processes of these sessions."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                status = Path("/proc", entry, "stat").read_text()
                threads = os.listdir(f"/proc/{entry}/task")
            except OSError:  # ended since
                continue
            state, _, _, session = status.rpartition(")")[2].split()[:4]
            # While a thread is left the process holds its files and locks.
            if int(session) in sessions and (state not in "ZX" or len(threads) > 1):
                found.append(int(entry))
    return found


@pytest.fixture
def script(tmp_path: Path):
    made = Script(tmp_path)
    yield made
    made.end()


@pytest.fixture
def program(script: Script):
    """Run a program with a `main(context)` that uses multiprocessing, by a start method.

    What main returns is how many segments may be left when it has returned.
    """

    def run(code: str, method: str, *arguments: Any, prefix: tuple[str, ...] = ()) -> str:
        whole = PRELUDE + textwrap.dedent(code) + MAIN
        return script.run(whole, method, *arguments, prefix=prefix)

    return run


@pytest.fixture
def private_or_skip():
    """A function that makes the prefix of programs with namespaces of their own.

    What it is given runs there first, as root of these namespaces.
    """

    def make(command: str, *flags: str) -> tuple[str, ...]:
        user = () if os.geteuid() == 0 else ("-r",)
        prefix = ("unshare", *user, "-m", *flags, "sh", "-c", f'{command} && exec "$@"', "sh")
        if shutil.which("unshare") is None:
            pytest.skip("needs the unshare command, for a /dev/shm of its own")
        trial = subprocess.run([*prefix, "true"], check=False, capture_output=True, timeout=30)
        if trial.returncode:
            pytest.skip(f"this system allows no private namespaces: {trial.stderr.decode()[:80]}")
        return prefix

    return make


@pytest.fixture
def small_shm(private_or_skip) -> tuple[str, ...]:
    """The prefix of programs that see a /dev/shm of 16 MiB of their own."""
    return private_or_skip("mount -t tmpfs -o size=16m none /dev/shm")


@pytest.fixture
def other_pids(private_or_skip) -> tuple[str, ...]:
    """The prefix of programs in a pid namespace of their own, as in another container."""
    return private_or_skip("true", "-p", "-f", "--mount-proc")
