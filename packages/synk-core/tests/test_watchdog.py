"""Of a master that is killed nothing is left, whatever its workers were doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from _leaks import no_ranks_left

import synk_shm
from synk_core import Runtime
from synk_core._workers import watchdog
from synk_testing import Program, children, is_there, shared_memory, wait_gone
from synk_testing.engine import T, as_op

GONE_S = 2.0
"""The contract: from the master's death until nothing is left."""

BUSY_S = 3.0
"""What a busy machine may add."""

PROGRAM = """
import ctypes, os, sys, time
import numpy as np, synk_shm
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

runtime = Runtime(int(sys.argv[1]), backend=sys.argv[2])
pool = runtime._lifecycle.pool
families = {name.split(".")[1] for info in synk_shm.list() if info.mine for name in info.names}
tell(*families, pool.watchdog_pid, *runtime.worker_pids)
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
    """A program with workers, to be killed."""

    def __init__(self, code, size, backend, zygote, folder):
        how = {"environment": {"SYNKHRONOS_USE_GPU": "0", "TMPDIR": str(folder)}, "grace_s": 30.0}
        super().__init__(PROGRAM + code, size, backend, zygote=zygote, **how)
        self.folder = folder
        self.family, watchdog_pid, *workers = self.line().split()
        self.watchdog_pid = int(watchdog_pid)
        self.workers = [int(pid) for pid in workers]

    def shared_memory(self):
        return shared_memory(f".{self.family}.")

    def left(self):
        pids = [pid for pid in (*self.workers, self.watchdog_pid) if is_there(pid)]
        return [*pids, *self.shared_memory(), *os.listdir(self.folder)]

    def await_nothing(self, timeout_s):
        """Wait until nothing is left, and return how long it took."""
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

    def start(code, size=2, backend="shm"):
        programs.append(Victim(code, size, backend, zygote, tmp_path))
        return programs[-1]

    yield start
    for one in programs:
        one.close()
        one.await_nothing(30.0)


NIGHTLY = pytest.mark.nightly


@pytest.mark.alone
@pytest.mark.parametrize(
    ("number", "stopped", "code"),
    [
        pytest.param(signal.SIGKILL, True, COMPUTING, id="computing-stopped"),
        pytest.param(signal.SIGKILL, True, IDLE, id="idle-stopped", marks=NIGHTLY),
        pytest.param(signal.SIGTERM, False, COMPUTING, id="SIGTERM", marks=NIGHTLY),
        pytest.param(signal.SIGHUP, False, IDLE, id="SIGHUP", marks=NIGHTLY),
    ],
)
def test_nothing_is_left_of_a_killed_master(program, number, stopped, code, request):
    killed = program(code, 3)
    assert killed.line() == ("ready" if code is IDLE else "computing")
    if code is COMPUTING:
        assert killed.line() == "computing"
    if stopped:
        os.kill(killed.workers[1], signal.SIGSTOP)
    assert killed.shared_memory()
    killed.send_signal(number)
    assert killed.wait() == -number
    print(f"{request.node.name}: {killed.await_nothing(GONE_S + BUSY_S):.3f} s")


@pytest.mark.alone
@pytest.mark.parametrize(
    ("backend", "after_s"), [("shm", 0.3), pytest.param("zmq", 0.0, marks=NIGHTLY)]
)
def test_nor_of_one_whose_workers_still_start(program, backend, after_s):
    """Nor of the folder in which zmq has its sockets."""
    killed = program("time.sleep(60)", 3, backend)
    time.sleep(after_s)
    killed.kill()
    print(f"after {after_s} s: {killed.await_nothing(GONE_S + BUSY_S):.3f} s")


def test_it_is_the_watchdog_who_does_that(program):
    killed = program(IDLE)
    assert killed.line() == "ready"
    os.kill(killed.watchdog_pid, signal.SIGKILL)
    os.kill(killed.workers[0], signal.SIGSTOP)
    killed.kill()
    time.sleep(2.5)
    assert killed.left()
    os.kill(killed.workers[0], signal.SIGCONT)
    # Without it, workers end as soon as they can.
    killed.await_nothing(15.0)


# After a call: a watchdog that starts when the master is gone finds that out in another way.
# Python's own fork() lets go, in the child, of what the watchdog and the workers wait on.
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


def test_a_child_of_the_master_does_not_stand_in_for_it(program, zygote):
    killed = program(FORKED_IN_C)
    child = int(killed.line())
    try:
        killed.kill()
        wait_gone([*killed.workers, killed.watchdog_pid], GONE_S + BUSY_S)
        assert is_there(child), "it was to be there all the time"
    finally:
        os.kill(child, signal.SIGKILL)
        wait_gone([child])  # it holds the family's lock until then
        assert zygote.run("import synk_shm; synk_shm.empty(1)").status == 0


def names():
    return [name for info in synk_shm.list() if info.mine for name in info.names]


@as_op([T.dvector], [T.dvector])
def family(rows):
    from synk_shm._processes.process import process

    return np.full(len(rows), float(int(process.home, 16)))


@pytest.mark.parametrize("size", [2, 1])
def test_without_workers_memory_has_no_names_and_goes_with_the_master(size):
    """However it is killed: there is no watchdog then."""
    before = names()
    with no_ranks_left(), Runtime(size) as runtime:
        x = T.dvector("x")
        f = runtime.function([x], [(x.sum(), "sum"), (family(x), "gather")], mode="FAST_COMPILE")
        data = runtime.data(np.ones(100_000))
        total, families = f(data)
        assert total == 100_000
        assert len(set(families)) == 1, "no lock file of a worker's own is left"
        if size > 1:
            runtime.close()
        assert names() == before
        assert data.data.sum() == 100_000
        if size > 1:
            with Runtime(2) as other:
                data[0] = 3
                f = other.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
                assert f(data) == 100_002
        del data, f
        runtime.close()


def test_it_ends_with_the_runtime_and_is_nobodys_zombie():
    with no_ranks_left(grace_s=1.0):
        Runtime(2).close()  # while it starts
    with no_ranks_left(grace_s=0.0):
        runtime = Runtime(2)
        runtime.distribute()
        watchdog_pid = runtime._lifecycle.pool.watchdog_pid
        assert children() >= {watchdog_pid, *runtime.worker_pids}
        runtime.close()
        assert not os.path.exists(f"/proc/{watchdog_pid}")


def test_what_ends_all_processes_of_a_program_does_not_end_it_and_without_it_all_goes_on():
    with no_ranks_left(), Runtime(2) as runtime:
        pool = runtime._lifecycle.pool
        watchdog_pid = pool.watchdog_pid
        runtime.distribute()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(watchdog_pid, number)
        time.sleep(0.2)
        pool.check("a test")
        assert pool.watchdog_pid == watchdog_pid
        assert os.getsid(watchdog_pid) == os.getpgid(watchdog_pid) == watchdog_pid
        os.kill(watchdog_pid, signal.SIGKILL)
        runtime.distribute()
        deadline = time.monotonic() + 10
        while os.path.exists(f"/proc/{watchdog_pid}"):
            pool.check("a test")
            assert time.monotonic() < deadline
        assert pool.watchdog_pid is None


@pytest.fixture
def child():
    """A process that waits for its input."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.stdin.close()
    process.wait()


