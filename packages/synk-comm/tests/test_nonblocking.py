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
from _helpers import join_in_threads

from synk_comm import (
    AbortedError,
    ClosedError,
    CommTimeout,
    MismatchError,
    MisuseError,
    PeerLost,
    create_group,
    join,
    local_group,
)
from synk_comm.testing import in_threads, run_ranks
from synk_comm.testing._checks_tools import raises

BACKENDS = ["shm", "zmq"]
LONG = np.ones(200_000)
ENOUGH_S = 4.0


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "synk-comm"]


def gone(what, limit_s=10.0):
    """Wait until ``what()`` is empty."""
    deadline = time.monotonic() + limit_s
    while what():
        assert time.monotonic() < deadline, what()
        time.sleep(0.005)


@pytest.mark.parametrize("backend", BACKENDS)
def test_close_ends_the_thread(backend):
    comms = join_in_threads(2, backend)
    in_threads(comms, lambda comm: comm.iall_reduce(LONG).wait())
    assert len(threads()) == 2
    for comm in comms:
        comm.close()
    assert not threads()


def test_a_communicator_that_is_dropped_ends_its_thread():
    def use():
        comms = local_group(2)
        requests = in_threads(comms, lambda comm: comm.iall_reduce(LONG))
        return requests, [weakref.ref(comm) for comm in comms]

    requests, comms = use()
    gc.collect()
    gone(threads)
    assert [comm() for comm in comms] == [None, None]
    assert [request.wait()[0] for request in requests] == [2.0, 2.0]


def test_no_time_limit_at_all():
    comms = local_group(2, timeout_s=float("inf"))
    requests = in_threads(comms, lambda comm: comm.iall_reduce(1))
    assert [request.wait(float("inf")) for request in requests] == [2, 2]
    in_threads(comms, lambda comm: comm.close())
    assert not threads()


def test_what_is_done_keeps_no_array_alive():
    (comm,) = local_group(1)
    with comm:
        x, out = np.ones(3), np.zeros(3)
        known = weakref.ref(x), weakref.ref(out)
        requests = [comm.iall_reduce(x, out=out), comm.igather(x)]
        requests.pop(0).wait()
        requests[0].wait()
        del x, out
        gone(lambda: [array for array in known if array() is not None])


def test_an_error_keeps_no_array_alive():
    def run(comm):
        x = np.ones(3 + comm.rank)
        request = comm.iall_reduce(x)
        raises(MismatchError, "different shapes", request.wait)
        return request, weakref.ref(x)

    comms = local_group(2)
    kept = in_threads(comms, run)
    gone(lambda: [array for _, array in kept if array() is not None])
    for comm in comms:
        comm.close()


