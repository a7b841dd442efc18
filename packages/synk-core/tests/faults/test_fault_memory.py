"""/dev/shm is full, in every state that might want of it: memory beside it serves, and no error."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from synk_testing import run

ACTS = [
    # Known data, and buffers that are there.
    *("call", "step", "all_reduce", "gather", "end"),
    # Room for what the workers do not have yet: a function, one of its forms, rows, indexes.
    *("distribute", "slice", "copy", "grow"),
]

CROWDED = """
import sys
sys.path.insert(0, sys.argv[1])
from _fault_bench import Bench
import synk_shm
from synk_core import Runtime
from synk_shm.testing import no_segments_left
from synk_testing import BUT_PROCESSES, nothing_left

def fill():
    kept = []
    for size in (1 << 20, 1 << 12):
        try:
            while True:
                kept.append(synk_shm.full(size, 1, "u1"))
        except synk_shm.ShmFullError:
            pass
    return kept

with nothing_left(without=BUT_PROCESSES), no_segments_left():
    full = fill()
    with Runtime(2, use_gpu=False) as runtime:
        bench = Bench(runtime)
        assert bench.call()
        full.clear()
        for act in sys.argv[2:]:
            before = bench.reset()
            full = fill()
            assert getattr(bench, act)(), act
            full.clear()
            assert bench.verdict(act) <= {"same", "after"}, act
            assert bench.reset() == before and getattr(bench, act)(), act
    del bench
"""


def private_prefix(command):
    """The prefix of a program that has a mount namespace of its own, in which `command` runs first.

    Skips the test, with the reason, where that is not allowed.
    """
    user = () if os.geteuid() == 0 else ("-r",)
    prefix = ("unshare", *user, "-m", "sh", "-c", f'{command} && exec "$@"', "sh")
    if shutil.which("unshare") is None:
        pytest.skip("needs the unshare command, for a small file system of its own")
    trial = subprocess.run([*prefix, "true"], capture_output=True, timeout=30)
    if trial.returncode:
        pytest.skip(f"this system allows no private mounts: {trial.stderr.decode()[:80]}")
    return prefix


def test_neither_a_start_nor_an_act_needs_room_in_dev_shm():
    prefix = private_prefix("mount -t tmpfs -o size=16m none /dev/shm")
    status, _, err = run(CROWDED, Path(__file__).parent, *ACTS, prefix=prefix)
    assert status == 0, err
