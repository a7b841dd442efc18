"""``launch``: results by rank, the first cause of a failure, and nobody left whatever happens."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from _helpers import pids_in, run_python

import synk_comm
from synk_comm import CommTimeout, PeerLost, RankDied, RankFailed, launch
from synk_testing import Program, wait_gone

LIMIT_S = 60.0


def program(folder, text, name="program.py"):
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def add_up(comm, x, factor=1):
    return comm.rank, factor * float(comm.all_reduce(x + comm.rank).sum()), comm.backend


@pytest.mark.parametrize("backend", ["shm", pytest.param("zmq", marks=pytest.mark.nightly)])
def test_results_by_rank_with_more_ranks_than_cores(backend):
    got = launch(5, add_up, np.zeros(3), backend=backend, timeout_s=LIMIT_S)
    assert got == [(rank, 30.0, backend) for rank in range(5)]


def test_one_rank_and_a_partial():
    fn = functools.partial(add_up, factor=2)
    assert launch(1, fn, np.ones(2), timeout_s=LIMIT_S)[0][:2] == (0, 4.0)


def look_around(comm):
    names = ["SYNK_COMM_RANK", "SYNK_COMM_SIZE", "OMP_NUM_THREADS", "MINE"]
    # One thread only: a program that forks has nothing to fear from us.
    return [os.environ.get(name) for name in names], threading.active_count(), sys.argv


def test_environment_of_ranks(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("SYNK_COMM_TICKET", "of another group")
    got = launch(2, look_around, env=lambda rank: {"MINE": f"of {rank}"}, timeout_s=LIMIT_S)
    threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert got == [([str(r), "2", threads, f"of {r}"], 1, sys.argv) for r in range(2)]
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    got = launch(1, look_around, env={"MINE": "of all"}, timeout_s=LIMIT_S)
    assert got[0][0] == ["0", "1", "7", "of all"]


def echo(comm, blob, number):
    return blob, comm.rank * number


@pytest.mark.nightly
def test_large_arguments_and_results():
    blob = os.urandom(1 << 20) * 20
    got = launch(2, echo, blob, 7, timeout_s=LIMIT_S)
    assert [number for _, number in got] == [0, 7]
    assert all(back == blob for back, _ in got)


class Own(Exception):
    def __init__(self, one, two):  # which pickle cannot put together again
        super().__init__(f"{one} and {two}")


def fail(comm, how, left=None):
    comm.barrier()
    if comm.rank == 1:
        if how == "raise":
            raise KeyError("nothing there")
        if how == "own":
            raise Own(1, 2)
        if how == "_exit 0":
            os._exit(0)
        os.kill(os.getpid(), getattr(signal, how))
    if comm.rank == 2:
        if left:  # in user code, with a child of its own
            child = subprocess.Popen(["sleep", "100"])
            for pid in (os.getpid(), child.pid):
                open(os.path.join(left, str(pid)), "w").close()
        time.sleep(100)
    comm.barrier()


@pytest.mark.parametrize(
    "how, cause, exitcode, text",
    [
        ("raise", KeyError, 1, "KeyError: 'nothing there'"),
        pytest.param("own", None, 1, "Own: 1 and 2", marks=pytest.mark.nightly),
        ("_exit 0", None, 0, "ended with exit code 0"),
        ("SIGKILL", None, -9, "was killed by SIGKILL"),
    ],
)
def test_first_cause_is_distinguished_from_its_victims(how, cause, exitcode, text, tmp_path):
    with pytest.raises(RankFailed) as caught:
        launch(3, fail, how, str(tmp_path), timeout_s=LIMIT_S)
    error = caught.value
    assert (error.rank, error.exitcode) == (1, exitcode)
    assert error.signal == (9 if how == "SIGKILL" else None)
    assert type(error.__cause__) is (cause or type(None))
    died = how.startswith("_exit") or how == "SIGKILL"
    assert isinstance(error, RankDied) == died
    message = str(error)
    assert message.startswith("rank 1 of 3")
    assert text in message.partition("\n")[0]
    assert re.search(r"\n  rank 0: (AbortedError|PeerLost): ", message)
    assert "\n  rank 2: was ended while it was still running" in message
    if not died:
        assert "in fail\n    raise " in error.traceback
        assert "_processes/rank.py" not in error.traceback
    pids = pids_in(tmp_path, 2)
    wait_gone(pids)


def leave_first_tell_later(comm):
    if comm.rank == 1:
        try:
            with comm:
                raise ValueError("the cause")
        finally:
            time.sleep(0.4)
    comm.barrier()


def test_a_victim_that_speaks_first_is_still_a_victim():
    with pytest.raises(RankFailed, match="rank 1 of 2 failed: ValueError: the cause") as caught:
        launch(2, leave_first_tell_later, timeout_s=LIMIT_S)
    told = "\n  rank 0: AbortedError: the group was aborted by rank 1: ValueError: the cause"
    assert told in str(caught.value)


def leave_early(comm):
    if comm.rank == 0:
        comm.barrier()
    return "done"


def test_a_victim_of_nobody_is_the_cause():
    with pytest.raises(RankFailed, match="rank 0 of 2 failed: PeerLost") as caught:
        launch(2, leave_early, timeout_s=LIMIT_S)
    assert isinstance(caught.value.__cause__, PeerLost)
    assert "\n  rank 1: had ended well" in str(caught.value)


def stop_or_sleep_here(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if comm.rank == 2:
        time.sleep(100)


def test_late_ranks_are_named_and_show_their_stacks(capfd):
    with pytest.raises(CommTimeout, match=r"ranks 1, 2 of 3 still ran after 10\.0 s") as caught:
        launch(3, stop_or_sleep_here, timeout_s=10.0, grace_s=0.5)
    assert sorted(caught.value.missing) == [1, 2]
    assert "in stop_or_sleep_here" in capfd.readouterr().err


def die_at_the_end(comm):
    import atexit

    if comm.rank == 1:
        atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
    return comm.rank


def test_death_after_the_result_counts():
    with pytest.raises(RankDied, match=r"rank 1 of 2 .*SIGSEGV after its function had returned"):
        launch(2, die_at_the_end, timeout_s=LIMIT_S)


def test_zmq_ranks_that_never_join_leave_no_folder():
    with pytest.raises(RankFailed, match="cannot be found"):
        launch(2, add_up, Unreadable(), backend="zmq", timeout_s=LIMIT_S)
    assert glob.glob(os.path.join(tempfile.gettempdir(), "synk-comm-*")) == []


class Unreadable:
    def __reduce__(self):
        return refuse, ()


def refuse():
    raise LookupError("cannot be found")


def give_a_lock(comm):
    return threading.Lock()


def give_unreadable(comm):
    return Unreadable()


def test_an_object_that_cannot_be_sent_is_named():
    def inner(comm):
        pass

    with pytest.raises(TypeError, match="inner: it is made inside another function; use a fun"):
        launch(1, inner)
    with pytest.raises(TypeError, match="it is a lambda"):
        launch(1, lambda comm: None)
    with pytest.raises(TypeError, match="must be a function, got int"):
        launch(1, 3)
    with pytest.raises(TypeError, match="argument 1 of the function, a lock, cannot be sent"):
        launch(1, echo, 0, threading.Lock())
    with pytest.raises(ValueError, match="n must be at least 1"):
        launch(0, echo)
    with pytest.raises(TypeError, match=r"expected the number of ranks: launch\(n, function"):
        launch(echo, 2)
    with pytest.raises(ValueError, match="timeout_s must be positive"):
        launch(1, echo, timeout_s=0)
    with pytest.raises(RankFailed, match="returned a lock that cannot be pickled"):
        launch(1, give_a_lock, timeout_s=LIMIT_S)
    with pytest.raises(RankFailed, match="cannot be unpickled here: LookupError"):
        launch(1, give_unreadable, timeout_s=LIMIT_S)


def test_functions_and_classes_of_the_main_script(tmp_path):
    path = program(
        tmp_path,
        """
        import os
        import synk_comm

        os.write(1, f"loaded as {__name__}\\n".encode())  # in one piece

        class Point:
            def __init__(self, x):
                self.x = x

        def inner(comm, point):
            return Point(point.x + comm.rank)

        def outer(comm, point):
            here = synk_comm.launch(2, inner, point, timeout_s=50)
            return Point([p.x for p in here])

        if __name__ == "__main__":
            got = synk_comm.launch(2, outer, Point(10), timeout_s=50)
            assert all(type(point) is Point for point in got)
            print([point.x for point in got])
        """,
    )
    done = run_python(path)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "loaded as __main__"
    assert lines[1:-1] == ["loaded as __mp_main__"] * 6
    assert lines[-1] == "[[10, 11], [10, 11]]"


def test_main_script_is_not_loaded_for_functions_of_modules(tmp_path):
    program(tmp_path, "def f(comm):\n    return comm.rank\n", "mine.py")
    path = program(
        tmp_path, "import mine, synk_comm\nprint(synk_comm.launch(2, mine.f, timeout_s=50))\n"
    )
    done = run_python(path)
    assert (done.stdout, done.stderr) == ("[0, 1]\n", "")


@pytest.mark.parametrize(
    "words", [["program.py"], pytest.param(["-c", "import program"], marks=pytest.mark.nightly)]
)
def test_missing_guard_is_said(tmp_path, words):
    program(
        tmp_path,
        """
        import os, synk_comm
        os.environ["DEPTH"] = os.environ.get("DEPTH", "") + "I"
        assert len(os.environ["DEPTH"]) < 4  # the end, should ranks start ranks
        def f(comm): pass
        synk_comm.launch(2, f, timeout_s=50)
        """,
    )
    done = run_python(*words, cwd=tmp_path)
    assert done.returncode == 1
    assert "launch() was called in a rank that loads the program" in done.stderr
    assert 'put the call under `if __name__ == "__main__":`' in done.stderr
    assert "III" not in done.stderr


def nested(comm):
    return launch(2, add_up, np.ones(1) * comm.rank, timeout_s=LIMIT_S)


def test_launch_in_a_rank():
    got = launch(2, nested, timeout_s=LIMIT_S)
    assert [[total for _, total, _ in inner] for inner in got] == [[1.0, 1.0], [3.0, 3.0]]


def without_end(comm, depth=0):
    assert depth < 3
    return launch(1, without_end, depth + 1, timeout_s=LIMIT_S)


def test_ranks_of_a_rank_start_no_more():
    said = r"MisuseError: launch\(\) was called in a rank that a rank has started"
    with pytest.raises(RankFailed, match=said):
        launch(1, without_end, timeout_s=LIMIT_S)


RANKS_WITH_CHILDREN = """
    import os, signal, subprocess, sys, threading, time
    import synk_comm

    def work(comm, how):
        child = subprocess.Popen(["sleep", "100"])
        os.write(1, b"at work\\n")  # in one piece
        try:
            if how == "stopped" and comm.rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            while True:  # a signal just before a long wait would not end it
                time.sleep(0.01)
        except KeyboardInterrupt:
            os.write(1, b"interrupted\\n")
            raise

    if __name__ == "__main__":
        for _ in range(60 if sys.argv[1] == "threads" else 0):
            threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
        synk_comm.launch(2, work, sys.argv[1])
