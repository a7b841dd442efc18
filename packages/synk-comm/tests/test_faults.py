"""Ranks die, freeze, are interrupted or watched: nobody hangs, everybody learns why."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import re
import select
import signal
import sys
import threading
import time
import traceback
import warnings

import numpy as np
import pytest
from _helpers import BOTH

from synk_comm import AbortedError, create_group, join
from synk_comm.testing import run_ranks, thread_group


class Fire(Exception):
    pass


@BOTH
def test_watch_is_called_often_and_ends_the_wait(backend):
    calls = []

    def watch():
        calls.append(time.monotonic())
        if alarm.is_set():
            raise Fire("fire")

    alarm = threading.Event()
    comms = thread_group(2, backend, timeout_s=20, watch=watch)
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


def never_ends(comm):
    time.sleep(60)


def test_run_ranks_kills_ranks_that_do_not_end():
    began = time.monotonic()
    with pytest.raises(AssertionError, match="without an outcome"):
        run_ranks(2, never_ends, timeout_s=1.5)
    assert time.monotonic() - began < 20


def ring(comm, x):
    if comm.rank:
        got = comm.recv(comm.rank - 1)
    comm.send(x, (comm.rank + 1) % comm.size)
    return got if comm.rank else comm.recv(comm.size - 1)


SIZE = 3
LONG = 200_000  # float64: several slots
CALLS = {
    "barrier": lambda comm, _: comm.barrier(),
    "all_reduce": lambda comm, x: comm.all_reduce(x),
    "in place": lambda comm, x: comm.all_reduce(x, "max", out=x),
    "list": lambda comm, x: comm.all_reduce([x, x[:7], x]),
    "reduce": lambda comm, x: comm.reduce(x, root=1),
    "reduce_scatter": lambda comm, x: comm.reduce_scatter([x] * SIZE),
    "broadcast": lambda comm, x: comm.broadcast(x, 2),
    "scatter": lambda comm, x: comm.scatter([x] * SIZE if comm.rank == 1 else None, 1),
    "gather": lambda comm, x: comm.gather(x, 2),
    "all_gather": lambda comm, x: comm.all_gather(x),
    "all_to_all": lambda comm, x: comm.all_to_all([x] * SIZE),
    "broadcast_object": lambda comm, x: comm.broadcast_object(x, 1),
    "gather_object": lambda comm, x: comm.gather_object(x),
    "all_gather_object": lambda comm, x: comm.all_gather_object(x),
    "scatter_object": lambda comm, x: comm.scatter_object([1] * SIZE if comm.rank == 0 else None),
    "all_to_all_object": lambda comm, x: comm.all_to_all_object([x] * SIZE),
    "send and recv": ring,
    "split": lambda comm, x: split(comm),
    "iall_reduce": lambda comm, x: comm.iall_reduce(x).wait(),
    "beside": lambda comm, x: [comm.iall_reduce(x), comm.barrier()][0].wait(),
}
FAULTS = ["kill", "exit", "sys.exit", "raise", "interrupt", "stop", "abort", "close"]
MOMENTS = ["before", "large", "again"]
MATRIX = list(itertools.product(["shm", "zmq"], CALLS, range(SIZE), FAULTS, MOMENTS))
CHOSEN = [
    ("shm", "all_reduce", 1, "kill", "large"),
    ("shm", "iall_reduce", 0, "exit", "again"),
    ("shm", "gather", 2, "sys.exit", "before"),
    ("shm", "beside", 1, "raise", "again"),
    ("shm", "list", 0, "interrupt", "large"),
    ("shm", "reduce", 2, "stop", "again"),
    ("shm", "split", 1, "abort", "before"),
    ("shm", "send and recv", 0, "close", "large"),
    ("shm", "send and recv", 1, "kill", "again"),
    ("zmq", "broadcast", 0, "kill", "again"),
    ("zmq", "all_to_all", 1, "stop", "before"),
    ("zmq", "split", 2, "abort", "again"),
]
SAMPLE = MATRIX if os.environ.get("SYNK_TESTS") == "all" else CHOSEN
ENOUGH_S = 4.0
"""Half of the time after which every wait is over: it was noticed, and not waited out."""


def split(comm):
    time.sleep(0.005)
    comm.split(comm.rank % 2).close()


def strike(comm, fault, log):
    """Do to this process, or to its communicator, what is asked; tell when."""
    with open(log, "w") as file:
        file.write(repr(time.monotonic()))
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "exit":
        os._exit(3)
    elif fault == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "abort":
        comm.abort("given up")
    elif fault == "close":
        comm.close()
    elif fault == "sys.exit":
        sys.exit(3)
    else:
        raise RuntimeError("user code failed")


def suffer(comm, call, victim, fault, moment, log):
    """Call until something happens; return what, and when."""
    x = np.ones(LONG if moment == "large" else 5)
    comm.barrier()
    if comm.backend == "zmq" and comm.rank == victim:
        time.sleep(0.1)  # who ends without closing, or is stopped, keeps what is not sent yet
    if comm.rank == victim:
        for _ in range(3 if moment == "again" else 0):
            CALLS[call](comm, x)
        if moment == "before" or fault in ("sys.exit", "raise"):
            strike(comm, fault, log)
        else:
            timer = threading.Timer(0.05, strike, [comm, fault, log])
            timer.daemon = True
            timer.start()
    try:
        while True:
            CALLS[call](comm, x)
    except BaseException as exc:
        return type(exc).__name__, getattr(exc, "rank", None), str(exc), time.monotonic()


def forked(function, *args, backend, timeout_s):
    """Run ``function(comm, *args)`` on ranks that are forks of this process, which is quick.

    Return what each returned, or the traceback of what it raised, and how its process ended.
    """
    with create_group(SIZE, backend) as group, contextlib.ExitStack() as stack:
        pids, pipes = [], []
        for rank in range(SIZE):
            pipe, said = os.pipe()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # newer Pythons warn of threads at a fork
                pid = os.fork()
            if not pid:
                be_a_rank(group.ticket(rank), said, timeout_s, function, args)
            os.close(said)
            stack.callback(os.close, pipe)
            pids.append(pid)
            pipes.append(pipe)
        outcomes = [None] * SIZE
        deadline = time.monotonic() + 60
        waiting = {pipe: rank for rank, pipe in enumerate(pipes)}
        texts = [b""] * SIZE
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], 0.5)
            late = time.monotonic() > deadline
            if not ready and (late or len(waiting) == 1):
                for rank in waiting.values():
                    os.kill(pids[rank], signal.SIGKILL if late else signal.SIGCONT)
            for pipe in ready:
                text = os.read(pipe, 1 << 16)
                texts[waiting[pipe]] += text
                if not text:
                    del waiting[pipe]
        for rank, pid in enumerate(pids):
            _, status = os.waitpid(pid, 0)
            value = pickle.loads(texts[rank]) if texts[rank] else None
            outcomes[rank] = value, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return outcomes


def be_a_rank(ticket, said, timeout_s, function, args):
    parent = os.getppid()

    def watch():
        if os.getppid() != parent:
            os._exit(4)

    outcome = None
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with join(ticket, timeout_s=timeout_s, watch=watch) as comm:
                outcome = function(comm, *args)
        except BaseException:
            outcome = traceback.format_exc()
        os.write(said, pickle.dumps(outcome))
    finally:
        os._exit(0)


@pytest.mark.parametrize(
    "backend, call, victim, fault, moment",
    SAMPLE,
    ids=["-".join(map(str, case)) for case in SAMPLE],
)
def test_whatever_happens(backend, call, victim, fault, moment, tmp_path):
    log = tmp_path / "struck"
    timeout_s = 1.0 if fault == "stop" else 8.0
    outcomes = forked(
        suffer, call, victim, fault, moment, str(log), backend=backend, timeout_s=timeout_s
    )
    assert log.exists(), outcomes
    struck = float(log.read_text())
    for rank, (value, ended_by) in enumerate(outcomes):
        if rank == victim:
            assert ended_by == (signal.SIGKILL if fault == "kill" else 0)
            # The others have closed meanwhile; one that waited for a message has ended nothing.
            if fault == "stop" and (backend == "zmq" or call == "send and recv"):
                assert value[0] in ("AbortedError", "PeerLost", "CommTimeout"), value
            elif fault in ("stop", "abort"):
                assert value[0] == "AbortedError", value
            elif fault == "close":
                assert value[0] in ("AbortedError", "ClosedError"), value
            continue
        assert ended_by == 0
        assert isinstance(value, tuple), value
        kind, blamed, text, moment_of_error = value
        if fault == "stop" and call == "send and recv":
            # In a ring: one waits for the victim, the next for that one, which may give up first.
            assert kind in ("CommTimeout", "AbortedError", "PeerLost"), text
            assert blamed != rank, text
            assert victim in waited_for(outcomes), outcomes
            continue
        if fault == "stop":
            assert kind in ("CommTimeout", "AbortedError"), text
            # One may wait for another, which waits for the victim.
            assert "CommTimeout" in text or waited_for([(value, 0)]) - {rank}, text
            continue
        if call == "send and recv":  # a peer that was let go ends, too, before the next looks
            assert blamed != rank, text
        else:
            assert blamed == victim, text
        if fault in ("kill", "exit"):
            assert kind == "PeerLost", text
        elif fault in ("sys.exit", "raise") and (kind, call) != ("PeerLost", "send and recv"):
            assert kind == "AbortedError", text
            said = "SystemExit: 3" if fault == "sys.exit" else "RuntimeError: user code failed"
            assert said in text
        elif fault == "abort":
            assert kind == "AbortedError", text
            assert "given up" in text
        elif fault not in ("sys.exit", "raise"):
            assert kind in ("AbortedError", "PeerLost"), text
        took = moment_of_error - struck
        assert took < ENOUGH_S, (took, text)


def waited_for(outcomes):
    """The ranks that somebody reported as absent."""
    named = set()
    for value, _ in outcomes:
        text = value[2] if isinstance(value, tuple) else ""
        numbers = [int(number) for number in re.findall(r"\n  rank (\d+): ", text)]
        group = re.search(r"which is ranks \[([\d, ]+)\] of this one", text)
        members = [int(number) for number in group[1].split(",")] if group else range(SIZE)
        named.update(members[number] for number in numbers)
    return named
