"""Programs are as a user would start them, whichever way; and they end, whatever they do."""

from __future__ import annotations

import os
import signal
import time
import uuid
from pathlib import Path

import pytest

from synk_testing import (
    Program,
    Zygote,
    hard_limit,
    is_there,
    mpi_job,
    nothing_left,
    run,
    why_no_mpi,
)

_limit = hard_limit(60)

PREPARE = "import decimal, json, multiprocessing"

ABOUT = """
import json, multiprocessing, os, signal, sys, threading
signals = [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD]
signals += [signal.SIGPIPE, signal.SIGALRM]
print(json.dumps({
    "signals": [str(signal.getsignal(number)).split(" at ")[0] for number in signals],
    "mask": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "leads": os.getsid(0) == os.getpid() == os.getpgrp(),
    "folder": os.getcwd(),
    "arguments": sys.argv,
    "path": sys.path[0],
    "variables": {name: value for name, value in os.environ.items() if "MARK" in name},
    "main": [__name__, sys.modules["__main__"].__dict__ is globals()],
    "open": len(os.listdir("/proc/self/fd")),
    "threads": len(os.listdir("/proc/self/task")),
    "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
    "parent": multiprocessing.parent_process(),
    "one_thread": os.environ.get("OPENBLAS_NUM_THREADS"),
}))
"""


@pytest.fixture(scope="module")
def zygote():
    with Zygote(PREPARE) as made:
        yield made


@pytest.fixture(params=["started", "forked"])
def start(request, zygote):
    return zygote.start if request.param == "forked" else Program


def finish(program, *given):
    with program:
        return program.finish(*given)


def test_both_ways_are_alike(zygote, tmp_path):
    path = tmp_path / "about.py"
    path.write_text(ABOUT)
    for source in (ABOUT, path):
        how = {"folder": tmp_path, "environment": {"MARK_NEW": "1"}}
        with nothing_left():
            status, forked, err = zygote.run(source, "a", "b c", **how)
            assert (status, err) == (0, "")
            assert run(source, "a", "b c", **how).out == forked


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit(3)", 3),
        ("1 / 0", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT); input()", -2),
    ],
)
def test_a_program_reports_its_status(start, code, status):
    assert finish(start(code)).status == status


def test_a_hanging_program_shows_its_stacks_and_is_killed(start):
    code = """
import os, subprocess, sys, time
print(subprocess.Popen(["sleep", "60"], start_new_session=True).pid, flush=True)
def here():
    time.sleep(60)
here()
"""
    with start(code) as program:
        child = int(program.line())
        assert is_there(child)
        with pytest.raises(AssertionError, match=r"(?s)said nothing for 0\.5 s.* in here"):
            program.line(0.5)
        assert not is_there(child)
        assert program.status == -signal.SIGABRT


def test_leftovers_of_a_program_are_found(start):
    code = """
import subprocess
nowhere = subprocess.DEVNULL
child = subprocess.Popen(["sleep", "60"], stdout=nowhere, start_new_session=True)
print(child.pid)
child.returncode = 0
"""
    program = start(code, grace_s=0.2)
    child = int(program.finish().out)
    with pytest.raises(AssertionError, match="sleep 60"):
        program.close()
    assert not is_there(child)


def test_a_zygote_takes_its_programs_along():
    with nothing_left():
        with Zygote(PREPARE) as zygote:
            program = zygote.start("input()")
        deadline = time.monotonic() + 10
        while is_there(program.pid):
            assert time.monotonic() < deadline
        assert program.wait(10) == -signal.SIGKILL
        program.close()


def test_leftovers_are_named(tmp_path):
    with pytest.raises(AssertionError, match="file"), nothing_left(0.0, files=f"{tmp_path}/*"):
        (tmp_path / "file").touch()
    names: list[str] = []
    with pytest.raises(AssertionError, match="mine"), nothing_left(0.0, segments=lambda: names):
        names.append("mine")
    with pytest.raises(AssertionError, match="open_files"), nothing_left(0.0):
        fd = os.open("/dev/null", os.O_RDONLY)
    os.close(fd)
    with pytest.raises(AssertionError, match=r"descriptors.*pipe"), nothing_left(0.0):
        fds = os.pipe()
    for fd in fds:
        os.close(fd)


def test_every_test_ends(tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text("""
import time
from synk_testing import hard_limit
_limit = hard_limit(0.3)
def test_this():
    time.sleep(60)
""")
    code = "import pytest, sys; sys.exit(pytest.main(['-p', 'no:cacheprovider', sys.argv[1]]))"
    status, out, _ = run(code, path, folder=tmp_path)
    assert status == 1
    assert "took longer than" in out
    assert "time.sleep(60)" in out


KILLED = """
import json, os, signal
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
paths = {line.split()[-1] for line in open("/proc/self/maps") if "/dev/shm/mpich_" in line}
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps(sorted(paths)), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.skipif(bool(why_no_mpi()), reason=why_no_mpi())
def test_segments_of_killed_mpich_ranks_alone_are_removed():
    name = f"/dev/shm/mpich_shm_{uuid.uuid4().hex[:8]}"
    older, opened, left = (Path(f"{name}_{kind}") for kind in ("older", "opened", "left"))
    try:
        older.touch()
        with mpi_job(KILLED, size=2, on_a_host=2) as job:
            made = [Path(path) for path in job.answer()]
            left.touch()
            with open(opened, "wb"):
                job.finish()
                job.close()
                assert opened.exists()
        assert made
        assert not any(path.exists() for path in (*made, left))
        assert older.exists()
    finally:
        for path in (older, opened, left):
            path.unlink(missing_ok=True)
