"""Programs in a process of their own, as a user's would be, on the device set of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path
from typing import Any

MARK = "SYNK_DEVICE_PROGRAM"

# What the programs of `failures/` begin with.
PREAMBLE = """
import json, os, signal, sys, threading, time
import numpy as np
import theano
import theano.tensor as T
from theano.compile.ops import as_op
import synkhronos as synk

FORK = json.loads(os.environ["SYNK_FORK"])
N = int(os.environ["SYNK_RANKS"])

def fork(**more):
    return synk.fork(**FORK, verbose=False, **more)

def workers():
    # Who has a rank: this process's children that run the worker's module.
    pids = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children") as children:
            pids += [int(pid) for pid in children.read().split()]
    return sorted(pid for pid in pids if b"worker" in open(f"/proc/{pid}/cmdline", "rb").read())

def tell(**facts):
    print("@" + json.dumps(facts), flush=True)

def attempt(act, *args, **kwargs):
    # What it raised, and after how long.
    start = time.monotonic()
    try:
        act(*args, **kwargs)
    except BaseException as error:
        return {"error": type(error).__name__, "kinds": [k.__name__ for k in type(error).__mro__],
                "text": str(error)[:2000], "seconds": time.monotonic() - start,
                "signal": getattr(error, "signal", None), "rank": getattr(error, "rank", None),
            "doing": getattr(error, "doing", None)}
    return {"error": None, "seconds": time.monotonic() - start}
"""


class Ended:
    """A program that has ended: status, output, and what it told."""

    def __init__(self, status: int, out: str, err: str, seconds: float) -> None:
        self.status, self.out, self.err, self.seconds = status, out, err, seconds
        self.told: dict[str, Any] = {}
        for line in out.splitlines():
            if line.startswith("@"):
                self.told.update(json.loads(line[1:]))

    def __str__(self) -> str:
        return f"status {self.status}\nstdout:\n{self.out}\nstderr:\n{self.err}"


def run_program(
    device_set: Any, code: str, timeout_s: float = 120.0, preamble: str = PREAMBLE, **variables: str
) -> Ended:
    """Run a program; it has to end in time. Nothing that it started may outlive it for long.

    Raises:
        AssertionError: it took too long, or left processes behind.
    """
    began = time.monotonic()
    # By its name all that it has started is found again, in whatever session.
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-c", preamble + textwrap.dedent(code)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "SYNK_FORK": json.dumps(device_set.fork_arguments),
            "SYNK_RANKS": str(device_set.ranks),
            MARK: mark,
            **variables,
        },
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _kill_all(mark)
        out, err = process.communicate()
        raise AssertionError(
            f"not done after {timeout_s} s\n{Ended(-9, out, err, timeout_s)}"
        ) from None
    finally:
        left = _wait_until_alone(mark)
    ended = Ended(process.returncode, out, err, time.monotonic() - began)
    assert not left, f"left processes behind: {left}\n{ended}"
    return ended


def _members(mark: str) -> dict[int, str]:
    """The living processes of a program, with their command lines."""
    entry = f"{MARK}={mark}".encode()
    members = {}
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if entry in environ.read_bytes().split(b"\0"):
                line = environ.with_name("cmdline").read_bytes()
                members[int(environ.parent.name)] = line.replace(b"\0", b" ").decode(
                    errors="replace"
                )
        except OSError:
            continue  # ended meanwhile, or another user's
    return members


def _kill_all(mark: str) -> None:
    for pid in _members(mark):
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            pass


def _wait_until_alone(mark: str, grace_s: float = 10.0) -> dict[int, str]:
    """Wait for all of a program to end; what has not is killed, and returned."""
    deadline = time.monotonic() + grace_s
    while True:
        left = _members(mark)
        if not left or time.monotonic() > deadline:
            _kill_all(mark)
            return left
        time.sleep(0.05)


def ended_well(ended: Ended) -> Any:
    """What a program told that has ended without an error."""
    assert ended.status == 0, str(ended)
    return ended.told
