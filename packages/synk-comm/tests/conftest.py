"""Every test module leaves behind what it found: no child, descriptor, socket or file."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from synk_testing import nothing_left

sys.path.insert(0, str(Path(__file__).parent))  # also that of ranks that tests start


def pytest_configure(config):
    """Every warning is an error, on the oldest NumPy and Python as on the newest."""
    config.addinivalue_line("filterwarnings", "error")


@pytest.fixture(scope="session", autouse=True)
def own_temporary_folder():
    """A folder of this session alone, whose path is short enough for names of sockets."""
    place = tempfile.gettempdir()
    place = place if len(os.fsencode(place)) <= 30 else "/tmp"
    with tempfile.TemporaryDirectory(prefix="synk-", dir=place) as folder:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", folder)
            patch.setattr(tempfile, "tempdir", folder)
            yield folder


@pytest.fixture
def tmp_path(own_temporary_folder):
    """A folder whose path is short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="t", dir=own_temporary_folder))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left(own_temporary_folder):
    if not os.path.isdir("/proc/self/fd"):
        yield
        return
    # pytest's own capture files come and go.
    files = os.path.join(own_temporary_folder, "synk-comm-*")
    with nothing_left(files=files, without=["open_files", "threads"]):
        yield
    assert not [thread for thread in threading.enumerate() if "run" in thread.name.lower()]