def join_two(backend, timeout_s):
    with create_group(2, backend) as group:
        return in_threads(
            local_group(2), lambda seat: join(group.ticket(seat.rank), timeout_s=timeout_s)
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_takes_too_long_ends_both_groups(backend):
    comms = join_two(backend, 0.5)
    in_threads(comms, lambda comm: comm.ibarrier().wait())
    request, later = comms[0].iall_reduce(1), comms[0].ibarrier()
    for _ in range(2):
        error = raises(CommTimeout, "all_reduce", request.wait)
        assert list(error.missing) == [1]
    raises(AbortedError, "CommTimeout", later.wait)
    raises(AbortedError, "CommTimeout", comms[0].barrier)
    raises(AbortedError, "CommTimeout", lambda: comms[0].send(1, 1))
    raises(AbortedError, "CommTimeout", lambda: [comms[1].barrier(), comms[1].barrier()])
    for comm in comms:
        comm.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_blocking_call_that_takes_too_long_ends_both_groups(backend):
    comms = join_two(backend, 30.0)
    in_threads(comms, lambda comm: comm.ibarrier().wait())
    request, theirs = comms[0].iall_reduce(1), comms[1].igather(1)
    raises(ValueError, "different collectives", theirs.wait)
    raises(ValueError, "different collectives", request.wait)
    request = comms[0].iall_reduce(1)
    raises(CommTimeout, "barrier", lambda: comms[0].barrier(timeout_s=0.2))
    raises(AbortedError, "CommTimeout", request.wait)
    began = time.monotonic()
    raises(AbortedError, "CommTimeout", lambda: comms[1].iall_reduce(1).wait())
    assert time.monotonic() - began < ENOUGH_S
    for comm in comms:
        comm.close()


def die(comm, polls):
    comm.ibarrier().wait()
    if comm.rank == 1:
        comm.recv(0)
        os.kill(os.getpid(), signal.SIGKILL)
    requests = [comm.iall_reduce(LONG), comm.iall_gather(LONG)]
    if comm.rank == 0:
        comm.send(1, 1)
    began = time.monotonic()

    def over():
        while polls and not requests[0].test():
            time.sleep(0.001)
        requests[0].wait()

    acts = [over, requests[1].wait, lambda: comm.send(1, 2 - comm.rank), comm.barrier]
    ends = [raises(PeerLost, "rank 1", act) for act in acts]
    assert time.monotonic() - began < ENOUGH_S
    return [end.rank for end in ends], "lost rank 1" in repr(comm)


@pytest.mark.parametrize("polls", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_while_collectives_are_under_way(backend, polls):
    outcomes = run_ranks(3, die, polls, backend=backend, check=False)
    assert outcomes[1].exitcode == -signal.SIGKILL
    for rank in (0, 2):
        assert (outcomes[rank].failure, outcomes[rank].value) == ("", ([1] * 4, True))


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


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_death_that_one_group_sees_ends_waits_in_the_other(backend):
    outcomes = run_ranks(3, see_a_death, backend=backend, check=False)
    assert [outcome.value for outcome in outcomes[:2]] == [2, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_dropped_leaves_no_descriptors(backend):
    def use():
        comms = join_in_threads(2, backend)
        in_threads(comms, lambda comm: comm.iall_reduce(1).wait())

    def more():
        gc.collect()
        return max(0, len(os.listdir("/proc/self/fd")) - before)

    use()
    gone(threads)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        use()
    gone(more)


LEAVES = """
import sys, numpy as np, synk_comm

def use():
    comm = synk_comm.join(sys.stdin.read(), timeout_s=20)
    comm.ibarrier().wait()
    for _ in range(3):
        comm.iall_reduce(np.ones(500_000))

use()
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_process_ends_without_a_word_while_collectives_are_under_way(backend):
    for _ in range(4):
        with create_group(2, backend) as group:
            command, pipe = [sys.executable, "-c", LEAVES], subprocess.PIPE
            ranks = [subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True) for _ in "01"]
            for rank, process in enumerate(ranks):
                process.stdin.write(group.ticket(rank))
                process.stdin.close()
                process.stdin = None
            assert [process.communicate(timeout=60)[1] for process in ranks] == ["", ""]
            assert [process.returncode for process in ranks] == [0, 0]


def interrupt(comm):
    comm.ibarrier().wait()
    if comm.rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" ignores it
        request = comm.iall_reduce(LONG)
        timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        raises(KeyboardInterrupt, "", request.wait)
        timer.join()
        assert not request.test()
        comm.send(1, 1)
    else:
        comm.recv(0)
        request = comm.iall_reduce(LONG)
    return request.wait()[0], comm.all_reduce(1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interrupt_ends_the_wait_alone(backend):
    assert run_ranks(2, interrupt, backend=backend) == [(2.0, 2)] * 2


def fork(comm):
    done, request = comm.iall_reduce(1), comm.ibarrier()
    done.wait()
    if comm.rank == 0:
        waiting = comm.iall_reduce(LONG)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                assert done.wait() == 2
                for call in (waiting.wait, waiting.test, comm.ibarrier, lambda: waiting.wait(1)):
                    raises(MisuseError, "parent", call)
                comm.close()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        comm.send(status, 1)
    else:
        status = comm.recv(0)
        waiting = comm.iall_reduce(LONG)
    request.wait()
    return int(status), waiting.wait()[0]


@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_forked_child_is_refused_and_does_no_harm(backend):
    assert run_ranks(2, fork, backend=backend) == [(0, 2.0)] * 2


def test_one_thread_at_a_time_begins_collectives():
    comms = local_group(2)
    in_threads(comms, lambda comm: comm.ibarrier().wait())
    inside = threading.Thread(target=comms[0].barrier, daemon=True)
    inside.start()
    gone(lambda: comms[0]._guard.lock)
    raises(MisuseError, "another thread", comms[0].ibarrier)
    comms[1].barrier()
    inside.join()
    for comm in comms:
        comm.close()


def test_close_in_another_thread_refuses_what_comes_later():
    """What was begun is made, or refused; none of it is waited for in vain."""
    for _ in range(20):
        (comm,) = local_group(1)
        comm.ibarrier().wait()
        closer = threading.Thread(target=comm.close)
        made = 0
        with pytest.raises((ClosedError, AbortedError)):
            while True:
                assert comm.iall_reduce(1).wait(ENOUGH_S) == 1
                made += 1
                if made == 3:
                    closer.start()
        closer.join()
        raises(ClosedError, "closed", comm.ibarrier)
    assert not threads()


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_leaves_with_something_begun_holds_nobody_up(backend):
    def run(comm):
        comm.ibarrier().wait()
        if comm.rank == 0:
            comm.iall_reduce(LONG)
            comm.close()
        else:
            raises(PeerLost, "rank 0", comm.barrier)
            comm.close()

    began = time.monotonic()
    in_threads(join_two(backend, 60), run)
    assert time.monotonic() - began < ENOUGH_S
    gone(threads)


def test_without_a_thread_all_ranks_hear_of_it(monkeypatch):
    start, refusals, outcomes = threading.Thread.start, [], []

    def refuse_first(thread):
        if thread.name == "synk-comm" and not refusals:
            refusals.append(thread)
            raise RuntimeError("no more threads")
        start(thread)

    def run(comm):
        try:
            comm.iall_reduce(1).wait()
        except (RuntimeError, AbortedError) as error:
            outcomes.append((type(error), "no more threads" in str(error)))
        comm.close()

    comms = local_group(2)
    monkeypatch.setattr(threading.Thread, "start", refuse_first)
    in_threads(comms, run)
    assert set(outcomes) == {(RuntimeError, True), (AbortedError, True)}
    gone(threads)


def test_an_error_keeps_nothing_of_who_waited_alive():
    def run(comm):
        with np.errstate(over="raise"):
            request = comm.iall_reduce(np.array([1.5e308]))

        def wait():
            own = np.ones(3)
            known.append(weakref.ref(own))
            request.wait()

        with pytest.raises(FloatingPointError, match="overflow"):
            wait()
        return request

    known, comms = [], local_group(2)
    requests = in_threads(comms, run)
    gone(lambda: [array for array in known if array() is not None])
    for request, comm in zip(requests, comms):
        with pytest.raises(FloatingPointError):
            request.test()
        comm.close()


class Fire(Exception):
    pass


def test_what_the_watch_raises_comes_out_of_wait():
    alarm = threading.Event()

    def watch():
        if alarm.is_set():
            raise Fire("fire")

    with create_group(2) as group:
        comms = in_threads(
            local_group(2), lambda seat: join(group.ticket(seat.rank), timeout_s=20, watch=watch)
        )
    in_threads(comms, lambda comm: comm.ibarrier().wait())
    request = comms[0].iall_reduce(1)
    assert not request.test()
    alarm.set()
    for _ in range(2):
        raises(Fire, "fire", request.wait)
    alarm.clear()
    for comm in comms:
        raises(AbortedError, "Fire: fire", comm.barrier)
        comm.close()


def test_the_watch_may_close_the_communicator():
    alarm, closed = threading.Event(), []

    def watch():
        if alarm.is_set() and not closed:
            closed.append(threading.current_thread().name)
            comms[0].close()

    with create_group(2) as group:
        comms = in_threads(
            local_group(2), lambda seat: join(group.ticket(seat.rank), timeout_s=20, watch=watch)
        )
    in_threads(comms, lambda comm: comm.ibarrier().wait())
    request = comms[0].iall_reduce(1)
    alarm.set()
    raises(AbortedError, "closed while its collectives were under way", request.wait)
    assert closed == ["synk-comm"]
    comms[1].close()
    gone(threads)
