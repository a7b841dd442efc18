"""Of a master that is killed nothing is left, whatever its workers were doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from _busy import computing, hold_the_lock
from _leaks import no_ranks_left

import synk_shm
from synk_core import Runtime, WorkerDied
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

runtime = Runtime(int(sys.argv[1]))
pool = runtime._controller._pool
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
SHORTLY = READY + "f(np.array([0.0, 4.0]))"


class Victim(Program):
    """A program with workers, to be killed."""

    def __init__(self, code, size, zygote):
        super().__init__(
            PROGRAM + code,
            size,
            zygote=zygote,
            environment={"SYNKHRONOS_USE_GPU": "0"},
            grace_s=30.0,
        )
        self.family, watchdog_pid, *workers = self.line().split()
        self.watchdog_pid = int(watchdog_pid)
        self.workers = [int(pid) for pid in workers]

    def shared_memory(self):
        return shared_memory(f".{self.family}.")

    def left(self):
        pids = [pid for pid in (*self.workers, self.watchdog_pid) if is_there(pid)]
        return [*pids, *self.shared_memory()]

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
def program(zygote):
    programs = []

    def start(code, size=2):
        programs.append(Victim(code, size, zygote))
        return programs[-1]

    yield start
    for one in programs:
        one.close()
        one.await_nothing(30.0)


NIGHTLY = pytest.mark.nightly


@pytest.mark.alone
@pytest.mark.parametrize(
    ("stopped", "code"),
    [
        pytest.param(True, COMPUTING, id="computing-stopped"),
        pytest.param(False, IDLE, id="idle", marks=NIGHTLY),
        pytest.param(True, IDLE, id="idle-stopped", marks=NIGHTLY),
        pytest.param(False, COMPUTING, id="computing", marks=NIGHTLY),
    ],
)
def test_nothing_is_left_of_a_killed_master(program, code, stopped, request, record_property):
    killed = program(code, 3)
    assert killed.line() == ("ready" if code is IDLE else "computing")
    if code is COMPUTING:
        assert killed.line() == "computing"
    if stopped:
        os.kill(killed.workers[1], signal.SIGSTOP)
    assert killed.shared_memory()
    killed.kill()
    took_s = killed.await_nothing(GONE_S + BUSY_S)
    record_property("took_s", took_s)
    print(f"{request.node.name}: {took_s:.3f} s")


@pytest.mark.alone
@pytest.mark.parametrize("after_s", [0.3, *(pytest.param(s, marks=NIGHTLY) for s in (0.0, 1.0))])
def test_nor_of_one_whose_workers_still_start(program, after_s, record_property):
    killed = program("time.sleep(60)", 3)
    time.sleep(after_s)
    killed.kill()
    took_s = killed.await_nothing(GONE_S + BUSY_S)
    record_property("took_s", took_s)
    print(f"after {after_s} s: {took_s:.3f} s")


@pytest.mark.parametrize("stopped", [pytest.param(False, marks=NIGHTLY), True])
def test_it_is_the_watchdog_who_does_that(program, stopped):
    killed = program(IDLE if stopped else SHORTLY)
    assert killed.line() == ("ready" if stopped else "computing")
    os.kill(killed.watchdog_pid, signal.SIGKILL)
    if stopped:
        os.kill(killed.workers[0], signal.SIGSTOP)
    killed.kill()
    time.sleep(2.5)
    assert killed.left()
    if stopped:
        os.kill(killed.workers[0], signal.SIGCONT)
    # Without it, workers end as soon as they can.
    killed.await_nothing(15.0)


FORKED = (
    READY
    + """
child = os.fork()
if child == 0:
    synk_shm.cleanup()
    time.sleep(60)
    os._exit(0)
tell(child)
f(np.array([0.0, 60.0]))
"""
)


# After a call: a watchdog that starts when the master is gone finds that out in another way.
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
"""Python's own fork() lets go, in the child, of what the watchdog and the workers wait on."""


@pytest.mark.parametrize(
    "code",
    [pytest.param(FORKED, id="python", marks=NIGHTLY), pytest.param(FORKED_IN_C, id="c")],
)
def test_a_child_of_the_master_does_not_stand_in_for_it(program, zygote, code):
    killed = program(code)
    child = int(killed.line())
    try:
        if code is FORKED:
            assert killed.line() == "computing"
        killed.kill()
        wait_gone([*killed.workers, killed.watchdog_pid], GONE_S + BUSY_S)
        # Python's own fork() lets go of the family's lock, too; in C nobody does.
        if code is FORKED:
            assert not [name for name in killed.shared_memory() if not name.endswith(".lock")]
        assert is_there(child), "it was to be there all the time"
    finally:
        os.kill(child, signal.SIGKILL)
        wait_gone([child])  # it holds the family's lock until then
        assert zygote.run("import synk_shm; synk_shm.empty(1)").status == 0


