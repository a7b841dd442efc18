"""What other users of the machine can see, touch or hold up of a run: nothing."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import stat
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from synk_testing import Program, descendants, descriptors

PROGRAM = """
import os, sys
os.umask(0)
import json, time
import numpy as np
from synk_testing.engine import T, as_op, engine
from synk_core import Runtime
from synk_core.exceptions import WorkerDied

gate = sys.argv[2]

@as_op([T.dvector], [T.dvector])
def behave(values):
    deadline = time.monotonic() + 60
    while values.size and values.max() > 100 and not os.path.exists(gate):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return values * 2

x = T.dvector("x")
w = engine.shared(np.arange(4.0), name="w")
with Runtime(3, use_gpu=False, backend=sys.argv[1]) as runtime:
    print(json.dumps(runtime.worker_pids), flush=True)
    f = runtime.function([x], [(behave(x).sum(), "sum"), (x, "gather")], mode="FAST_COMPILE")
    held = runtime.data(np.arange(50.0), oversize=2)
    for line in iter(sys.stdin.readline, ""):
        values = np.append(np.arange(9.0), float(line))
        try:
            total, gathered = f(values)
            runtime.collectives.all_reduce(w, "sum")
            assert total == 2 * values.sum() and (gathered == values).all()
            held.set_value(values)
            assert f(held)[0] == total
            print("right", flush=True)
        except WorkerDied as died:
            print("died", died.rank, died.signal, flush=True)
            break
"""

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


@contextlib.contextmanager
def running(folder, backend):
    """A program of three ranks, and the folders that it uses; nothing of it is left afterwards."""
    places = [folder / name for name in ("home", "t", "cache")]
    for place, mode in zip(places, (0o755, 0o1777, 0o755)):
        place.mkdir()
        place.chmod(mode)
    environment = {
        **dict(zip(("HOME", "TMPDIR", "XDG_CACHE_HOME"), map(str, places))),
        # Without a compiler there is nothing to wait for.
        "THEANO_FLAGS": f"cxx=,base_compiledir={folder / 'compiled'}",
        "PYTHONWARNINGS": "ignore",
    }
    gate = folder / "gate"
    program = Program(PROGRAM, backend, gate, environment=environment, grace_s=30.0)
    try:
        yield program, places
    finally:
        # The master alone: the others have to notice.
        if program.status is None:
            program.kill()
        program.close()


def wrong_sockets(pids):
    """Yield a line on each socket of these processes that others could reach."""
    for pid in pids:
        try:
            process = psutil.Process(pid)
            # Its name in psutil 5 and 6.
            ask = getattr(process, "net_connections", None) or process.connections
            found = ask("all")
        except psutil.NoSuchProcess:
            continue
        for one in found:
            if one.family != socket.AF_UNIX:
                yield f"{pid}: a socket of the internet: {one}"
            elif one.laddr.startswith("@"):
                yield f"{pid}: an abstract name {one.laddr}"
            elif one.laddr:
                with contextlib.suppress(FileNotFoundError):  # removed: nobody finds it
                    status = os.lstat(os.path.dirname(one.laddr))
                    if status.st_mode & 0o7777 != 0o700 or status.st_uid != os.geteuid():
                        yield f"{pid}: {one.laddr} in a folder of mode {status.st_mode:o}"


def others_may(path, follow=True):
    """Return the mode of a file that others may use, "" if there is none such."""
    try:
        mode = os.stat(path, follow_symlinks=follow).st_mode
    except OSError:
        return ""
    is_open = (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and mode & 0o077
    return f"{stat.S_IMODE(mode):04o}" if is_open else ""


def mode_of_descriptor(pid, number, target):
    """What mode it has that others may use, once it is made; "" where it is closed by now."""
    path = f"/proc/{pid}/fd/{number}"
    mode = others_may(path)
    if mode and target.startswith("/memfd:"):  # begins as everybody's, behind /proc's own guard
        mode = others_may(path)
    try:
        return mode if os.readlink(path) == target else ""  # numbers are given again
    except OSError:
        return ""


def modes(pids, places, not_ours):
    """What these processes have open, and what lies in these places, with what others may."""
    for pid in pids:
        for number, target in descriptors(pid).items():
            is_file = target.startswith(("/dev/shm/", "/memfd:", "/tmp/")) or "(deleted)" in target
            if is_file and number > 2 and not (target + os.sep).startswith(not_ours):
                name = target.rpartition(" (")[0] or target
                yield name, mode_of_descriptor(pid, number, target)
    for place in places:
        for parent, names, files in os.walk(place):
            for name in (*names, *files):
                path = os.path.join(parent, name)
                yield path, others_may(path, follow=False)


@pytest.mark.parametrize("backend", ["shm", pytest.param("zmq", marks=pytest.mark.nightly)])
def test_whatever_a_run_makes_is_its_users_alone(folder, backend):
    """With a umask that takes nothing away: segments, locks, folders, memory without a name,
    sockets; while ranks meet, in a call, between calls. And its command lines tell no secrets.

    Except Theano's compile directory, which Theano makes and a run warns of.
    """
    not_ours = (*INSTALLED, f"{folder / 'compiled'}{os.sep}")
    with running(folder, backend) as (program, places):
        workers = program.answer()
        seen, wrong = set(), []

        def look():
            pids = [program.pid, *descendants(program.pid)]
            seen.update(modes(pids, places, not_ours))
            wrong.extend(wrong_sockets(pids))
            return pids

        program.send(1)  # the start: where ranks meet
        while not program.has_said(0.005):
            look()
        assert program.line() == "right"
        program.send(1000)  # goes on until the gate is there
        for _ in range(5):
            pids = look()
        assert set(workers) < set(pids)
        for pid in pids[1:]:
            words = Path(f"/proc/{pid}/cmdline").read_text()
            assert not re.search(r"synk-comm-1|[0-9a-f]{20}", words), words
        (folder / "gate").touch()
        assert program.line() == "right"
        look()
        os.kill(workers[1], signal.SIGKILL)
        program.send(1)
        assert program.line() == "died 2 SIGKILL"
        program.end()
    assert wrong == []
    kinds = {name.split("/")[1] if name.startswith("/dev") else name[:6] for name, _ in seen}
    assert "/memfd" in kinds, kinds
    assert sorted(entry for entry in seen if entry[1]) == []
