"""The public names, the imports of the package, and its leak check."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

import synk_shm
from synk_shm import testing


def test_public_names():
    names = [
        "Handle", "Segment", "SegmentInfo", "ShmError", "ShmExistsError",
        "ShmFormatError", "ShmFullError", "ShmNotFoundError", "ShmPermissionError",
        "ShmTimeoutError", "attach", "cleanup", "close", "empty", "empty_like", "free_space",
        "full", "full_like", "handle", "is_shared", "leave", "list", "ones",
        "ones_like", "register_joblib", "resize", "segment", "share", "unlink", "zeros",
        "zeros_like",
    ]  # fmt: skip
    assert sorted(synk_shm.__all__) == names
    for name in synk_shm.__all__:
        assert getattr(synk_shm, name).__doc__, name
    assert {*dir(synk_shm)} == {*synk_shm.__all__, "exceptions"}


def test_leak_check_waits_for_the_removal_by_another_program(given):
    name = given("dead")
    die = f"import os, synk_shm\na = synk_shm.ones(3, name={name!r})\nos.kill(os.getpid(), 9)"
    with testing.no_segments_left(timeout_s=0.05):
        subprocess.run([sys.executable, "-c", die], check=False, timeout=60)
        remover = threading.Timer(0.5, synk_shm.unlink, [name], {"missing_ok": True})
        remover.start()
    remover.join()
    assert name not in str(synk_shm.list())


def test_leak_check_names_leftovers():
    with pytest.raises(AssertionError, match="1 shared memory segments are left"):
        with testing.no_segments_left(timeout_s=0.05):
            kept = synk_shm.ones(3)
    assert kept.sum() == 3
    with testing.no_segments_left():
        synk_shm.ones(3)