def names():
    return [name for info in synk_shm.list() if info.mine for name in info.names]


def family_of_each_rank(runtime):
    @as_op([T.dvector], [T.dvector])
    def family(rows):
        from synk_shm._processes.process import process

        return np.full(len(rows), float(int(process.home, 16)))

    x = T.dvector("x")
    f = runtime.function([x], (family(x), "gather"), mode="FAST_COMPILE")
    return set(f(np.zeros(runtime.size)))


def kill_a_worker(runtime, f, data):
    os.kill(runtime.worker_pids[0], signal.SIGKILL)
    with pytest.raises(WorkerDied):
        f(data)


@pytest.mark.parametrize(
    ("size", "end"),
    [
        pytest.param(2, lambda runtime, *_: runtime.close(), id="closed"),
        pytest.param(2, kill_a_worker, id="a-worker-died", marks=NIGHTLY),
        pytest.param(1, lambda *_: None, id="one-rank", marks=NIGHTLY),
    ],
)
def test_without_workers_memory_has_no_names_and_goes_with_the_master(size, end):
    """However it is killed: there is no watchdog then."""
    before = names()
    with no_ranks_left(), Runtime(size) as runtime:
        x = T.dvector("x")
        f = runtime.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
        data = runtime.data(np.ones(100_000))
        assert f(data) == 100_000
        if size > 1:
            assert len(family_of_each_rank(runtime)) == 1, "no lock file of a worker's own is left"
        end(runtime, f, data)
        assert names() == before
        assert data.data.sum() == 100_000
        with Runtime(2) as other:
            data[0] = 3
            assert other.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")(data) == 100_002
        del data, f
        runtime.close()


def test_it_ends_with_the_runtime_and_is_nobodys_zombie():
    with no_ranks_left(grace_s=0.0):
        runtime = Runtime(2)
        runtime.distribute()
        watchdog_pid = runtime._controller._pool.watchdog_pid
        assert children() >= {watchdog_pid, *runtime.worker_pids}
        runtime.close()
        assert not os.path.exists(f"/proc/{watchdog_pid}")


def test_it_ends_at_once_with_a_runtime_that_is_closed_while_it_starts():
    for _ in range(3):
        with no_ranks_left(grace_s=1.0):
            Runtime(2).close()


def test_should_it_be_killed_all_goes_on():
    with no_ranks_left(), Runtime(2) as runtime:
        pool = runtime._controller._pool
        watchdog_pid = pool.watchdog_pid
        os.kill(watchdog_pid, signal.SIGKILL)
        runtime.distribute()  # waits for the workers, and looks after them meanwhile
        deadline = time.monotonic() + 10
        while os.path.exists(f"/proc/{watchdog_pid}"):
            pool.check("a test")
            assert time.monotonic() < deadline
        assert pool.watchdog_pid is None


@pytest.mark.nightly
def test_what_ends_all_processes_of_a_program_does_not_end_it():
    with no_ranks_left(), Runtime(2) as runtime:
        pool = runtime._controller._pool
        watchdog_pid = pool.watchdog_pid
        for _ in range(5):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(watchdog_pid, number)
            time.sleep(0.05)
        assert pool.watchdog_pid == watchdog_pid
        assert os.getsid(watchdog_pid) == os.getpgid(watchdog_pid) == watchdog_pid


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


@pytest.mark.nightly
def test_a_runtime_is_closed_in_time_though_it_is_stopped():
    with computing(hold_the_lock) as pool:
        watchdog_pid = pool.watchdog_pid
        os.kill(watchdog_pid, signal.SIGSTOP)
        began = time.monotonic()
        pool.stop()
        assert time.monotonic() - began < 1.2 + BUSY_S
        wait_gone([watchdog_pid])


@pytest.mark.nightly
def test_the_folder_of_sockets_goes_with_a_master_that_is_killed_in_its_start(run_script, tmp_path):
    code = """
import os, signal
from synk_core import Runtime
runtime = Runtime(2, backend="zmq")
print(*runtime.worker_pids, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    _, out, err = run_script(code, environment={"TMPDIR": str(tmp_path)})
    wait_gone([int(pid) for pid in out.split()])
    deadline = time.monotonic() + 10
    while list(tmp_path.glob("synk-comm-*")):
        assert time.monotonic() < deadline, (list(tmp_path.iterdir()), err)
        time.sleep(0.05)
