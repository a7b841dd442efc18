"""What other users of the machine can see, touch or hold up of a run: nothing.

With real processes.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import time
from pathlib import Path

import pytest
from _run_under_test import evidence, running

from synk_testing import descriptors

BACKENDS = pytest.mark.parametrize(
    "backend", ["shm", pytest.param("zmq", marks=pytest.mark.nightly)]
)
# Modules that a run has open just then are not of its making, though they may lie below /tmp too.
INSTALLED = tuple(
    place + os.sep
    for place in map(
        os.path.realpath, (Path(__file__).parents[3], os.getcwd(), sys.prefix, *sys.path)
    )
    if not os.path.realpath(tempfile.gettempdir()).startswith(place)
)


@pytest.fixture
def folder():
    """A short path that other users can go through: names of sockets are limited."""
    path = Path(tempfile.mkdtemp(prefix="sec-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["zmq", "shm"])
def test_no_process_of_a_run_has_a_socket_of_the_network_or_tells_a_secret(folder, backend):
    """Nor one that another user could find: in a call, between calls, and with a watchdog."""
    with running(folder, backend) as run:
        assert len(run.workers) == 2
        wrong = []
        deadline = time.monotonic() + 60
        run.ask(1)  # the start: where ranks meet
        while not wrong and time.monotonic() < deadline:
            wrong += evidence(run.pids())
            if _has_line(run):
                break
        assert run.line() == "right"
        wrong += evidence(run.pids())
        run.ask(1000)  # goes on until the gate is there
        for _ in range(20):
            wrong += evidence(run.pids())
            time.sleep(0.01)
        pids = run.pids()
        run.gate.touch()
        assert run.line() == "right"
        wrong += evidence(run.pids())
        assert wrong == []
        assert set(run.workers) < set(pids)
        # Everybody can read command lines: they tell no secrets.
        for pid in run.pids()[1:]:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            secret = re.compile(r"synk-comm-1|[0-9a-f]{20}")
            assert not any(secret.search(word) for word in words), words
        assert run.end() == 0


def _has_line(run):
    return run.program.has_said(0.005)


def others_may(path, follow=True):
    """What mode a file has that others may use, "" if there is none such."""
    try:
        status = os.stat(path, follow_symlinks=follow)
    except OSError:
        return ""
    if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        return f"{path}: {stat.S_IMODE(status.st_mode):04o}" if status.st_mode & 0o077 else ""
    return ""


def _mode_of_descriptor(pid, number, target):
    """What mode it has that others may use, once it is made; "" where it is closed by now."""
    path = f"/proc/{pid}/fd/{number}"
    mode = others_may(path).rpartition(" ")[2]
    if mode and target.startswith("/memfd:"):  # begins as everybody's, behind /proc's own guard
        mode = others_may(path).rpartition(" ")[2]
    try:
        return mode if os.readlink(path) == target else ""  # numbers are given again
    except OSError:
        return ""


@BACKENDS
def test_whatever_a_run_makes_is_its_users_alone(folder, backend):
    """With a umask that takes nothing away: segments, locks, folders, memory without a name.

    Except Theano's compile directory, which Theano makes and a run warns of: see below.
    """
    not_ours = (*INSTALLED, f"{folder / 'compiled'}{os.sep}")
    with running(folder, backend) as run:
        seen = set()
        run.ask(1)
        answered = False
        while not answered:
            answered = _has_line(run)
            for pid in run.pids():
                for number, target in descriptors(pid).items():
                    own = (
                        target.startswith(("/dev/shm/", "/memfd:", "/tmp/"))
                        or "(deleted)" in target
                    ) and not (target + os.sep).startswith(not_ours)
                    if own and number > 2:
                        name = target.rpartition(" (")[0] or target
                        seen.add((name, _mode_of_descriptor(pid, number, target)))
            for place in (run.temporary, run.cache, run.home):
                for parent, names, files in os.walk(place):
                    for name in (*names, *files):
                        path = os.path.join(parent, name)
                        seen.add((path, others_may(path, follow=False)))
        assert run.line() == "right"
        os.kill(run.workers[1], signal.SIGKILL)
        run.ask(1)
        assert run.line() == "died 2 SIGKILL"
        run.end()
        assert list(run.cache.rglob("*.json")) == [], "a failure writes no file"
        kinds = {name.split("/")[1] if name.startswith("/dev") else name[:6] for name, _ in seen}
        assert {"dev", "/memfd"} <= kinds, kinds
        assert sorted(mode for mode in seen if mode[1]) == []
