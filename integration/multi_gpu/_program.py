"""Programs in a process of their own, as a user's would be, on the device set of the tests."""

from __future__ import annotations

import json
import textwrap
import time
from typing import Any, Callable

from synk_testing import run

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
    run = {pid: open(f"/proc/{pid}/cmdline", "rb").read() for pid in pids}
    return sorted(pid for pid in pids if b"_workers.worker" in run[pid])

def tell(**facts):
    print("@" + json.dumps(facts), flush=True)

def attempt(act, *args, **kwargs):
    start = time.monotonic()
    try:
        act(*args, **kwargs)
    except BaseException as error:
        return {"error": type(error).__name__, "kinds": [k.__name__ for k in type(error).__mro__],
                "text": str(error)[:2000], "seconds": time.monotonic() - start,
                "signal": getattr(error, "signal", None), "rank": getattr(error, "rank", None)}
    return {"error": None, "seconds": time.monotonic() - start}
"""


class Ended:
    def __init__(self, status: int, out: str, err: str, seconds: float) -> None:
        self.status, self.out, self.err, self.seconds = status, out, err, seconds
        self.told: dict[str, Any] = {}
        for line in out.splitlines():
            if line.startswith("@"):
                self.told.update(json.loads(line[1:]))

    def __str__(self) -> str:
        return f"status {self.status}\nstdout:\n{self.out}\nstderr:\n{self.err}"


def run_program(
    device_set: Any,
    beginning: str = "",
    timeout_s: float = 120.0,
    preamble: str = PREAMBLE,
    **variables: str,
) -> Callable[[str], Ended]:
    """Return a function that runs a program, given the code that follows its `beginning`.

    It raises AssertionError if that does not end in time, or leaves anything behind.
    """

    def run_it(code: str) -> Ended:
        began = time.monotonic()
        environment = {
            "SYNK_FORK": json.dumps(device_set.fork_arguments),
            "SYNK_RANKS": str(device_set.ranks),
            **variables,
        }
        source = preamble + textwrap.dedent(beginning + code)
        done = run(source, environment=environment, limit_s=timeout_s)
        return Ended(*done, time.monotonic() - began)

    return run_it


def told_by(device_set: Any, beginning: str = "", **how: Any) -> Callable[[str], Any]:
    """Return a function that runs a program, which has to end well, and returns its facts."""

    def run_it(code: str) -> Any:
        ended = run_program(device_set, beginning, **how)(code)
        assert ended.status == 0, str(ended)
        return ended.told

    return run_it