"""


@pytest.fixture
def at_work(tmp_path):
    """A function that starts two ranks with a child each, and returns the program."""
    with contextlib.ExitStack() as ends:

        def start(how):
            path = Path(program(tmp_path, RANKS_WITH_CHILDREN))
            parent = ends.enter_context(Program(path, how, limit_s=LIMIT_S))
            assert [parent.line() for _ in range(2)] == ["at work"] * 2
            time.sleep(0.2)
            assert len(parent.members()) >= 5
            return parent

        yield start


@pytest.mark.parametrize("how", ["stopped", pytest.param("threads", marks=pytest.mark.nightly)])
def test_nobody_outlives_a_killed_parent(at_work, how):
    parent = at_work(how)
    parent.kill()
    parent.wait_alone()


def test_interrupt_goes_to_the_ranks_once(at_work):
    parent = at_work("running")
    parent.send_signal(signal.SIGINT)
    status, out, error = parent.finish()
    assert status == -signal.SIGINT
    assert error.rstrip().endswith("KeyboardInterrupt")
    assert out.split() == ["interrupted"] * 2
    parent.wait_alone()


def test_public_names_are_errors_of_ranks():
    error = RankDied("m", rank=2, exitcode=-11)
    assert isinstance(error, synk_comm.CommError)
    assert isinstance(error, RuntimeError)
    assert (error.signal, error.traceback) == (11, "")
