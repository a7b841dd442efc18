"""Collectives that do not wait: their thread; ranks that die, are interrupted, fork or leave."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from _helpers import BOTH
from contract.tools import raises

from synk_comm import (
    AbortedError,
    CommTimeout,
    MismatchError,
    MisuseError,
    PeerLost,
    create_group,
    local_group,
)
from synk_comm.testing import in_threads, run_ranks, thread_group

LONG = np.ones(200_000)
ENOUGH_S = 4.0


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "synk-comm"]


def gone(what, limit_s=10.0):
    deadline = time.monotonic() + limit_s
    while what():
        assert time.monotonic() < deadline, what()
        time.sleep(0.005)


@BOTH
def test_close_ends_the_thread_and_so_does_the_end_of_the_communicator(backend):
    comms = thread_group(2, backend)
    in_threads(comms, lambda comm: comm.iall_reduce(LONG).wait())
    assert len(threads()) == 2
    for comm in comms:
        comm.close()
    assert not threads()

    def use():
        comms = thread_group(2, backend)
        requests = in_threads(comms, lambda comm: comm.iall_reduce(LONG))
        return requests, [weakref.ref(comm) for comm in comms]

    def more():
        gc.collect()
        return max(0, len(os.listdir("/proc/self/fd")) - before)

    for _ in range(3):
        requests, comms = use()
        gc.collect()
        gone(threads)
        assert [comm() for comm in comms] == [None, None]
        assert [request.wait()[0] for request in requests] == [2.0, 2.0]
        del requests
        before = len(os.listdir("/proc/self/fd"))
    gone(more)


def test_no_time_limit_at_all():
    (comm,) = local_group(timeout_s=float("inf"))
    with comm:
        assert comm.iall_reduce(1).wait(float("inf")) == 1
    assert not threads()


def test_neither_a_finished_request_nor_an_error_keeps_an_array_alive():
    def run(comm):
        x, out, wrong = np.ones(3), np.zeros(3), np.ones(3 + comm.rank)
        known = [weakref.ref(array) for array in (x, out, wrong)]
        comm.iall_reduce(x, out=out).wait()
        request = comm.iall_reduce(wrong)
        raises(MismatchError, "different shapes", request.wait)
        with np.errstate(over="raise"):
            overflown = comm.iall_reduce(np.array([1.5e308]))

        def wait():
            own = np.ones(3)
            known.append(weakref.ref(own))
            overflown.wait()

        raises(FloatingPointError, "overflow", wait)
        return request, overflown, known

    comms = thread_group(2)
    kept = in_threads(comms, run)
    gone(lambda: [array for *_, known in kept for array in known if array() is not None])
    for comm, (_, overflown, _) in zip(comms, kept):
        raises(FloatingPointError, "overflow", overflown.test)
        comm.close()


@pytest.mark.parametrize("blocking", [True, False])
@BOTH
def test_a_timeout_ends_both_groups(backend, blocking):
    comms = thread_group(2, backend, timeout_s=30 if blocking else 0.5)
    in_threads(comms, lambda comm: comm.ibarrier().wait())
    request, later = comms[0].iall_reduce(1), comms[0].ibarrier()
    if blocking:
        raises(CommTimeout, "barrier", lambda: comms[0].barrier(timeout_s=0.2))
        raises(AbortedError, "CommTimeout", request.wait)
    else:
        for _ in range(2):
            error = raises(CommTimeout, "all_reduce", request.wait)
            assert list(error.missing) == [1]
        raises(AbortedError, "CommTimeout", comms[0].barrier)
    raises(AbortedError, "CommTimeout", later.wait)
    raises(AbortedError, "CommTimeout", lambda: comms[0].send(1, 1))
    began = time.monotonic()
    raises(AbortedError, "CommTimeout", lambda: comms[1].iall_reduce(1).wait())
    raises(AbortedError, "CommTimeout", comms[1].barrier)
    assert time.monotonic() - began < ENOUGH_S
    for comm in comms:
        comm.close()


def see_a_death(comm):
    pids = comm.all_gather_object(os.getpid())
    comm.ibarrier().wait()
    while comm.rank == 2:
        signal.pause()
    if comm.rank == 1:
        return raises(PeerLost, "rank 2", lambda: comm.recv(0)).rank
    threading.Timer(0.1, os.kill, [pids[2], signal.SIGKILL]).start()
    seen = raises(PeerLost, "rank 2", comm.ibarrier().wait).rank
    time.sleep(1)  # so that it is not this rank's end that the other one hears of
    return seen


@BOTH
def test_a_death_that_one_group_sees_ends_waits_in_the_other(backend):
    outcomes = run_ranks(3, see_a_death, backend=backend, check=False)
    assert [outcome.value for outcome in outcomes[:2]] == [2, 2]


LEAVES = """
import sys, numpy as np, synk_comm

def use():
    comm = synk_comm.join(sys.stdin.read(), timeout_s=20)
    comm.ibarrier().wait()
    for _ in range(3):
        comm.iall_reduce(np.ones(500_000))

use()
"""


@BOTH
def test_a_process_ends_without_a_word_while_collectives_are_under_way(backend):
    with create_group(2, backend) as group:
        command, pipe = [sys.executable, "-c", LEAVES], subprocess.PIPE
        ranks = [subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True) for _ in "01"]
        for rank, process in enumerate(ranks):
            process.stdin.write(group.ticket(rank))
            process.stdin.close()
            process.stdin = None
        assert [process.communicate(timeout=60)[1] for process in ranks] == ["", ""]
        assert [process.returncode for process in ranks] == [0, 0]


def interrupt_and_fork(comm):
    done, request = comm.iall_reduce(1), comm.ibarrier()
    assert done.wait() == 2
    if comm.rank:
        status = comm.recv(0)
        return int(status), comm.iall_reduce(LONG).wait()[0], request.wait()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" ignores it
    waiting = comm.iall_reduce(LONG)
    timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    raises(KeyboardInterrupt, "", waiting.wait)
    timer.join()
    assert not waiting.test()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert done.wait() == 2
            for call in (waiting.wait, waiting.test, comm.ibarrier, comm.barrier):
                raises(MisuseError, "parent", call)
            assert "parent" in repr(comm)
            comm.close()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    comm.send(status, 1)
    return status, waiting.wait()[0], request.wait()


@pytest.mark.filterwarnings("ignore:This process")
@BOTH
def test_an_interrupt_ends_the_wait_alone_and_a_forked_child_does_no_harm(backend):
    assert run_ranks(2, interrupt_and_fork, backend=backend) == [(0, 2.0, None)] * 2


class Fire(Exception):
    pass


def test_wait_raises_the_error_of_a_watch_that_may_close_the_communicator():
    alarm, closed, act = threading.Event(), [], []

    def watch():
        if alarm.is_set() and act:
            act.pop()()

    def burn():
        raise Fire("fire")

    def close():
        closed.append(threading.current_thread().name)
        comms[0].close()

    for strike, error, text in (
        (burn, Fire, "fire"),
        (close, AbortedError, "closed while its collectives were under way"),
    ):
        alarm.clear()
        act[:] = [strike]
        comms = thread_group(2, watch=watch)
        in_threads(comms, lambda comm: comm.ibarrier().wait())
        request = comms[0].iall_reduce(1)
        assert not request.test()
        alarm.set()
        for _ in range(2):
            raises(error, text, request.wait)
        for comm in comms:
            if strike is burn:
                raises(AbortedError, "Fire: fire", comm.barrier)
            comm.close()
    assert closed == ["synk-comm"]
    gone(threads)
