"""Of a master that is killed nothing is left, whatever its workers were doing."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from _leaks import no_ranks_left

import synk_shm
from synk_core import Runtime
from synk_testing import Program, is_there, shared_memory, wait_gone
from synk_testing.engine import T

GONE_S = 2.0
"""The contract: from the master's death until nothing is left."""

BUSY_S = 3.0

PROGRAM = """
import ctypes, os, resource, sys, threading, time
import numpy as np, synk_shm
from synk_shm._processes.process import process
from synk_testing.engine import T
from synk_testing.engine import as_op
from synk_core import Runtime

@as_op([T.dvector], [T.dvector])
def hold(values):
    if values.max() > 0:
        os.write(1, b"computing\\n")
        ctypes.PyDLL(None).sleep(int(values.max()))
    return values

def tell(*words):
    print(*words, flush=True)

def start():
    global runtime
    runtime = Runtime(int(sys.argv[1]), backend=sys.argv[2])

if sys.argv[3] == "in a thread":
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
else:
    start()
synk_shm.empty(1, backend="memfd")
tell(process.home, *runtime.worker_pids)
"""

READY = """
x = T.dvector("x")
f = runtime.function([x], (hold(x), "gather"), mode="FAST_COMPILE")
data = runtime.data(np.zeros(100_000))
f(data)
"""

IDLE = READY + "tell('ready'); time.sleep(60)"
COMPUTING = READY + "f(np.array([0.0, 0.0, 60.0, 60.0]))"


class Victim(Program):
    def __init__(self, code, size, backend, how, zygote, folder):
        options = {"environment": {"SYNKHRONOS_USE_GPU": "0", "TMPDIR": str(folder)}}
        words = (size, backend, how)
        super().__init__(PROGRAM + code, *words, zygote=zygote, grace_s=30.0, **options)
        self.folder = folder
        self.family, *workers = self.line().split()
        self.workers = [int(pid) for pid in workers]

    def shared_memory(self):
        return shared_memory(f".{self.family}.")

    def left(self):
        pids = [pid for pid in self.workers if is_there(pid)]
        return [*pids, *self.shared_memory(), *os.listdir(self.folder)]

    def await_nothing(self, timeout_s):
        """Wait until nothing is left; return the seconds that it took."""
        began = time.monotonic()
        while self.left():
            assert time.monotonic() - began < timeout_s, self.left()
            time.sleep(0.005)
        return time.monotonic() - began

    def close(self):
        if self.status is None:
            self.kill()
        super().close()


@pytest.fixture
def program(zygote, tmp_path):
    programs = []

    def start(code, size=2, backend="shm", how="in the main thread"):
        programs.append(Victim(code, size, backend, how, zygote, tmp_path))
        return programs[-1]

    yield start
    for one in programs:
        one.close()
        one.await_nothing(30.0)


NIGHTLY = pytest.mark.nightly


@pytest.mark.alone
@pytest.mark.parametrize(
    ("number", "stopped", "code", "how"),
    [
        pytest.param(signal.SIGKILL, True, COMPUTING, "", id="computing-stopped"),
        pytest.param(signal.SIGKILL, True, COMPUTING, "in a thread", id="thread", marks=NIGHTLY),
        pytest.param(signal.SIGKILL, True, IDLE, "", id="idle-stopped", marks=NIGHTLY),
        pytest.param(signal.SIGTERM, False, COMPUTING, "", id="SIGTERM", marks=NIGHTLY),
        pytest.param(signal.SIGHUP, False, IDLE, "", id="SIGHUP", marks=NIGHTLY),
    ],
)
def test_nothing_is_left_of_a_killed_master(program, number, stopped, code, how, request):
    killed = program(code, 3, how=how)
    assert killed.line() == ("ready" if code is IDLE else "computing")
    if code is COMPUTING:
        assert killed.line() == "computing"
    if stopped:
        os.kill(killed.workers[1], signal.SIGSTOP)
    assert not killed.shared_memory(), "what has a name could be left"
    killed.send_signal(number)
    assert killed.wait() == -number
    print(f"{request.node.name}: {killed.await_nothing(GONE_S + BUSY_S):.3f} s")


@pytest.mark.alone
@pytest.mark.parametrize(
    ("backend", "after_s"), [("shm", 0.3), pytest.param("zmq", 0.0, marks=NIGHTLY)]
)
def test_nor_of_one_whose_workers_still_start(program, backend, after_s):
    killed = program("time.sleep(60)", 3, backend)
    time.sleep(after_s)
    killed.kill()
    print(f"after {after_s} s: {killed.await_nothing(GONE_S + BUSY_S):.3f} s")


MANY = """
few = 400
resource.setrlimit(resource.RLIMIT_NOFILE, (few, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
kept = [runtime.data(np.zeros(10)) for _ in range(few // 3)]
f = runtime.function([x := T.dvector("x")], (x.sum(), "sum"), mode="FAST_COMPILE")
tell(sum(f(data) for data in kept))
time.sleep(60)
"""


def test_of_more_arrays_than_descriptors_the_next_program_removes_the_rest(program, zygote):
    killed = program(MANY)
    assert killed.line() == "0.0"
    assert killed.shared_memory()
    killed.kill()
    wait_gone(killed.workers, GONE_S + BUSY_S)
    assert zygote.run("import synk_shm; synk_shm.empty(1)").status == 0
    killed.await_nothing(GONE_S)


# After a call: workers that start when the master is gone find that out in another way.
# Python's own fork() closes, in the child, the pipes to the workers.
FORKED_IN_C = (
    READY
    + """
child = ctypes.PyDLL(None).fork()
if child == 0:
    ctypes.PyDLL(None).sleep(60)
    os._exit(0)
tell(child)
time.sleep(60)
"""
)


@pytest.mark.parametrize("how", ["", pytest.param("in a thread", marks=NIGHTLY)])
def test_a_child_of_the_master_does_not_stand_in_for_it(program, how):
    killed = program(FORKED_IN_C, how=how)
    child = int(killed.line())
    try:
        killed.kill()
        wait_gone(killed.workers, GONE_S + BUSY_S)
        assert is_there(child), "it was to be there all the time"
    finally:
        os.kill(child, signal.SIGKILL)
        wait_gone([child])


def test_workers_outlive_the_thread_that_has_started_them():
    """The kernel can kill a process when the thread ends that started it."""
    runtimes = []
    with no_ranks_left():
        thread = threading.Thread(target=lambda: runtimes.append(Runtime(2)))
        thread.start()
        thread.join()
        with runtimes[0] as runtime:
            x = T.dvector("x")
            f = runtime.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
            assert f(np.ones(4)) == 4


def names():
    return [name for info in synk_shm.list() if info.mine for name in info.names]


@pytest.mark.parametrize("size", [2, 1])
def test_memory_has_no_names_and_outlives_the_runtime(size):
    before = names()
    with no_ranks_left(), Runtime(size) as runtime:
        x = T.dvector("x")
        f = runtime.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
        data = runtime.data(np.ones(100_000))
        assert f(data) == 100_000
        assert names() == before
        if size > 1:
            runtime.close()
            with Runtime(2) as other:
                data[0] = 3
                f = other.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
                assert f(data) == 100_002
        assert data.data.sum() == 100_002 - 2 * (size == 1)