@pytest.mark.parametrize("pidfd", [True, False])
def test_another_process_with_the_same_pid_is_left_alone(child, monkeypatch, pidfd):
    if not pidfd:
        monkeypatch.delattr(signal, "pidfd_send_signal")
    start = watchdog.start_of(child.pid)
    mistaken = watchdog.WatchedProcess(child.pid, start - 1)
    assert mistaken.is_gone()
    mistaken.kill()
    meant = watchdog.WatchedProcess(child.pid, start)
    assert (meant.fd >= 0) == (pidfd and hasattr(os, "pidfd_open"))
    assert not meant.is_gone()
    assert child.poll() is None
    meant.kill()
    assert child.wait(30) == -signal.SIGKILL
    assert meant.is_gone()
    meant.kill()  # does no harm
    if meant.fd >= 0:
        os.close(meant.fd)


def test_a_system_without_descriptors_of_processes_is_looked_after_too(child, monkeypatch):
    monkeypatch.delattr(signal, "pidfd_send_signal")
    reading, writing = os.pipe()
    me = watchdog.WatchedProcess(os.getpid(), watchdog.start_of(os.getpid()))
    # In pieces, as it may come.
    line = b"%d %d\n" % (child.pid, watchdog.start_of(child.pid))
    os.write(writing, line[:3])
    os.write(writing, line[3:])
    os.close(writing)
    (ward,) = watchdog.watch(reading, me, [])
    os.close(reading)
    assert ward.pid == child.pid
    gone = watchdog.WatchedProcess(os.getpid(), 1)
    reading, still_open = os.pipe()
    assert watchdog.watch(reading, gone, []) == []
    os.write(still_open, watchdog.CLOSE + b"\n")
    assert watchdog.watch(reading, me, []) is None
    os.close(reading)
    os.close(still_open)
