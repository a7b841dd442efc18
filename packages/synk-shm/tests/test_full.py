"""A full /dev/shm is an error that says so, never a SIGBUS, and leaves nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import synk_shm as shm


def test_more_than_there_is():
    with pytest.raises(shm.ShmFullError) as caught:
        shm.empty(1 << 56, "u1")
    for word in ("asked for 65536.0 TiB", "free", "total", "/dev/shm", "--shm-size", "memfd"):
        assert word in str(caught.value)
    assert isinstance(caught.value, MemoryError)
    with pytest.raises(MemoryError):
        shm.empty(1 << 56, "u1", backend="memfd")
    a = shm.zeros(1, "u1", capacity=1 << 40)  # room is free until it is used
    with pytest.raises(MemoryError):
        shm.resize(a, 1 << 40)
    assert shm.segment(a).shape == (1,)
    assert len([info for info in shm.list() if info.mine]) == 1
    assert shm.free_space() > 0


SCRIPT = """
import os, numpy as np, synk_shm as shm

MIB = 1 << 20
assert 15 * MIB < shm.free_space() <= 16 * MIB

def refused(act, *arguments, **options):
    before = set(os.listdir("/dev/shm"))
    try:
        act(*arguments, **options)
    except shm.ShmFullError as error:
        assert isinstance(error, MemoryError)
        assert "16.0 MiB" in str(error) and "--shm-size" in str(error), error
    else:
        raise AssertionError(act)
    assert set(os.listdir("/dev/shm")) == before

a = shm.full(8 * MIB, 1, "u1")
source = np.ones(9 * MIB, "u1")
grows = shm.zeros(1, "u1", capacity=100 * MIB)
for _ in range(2):
    refused(shm.empty, 9 * MIB, "u1")
    refused(shm.share, source)
    refused(shm.share, source[::-1])
    refused(shm.share, source, name="named")
    refused(shm.resize, grows, 9 * MIB)
    # Somebody else may take the memory between the question and the use.
    shm._array.check_space = shm._segment.check_space = lambda asked, where: None
assert len(grows) == 1 and a.sum() == 8 * MIB
big = shm.share(np.ones(64 * MIB, "u1"), backend="memfd")
assert big.sum() == 64 * MIB and shm.attach(shm.handle(big)).sum() == 64 * MIB
grows = shm.resize(grows, 7 * MIB)
grows[:] = 1
refused(shm.empty, 2 * MIB, "u1")
del a
shm.full(8 * MIB, 1, "u1")
print("done")
"""


def can_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    trial = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/dev/shm"]
    return subprocess.run(trial, check=False, capture_output=True, timeout=30).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs root and a private mount namespace")
def test_a_small_file_system(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    command = 'mount -t tmpfs -o size=16m none /dev/shm && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, "sh", sys.executable, "-W", "error", path],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_large_requests_ask_for_the_memory_of_the_machine(monkeypatch):
    from synk_shm import _space

    monkeypatch.setattr(_space, "_machine_left", lambda: 50 << 20)
    with pytest.raises(shm.ShmFullError, match=r"only 50.0 MiB"):
        shm.empty(60 << 20, "u1")
    assert shm.empty(40 << 20, "u1").nbytes == 40 << 20
    monkeypatch.setattr(_space, "_container_left", lambda: 35 << 20)
    with pytest.raises(shm.ShmFullError, match=r"only 35.0 MiB"):
        shm.share(np.zeros(40 << 20, "u1"))
