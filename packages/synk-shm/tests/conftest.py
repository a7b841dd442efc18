"""Fixtures of the tests: time limits, unique names, programs in processes of their own."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from synk_testing import Program, Zygote, hard_limit, in_private, shared_memory

pytest_plugins = ["synk_shm.testing"]

TIMEOUT_S = 60  # for what a program does
LIMIT_S = 180  # for a test
WARNINGS = ("-W", "error")

# Before every program but those of `bare_script`. It does not import multiprocessing.
PRELUDE = """
import errno, gc, os, pickle, signal, subprocess, sys, threading, time
import numpy as np
import synk_shm as shm

def mine():
    return [info.name for info in shm.list() if info.mine]

def attach_hex(text, **options):
    return pickle.loads(bytes.fromhex(text)).attach(**options)

def print_handle(a):
    print(pickle.dumps(shm.handle(a)).hex(), flush=True)

def refused(kind, *acts):
    errors = []
    for act in acts:
        try:
            act()
        except kind as error:
            errors.append(error)
        else:
            raise AssertionError("it was not refused")
    return errors
"""
MULTIPROCESSING = """
import contextlib, multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor

def start(context, target, *arguments):
    made = context.Process(target=target, args=arguments)
    made.start()
    return made

def join(*children, code=0):
    for child in children:
        child.join(60)
        assert child.exitcode == code, child.exitcode

@contextlib.contextmanager
def pool_of(context, *arguments):
    with context.Pool(*arguments) as pool:
        yield pool
        pool.close()
        pool.join()
"""
MAIN = """
if __name__ == "__main__":
    expected = main(mp.get_context(sys.argv[1])) or 0
    gc.collect()
    assert len(mine()) == expected, mine()
"""
METHODS = ["fork", "spawn", "forkserver"]


FEW = {
    "test_a_fork_that_ends": 4,
    "test_a_name_that_another_has_taken": 2,
    "test_a_squatted_lock_file_stops_no_process": 3,
    "test_a_squatted_name_is_neither_used_nor_touched": 5,
    "test_arrays_are_the_same_memory": 1,
    "test_exit_of_an_attacher_changes_nothing": 2,
    "test_exit_of_the_owner_unlinks": 2,
    "test_handlers_that_end_it_otherwise": 5,
    "test_handlers_that_use_arrays": 5,
    "test_last_attacher_removes_segments_of_a_killed_owner": 2,
    "test_message_outlives_its_sender": 3,
    "test_no_process_sees_a_half_made_segment": 1,
    "test_program_of_the_guide": 4,
    "test_parallel_program_of_the_guide": 2,
    "test_ring_whose_producer_is_killed": 1,
    "test_segments_of_a_killed_owner_are_removed": 2,
}
"""How many cases of a test run by day: they are spread over all, and the others are nightly."""

_limit = hard_limit(LIMIT_S, last_resort=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = getattr(item, "originalname", "")
        is_ours = name in FEW and item.path.parent == Path(__file__).parent
        if is_ours and item.get_closest_marker("nightly") is None:
            cases.setdefault(name, []).append(item)
    for name, found in cases.items():
        step = -(-len(found) // FEW[name])
        for place, item in enumerate(found):
            if place % step:
                item.add_marker(pytest.mark.nightly)


def pytest_configure(config):
    """Every warning is an error, on the oldest NumPy and Python as on the newest."""
    config.addinivalue_line("filterwarnings", "error")


@pytest.fixture(autouse=True)
def _clean(no_segments_left: None) -> None:
    """No test leaves a segment behind."""


@pytest.fixture
def descriptors():
    return lambda: len(os.listdir("/proc/self/fd"))


@pytest.fixture
def given():
    """A function that makes unique names, so that two suites can run side by side."""
    return lambda word: f"{word}-{secrets.token_hex(5)}"


@pytest.fixture
def left():
    """Return the entries of shared memory with a part in the name, which have 2 s to go."""

    def look(*parts: str) -> list[str]:
        deadline = time.monotonic() + 2
        while True:
            found = [name for part in parts for name in shared_memory(part)]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.01)

    return look


class Script:
    """Run programs, each from a file of its own; a warning is an error, and nothing is left."""

    def __init__(self, folder: Path, zygote: Zygote, prelude: str) -> None:
        self._folder = folder
        self._zygote = zygote
        self._prelude = prelude
        self._started: list[Program] = []

    def start(self, code: str, *arguments: Any, prefix: tuple[str, ...] = ()) -> Program:
        path = self._folder / f"script{len(self._started)}.py"
        path.write_text(self._prelude + textwrap.dedent(code))
        how = {"options": WARNINGS, "prefix": prefix, "limit_s": TIMEOUT_S, "grace_s": TIMEOUT_S}
        # No stacks: tests compare the program's standard error.
        program = Program(path, *arguments, zygote=self._zygote, stacks=False, **how)
        self._started.append(program)
        return program

    def run(self, code: str, *arguments: Any, prefix: tuple[str, ...] = ()) -> str:
        """Run to the end; the exit code must be 0 and stderr empty. Return stdout."""
        return self.finish(self.start(code, *arguments, prefix=prefix))

    def finish(self, process: Program, line: str | None = None) -> str:
        """Send this line, close the program's stdin, and go on as `run` does."""
        status, out, err = process.finish(line)
        if status or err:
            raise AssertionError(f"exit code {status}, and on stderr:\n{err}")
        return out.strip()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # close all, also after one has failed
            for program in self._started:
                stack.callback(program.close)


@pytest.fixture(scope="session")
def zygote():
    """A process that has imported NumPy; each program imports this package itself."""
    with Zygote("import numpy", WARNINGS) as made:
        yield made


@pytest.fixture
def script(tmp_path: Path, zygote):
    with contextlib.closing(Script(tmp_path, zygote, PRELUDE)) as made:
        yield made


@pytest.fixture
def bare_script(tmp_path: Path, zygote):
    with contextlib.closing(Script(tmp_path, zygote, "")) as made:
        yield made


@pytest.fixture(
    params=["fork", *(pytest.param(name, marks=pytest.mark.nightly) for name in METHODS[1:])]
)
def method(request) -> str:
    """A start method of multiprocessing: by day "fork", where more can go wrong at an exit."""
    return request.param


@pytest.fixture(params=METHODS)
def each_method(request) -> str:
    """A start method of multiprocessing, each of them by day, too."""
    return request.param


@pytest.fixture
def program(script: Script):
    """Run a program with a `main(context)`, which returns how many segments it may leave."""

    def run(code: str, method: str, *arguments: Any, prefix: tuple[str, ...] = ()) -> str:
        whole = MULTIPROCESSING + textwrap.dedent(code) + MAIN
        return script.run(whole, method, *arguments, prefix=prefix)

    return run


@pytest.fixture
def small_shm() -> tuple[str, ...]:
    """The prefix of programs that see a /dev/shm of 16 MiB of their own."""
    if any(os.path.realpath(place).startswith("/dev/shm/") for place in (*sys.path, sys.prefix)):
        pytest.skip("the package lies in /dev/shm, where these programs would not find it")
    return in_private("mount -t tmpfs -o size=16m none /dev/shm")


@pytest.fixture
def other_pids() -> tuple[str, ...]:
    """The prefix of programs in a pid namespace of their own, as in another container."""
    return in_private("true", "-p", "-f", "--mount-proc")
