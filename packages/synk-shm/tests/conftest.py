"""What the tests share: limits on time, names of their own, programs that run beside them."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from synk_testing import Program, Zygote, hard_limit, shared_memory

pytest_plugins = ["synk_shm.testing"]

TIMEOUT_S = 60  # for what a program does
LIMIT_S = 180  # for a test, however it hangs
SLOW_LIMIT_S = 900
WARNINGS = ("-W", "error")

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


_limit = hard_limit(LIMIT_S, SLOW_LIMIT_S)


def pytest_configure(config):
    """Every warning is an error, on the oldest NumPy and Python as on the newest."""
    config.addinivalue_line("filterwarnings", "error")


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
            found = [name for part in parts for name in shared_memory(part)]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.01)

    return look


class Script:
    """Programs that run a file each, with every warning an error.

    Each has a session of its own: at the end no process of it may be left.
    """

    def __init__(self, folder: Path, zygote: Zygote) -> None:
        self._folder = folder
        self._zygote = zygote
        self._started: list[Program] = []

    def start(self, code: str, *arguments: Any, prefix: tuple[str, ...] = ()) -> Program:
        path = self._folder / f"script{len(self._started)}.py"
        path.write_text(textwrap.dedent(code))
        how = {"options": WARNINGS, "prefix": prefix, "limit_s": TIMEOUT_S, "grace_s": TIMEOUT_S}
        # What it says on standard error is compared.
        program = Program(path, *arguments, zygote=self._zygote, stacks=False, **how)
        self._started.append(program)
        return program

    def run(self, code: str, *arguments: Any, prefix: tuple[str, ...] = ()) -> str:
        """Run to the end; the exit code must be 0 and stderr empty. Returns stdout."""
        return self.finish(self.start(code, *arguments, prefix=prefix))

    def finish(self, process: Program, line: str | None = None) -> str:
        """Let it read this line and no more; else as `run`."""
        status, out, err = process.finish(line)
        if status or err:
            raise AssertionError(f"exit code {status}, and it said:\n{err}")
        return out.strip()

    def end(self) -> None:
        with contextlib.ExitStack() as stack:  # all, though one may fail
            for program in self._started:
                stack.callback(program.close)


@pytest.fixture(scope="session")
def zygote():
    """A process that has imported NumPy; programs import this package by themselves."""
    with Zygote("import numpy", WARNINGS) as made:
        yield made


@pytest.fixture
def script(tmp_path: Path, zygote):
    made = Script(tmp_path, zygote)
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
    if any(os.path.realpath(place).startswith("/dev/shm/") for place in (*sys.path, sys.prefix)):
        pytest.skip("the package lies in /dev/shm, where these programs would not find it")
    return private_or_skip("mount -t tmpfs -o size=16m none /dev/shm")


@pytest.fixture
def other_pids(private_or_skip) -> tuple[str, ...]:
    """The prefix of programs in a pid namespace of their own, as in another container."""
    return private_or_skip("true", "-p", "-f", "--mount-proc")
