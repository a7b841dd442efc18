"""Ranks that die, freeze, are interrupted or watched: nobody hangs, everybody learns why."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from synk_comm import (
    AbortedError,
    CommTimeout,
    MisuseError,
    PeerLost,
    create_group,
    join,
    local_group,
)
from synk_comm.testing import in_threads, run_ranks

BACKENDS = ["shm", "zmq"]
BIG = 2_000_000  # float64, many slots


def raised(call):
    """Return the exception that ends a call, and how long that took."""
    began = time.monotonic()
    try:
        call()
    except BaseException as exc:
        return exc, time.monotonic() - began
    raise AssertionError("nothing was raised")


def die_in_the_middle(comm):
    comm.barrier()
    if comm.rank == 1:
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGKILL]).start()
    x = np.ones(BIG)

    def forever():
        while True:
            comm.all_reduce(x, out=x)

    first, _ = raised(forever)
    again, took = raised(comm.barrier)
    assert took < 0.1
    assert isinstance(first, ConnectionError)
    assert type(again) is type(first)
    return type(first), first.rank, "lost rank 1" in repr(comm)


@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_in_the_middle(backend):
    outcomes = run_ranks(3, die_in_the_middle, backend=backend, check=False)
    assert outcomes[1].exitcode == -signal.SIGKILL
    for rank in (0, 2):
        assert outcomes[rank].failure == ""
        assert outcomes[rank].value == (PeerLost, 1, True)


def freeze(comm):
    pids = comm.all_gather_object(os.getpid())
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        # Over zmq the peer's part of the first may have come before its abort.
        first, _ = raised(lambda: [comm.barrier(), comm.barrier()])
    else:
        first, took = raised(lambda: comm.barrier(timeout_s=0.3))
        assert 0.25 < took < 10
        time.sleep(0.2)
        if comm.rank == 0:
            os.kill(pids[1], signal.SIGCONT)
    return type(first), str(first)


@pytest.mark.parametrize("backend", BACKENDS)
def test_frozen_rank_is_named(backend):
    values = run_ranks(2, freeze, backend=backend)
    assert values[0][0] is CommTimeout
    assert "rank 1: last entered call #1, all_gather_object" in values[0][1]
    assert values[1][0] is AbortedError
    assert "CommTimeout" in values[1][1]


def interrupt(comm):
    if comm.rank == 0:
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
        first, _ = raised(comm.barrier)
        again, _ = raised(comm.barrier)
        return type(first), type(again)
    time.sleep(0.6)
    first, took = raised(lambda: [comm.barrier(), comm.barrier()])
    assert took < 5
    return type(first), first.rank


@pytest.mark.parametrize("backend", BACKENDS)
def test_keyboard_interrupt_in_a_wait(backend):
    values = run_ranks(2, interrupt, backend=backend)
    assert values == [(KeyboardInterrupt, AbortedError), (AbortedError, 0)]


class Fire(Exception):
    pass


@pytest.mark.parametrize("backend", BACKENDS)
def test_watch_is_called_often_and_ends_the_wait(backend):
    calls = []

    def watch():
        calls.append(time.monotonic())
        if alarm.is_set():
            raise Fire("fire")

    alarm = threading.Event()
    with create_group(2, backend) as group:
        comms = in_threads(
            local_group(2), lambda seat: join(group.ticket(seat.rank), timeout_s=20, watch=watch)
        )
    del calls[:]
    timer = threading.Timer(0.5, alarm.set)
    timer.start()
    with pytest.raises(Fire):
        comms[0].barrier()
    timer.join()
    assert len(calls) > 10
    alarm.clear()
    with pytest.raises(AbortedError, match="Fire: fire"):
        for _ in range(2):
            comms[1].barrier()
    for comm in comms:
        comm.close()


def use_after_fork(comm):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            comm.barrier()
        except MisuseError:
            assert "parent" in repr(comm)
            comm.close()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    comm.barrier()
    return status


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_forked_child_is_refused_and_does_no_harm(backend):
    assert run_ranks(2, use_after_fork, backend=backend) == [0, 0]


def raise_on_one(comm):
    if comm.rank == 1:
        raise RuntimeError("user code failed")
    comm.barrier()


@pytest.mark.parametrize("backend", BACKENDS)
def test_leaving_by_an_exception_lets_peers_go(backend):
    with pytest.raises(AssertionError, match=r"(?s)rank 0.*PeerLost.*rank 1.*user code failed"):
        run_ranks(2, raise_on_one, backend=backend)


def never_ends(comm):
    time.sleep(60)


def test_run_ranks_kills_what_does_not_end():
    began = time.monotonic()
    with pytest.raises(AssertionError, match="without an outcome"):
        run_ranks(2, never_ends, timeout_s=1.5)
    assert time.monotonic() - began < 20
