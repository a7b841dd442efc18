"""What several test files need: groups in threads, and programs."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

BOTH = pytest.mark.parametrize("backend", ["shm", pytest.param("zmq", marks=pytest.mark.nightly)])


def environment(**more):
    """Return this process's environment, for a program that is no rank and finds its modules."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SYNK_COMM_")}
    return dict(kept, PYTHONPATH=os.pathsep.join(filter(None, sys.path)), **more)


def run_python(*words, timeout_s=60.0, cwd=None, **more):
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def printed_by(*words, **options):
    """Return what a program printed; it ends well and without a warning."""
    done = run_python(*words, **options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def pids_in(folder, count, limit_s=60.0):
    deadline = time.monotonic() + limit_s
    while len(os.listdir(folder)) < count:
        assert time.monotonic() < deadline, os.listdir(folder)
        time.sleep(0.02)
    return [int(name) for name in os.listdir(folder)]
