"""Every test module leaves behind what it found: no child, descriptor, socket or file."""

from __future__ import annotations

import contextlib
import gc
import glob
import os
import tempfile
import threading
import time

import pytest


def _left_over():
    gc.collect()
    descriptors = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        # pytest's own capture files come and go.
        if target.startswith(("/memfd:", "socket:", "pipe:", "anon_inode:")):
            descriptors[name] = target
    children = []
    for path in glob.glob(f"/proc/{os.getpid()}/task/*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(path) as file:
            children += file.read().split()  # unless the thread has ended meanwhile
    files = glob.glob(os.path.join(tempfile.gettempdir(), "synk-comm-*"))
    return {"descriptors": descriptors, "children": sorted(children), "files": sorted(files)}


@pytest.fixture(scope="session", autouse=True)
def own_temporary_folder():
    """Keep apart from other programs that make groups on this machine right now."""
    with tempfile.TemporaryDirectory(prefix="synk-tests-") as folder:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", folder)
            patch.setattr(tempfile, "tempdir", folder)
            yield


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left(own_temporary_folder):
    if not os.path.isdir("/proc/self/fd"):
        yield
        return
    before = _left_over()
    yield
    deadline = time.monotonic() + 5
    while _left_over() != before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _left_over() == before
    assert not [thread for thread in threading.enumerate() if "run" in thread.name.lower()]
