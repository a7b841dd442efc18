"""Ranks without a common parent: addresses, the environment, and the choice of a back-end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from _helpers import environment

from synk_comm import (
    CommError,
    CommTimeout,
    JoinError,
    connect,
    local_group,
)
from synk_comm.testing import in_threads

TOKEN = "a token that nobody can guess"
WAYS = [("shm", "ipc"), ("shm", "tcp"), ("zmq", "ipc"), ("zmq", "tcp"), ("auto", "tcp")]


@pytest.fixture(autouse=True)
def no_group_around(monkeypatch):
    for name in ("TICKET", "RANK", "SIZE", "ADDRESS", "TOKEN", "SHM"):
        monkeypatch.delenv(f"SYNK_COMM_{name}", raising=False)


@pytest.fixture
def address_of(tmp_path):
    def make(scheme):
        if scheme == "ipc":
            return f"ipc://{tmp_path}/meet"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"tcp://127.0.0.1:{probe.getsockname()[1]}"

    return make


def outcomes(size, function):
    """Run ``function(rank)`` in threads; return what each returned, or raised."""

    def run(seat):
        try:
            return function(seat.rank)
        except (CommError, ValueError, MemoryError, Fire) as exc:
            return exc

    return in_threads(local_group(size), run)


class Fire(Exception):
    pass


@pytest.mark.parametrize("backend, scheme", WAYS)
def test_ranks_meet_in_any_order(backend, scheme, address_of, tmp_path):
    address = address_of(scheme)

    def run(rank):
        time.sleep(0.1 * (2 - rank))  # rank 0 comes last
        with connect(rank, 3, address, token=TOKEN, backend=backend, timeout_s=20) as comm:
            return comm.all_reduce(np.ones(2) * rank).tolist(), comm.backend

    expected = "shm" if backend == "auto" else backend
    assert outcomes(3, run) == [([3.0, 3.0], expected)] * 3
    assert os.listdir(tmp_path) == []


def test_auto_says_why(address_of, monkeypatch):
    def run(rank):
        with connect(rank, 2, address, token=TOKEN, timeout_s=20) as comm:
            return comm.why

    address = address_of("tcp")
    assert outcomes(2, run) == ["shm: all 2 ranks are on this machine"] * 2
    monkeypatch.setenv("SYNK_COMM_SHM", "0")
    why = "zmq: rank 0 must not share memory (SYNK_COMM_SHM is 0)"
    assert outcomes(2, run) == [why] * 2


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_auto_takes_zmq_if_the_memory_cannot_be_made(scheme, address_of, monkeypatch):
    def no_memory(*args):
        raise MemoryError("no room at all")

    monkeypatch.setattr("synk_comm._join.choice.create_block", no_memory)
    address = address_of(scheme)

    def run(rank):
        with connect(rank, 2, address, token=TOKEN, timeout_s=20) as comm:
            comm.barrier()
            return comm.why

    assert outcomes(2, run) == ["zmq: no shared memory, rank 0: no room at all"] * 2

    def run_shm(rank):
        return connect(rank, 2, address, token=TOKEN, backend="shm", timeout_s=20)

    assert [str(exc) for exc in outcomes(2, run_shm)] == ["rank 0: no room at all"] * 2


def test_auto_takes_zmq_if_a_rank_cannot_get_at_the_memory(address_of, monkeypatch):
    # As in containers: one rank sees other processes than rank 0.
    monkeypatch.setattr(
        "synk_comm._meeting.meeting.os.readlink",
        lambda path: "/dev/null" if "/fd/" in path else path,
    )
    address = address_of("tcp")

    def run(rank):
        with connect(rank, 2, address, token=TOKEN, timeout_s=20) as comm:
            return comm.why

    got = outcomes(2, run)
    assert got[0] == got[1]
    assert "zmq: no shared memory, rank 1: " in got[0]
    assert "is not the memory of rank 0" in got[0]


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_another_token_is_refused(scheme, address_of):
    address = address_of(scheme)

    def run(rank):
        token = TOKEN if rank == 0 else TOKEN + "!"
        return connect(rank, 2, address, token=token, timeout_s=1.5)

    waited, refused = outcomes(2, run)
    assert isinstance(waited, CommTimeout)
    assert list(waited.missing) == [1]
    assert "did not prove that it knows the token" in waited.missing[1]
    assert isinstance(refused, JoinError)
    assert "does not know the token" in str(refused)


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_sizes_disagree(scheme, address_of):
    address = address_of(scheme)

    def run(rank):
        if rank == 2:
            time.sleep(0.3)  # rank 1 has been welcomed
        return connect(rank, 4 if rank == 2 else 3, address, token=TOKEN, timeout_s=20)

    for failure in outcomes(3, run):
        assert isinstance(failure, JoinError)
        assert "rank 2 was started for a group of 4, rank 0 for one of 3" in str(failure)


def test_a_rank_number_too_high_is_a_size_that_disagrees(address_of):
    address = address_of("tcp")
    failures = outcomes(
        2, lambda rank: connect(5 * rank, 2 + 5 * rank, address, token=TOKEN, timeout_s=20)
    )
    assert all("rank 5 was started for a group of 7" in str(failure) for failure in failures)


def test_a_rank_that_joins_twice_is_refused_and_the_group_goes_on(address_of):
    address = address_of("tcp")

    def run(seat):
        rank = min(seat, 2)
        time.sleep((0, 0, 0.9, 0.3)[seat])  # the second rank 1 comes between
        rank = (0, 1, 2, 1)[seat]
        with connect(rank, 3, address, token=TOKEN, timeout_s=20) as comm:
            return float(comm.all_reduce(1.0))

    *good, refused = outcomes(4, run)
    assert good == [3.0] * 3
    assert isinstance(refused, JoinError)
    assert "rank 1 has already joined" in str(refused)


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_two_ranks_0(scheme, address_of):
    address = address_of(scheme)

    def run(seat):
        time.sleep(0.3 * seat)
        return connect(0, 2, address, token=TOKEN, timeout_s=1.5)

    first, second = outcomes(2, run)
    assert isinstance(first, CommTimeout)
    assert isinstance(second, JoinError)
    assert "another rank 0" in str(second)


def test_what_a_dead_rank_0_left_is_no_hindrance(tmp_path):
    folder = tmp_path / "meet"
    folder.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / "server-"))
    got = outcomes(
        2, lambda rank: connect(rank, 2, f"ipc://{folder}", token=TOKEN, timeout_s=20).close()
    )
    assert got == [None, None]
    assert os.listdir(folder) == []


def test_different_backends_are_told_to_all(address_of):
    address = address_of("tcp")
    names = ["shm", "zmq"]
    for failure in outcomes(
        2, lambda rank: connect(rank, 2, address, token=TOKEN, backend=names[rank], timeout_s=20)
    ):
        assert isinstance(failure, JoinError)
        assert "rank 0: 'shm'\n  rank 1: 'zmq'" in str(failure)


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
@pytest.mark.parametrize("who", [0, 1])
def test_a_failing_rank_is_told_to_all(scheme, who, address_of, monkeypatch):
    from synk_comm._backends.shm.states import PeerStates

    def enter(self):
        if self._rank == who:
            raise RuntimeError("this rank is broken")

    monkeypatch.setattr(PeerStates, "enter", enter)
    address = address_of(scheme)

    def run(rank):
        try:
            return connect(rank, 3, address, token=TOKEN, backend="shm", timeout_s=20)
        except RuntimeError as exc:
            return exc

    for rank, failure in enumerate(outcomes(3, run)):
        if rank == who:
            assert str(failure) == "this rank is broken"
        else:
            assert f"rank {who} could not join: RuntimeError: this rank is broken" in str(failure)


def test_the_wait_for_others_names_them_to_all(address_of):
    address = address_of("tcp")

    def run(rank):
        return connect(rank, 3, address, token=TOKEN, timeout_s=(0.5, 20)[rank])

    for failure in outcomes(2, run):
        assert isinstance(failure, CommTimeout)
        assert failure.missing == {2: "has not joined yet"}
        assert "rank 0 waited 0.5" in str(failure)


@pytest.mark.parametrize("who", [0, 1])
def test_watch_ends_the_wait_of_all(who, address_of):
    address = address_of("tcp")

    def run(rank):
        until = time.monotonic() + 0.3

        def watch():
            if rank == who and time.monotonic() > until:
                raise Fire("fire")

        return connect(rank, 3, address, token=TOKEN, timeout_s=20, watch=watch)

    got = outcomes(2, run)
    assert isinstance(got[who], Fire)
    assert isinstance(got[1 - who], CommError)
    assert "Fire: fire" in str(got[1 - who])


def test_bad_addresses_tokens_ranks_and_backends(tmp_path):
    def attempt(address, token=TOKEN, rank=0, backend="zmq"):
        return connect(rank, 2, address, token=token, backend=backend, timeout_s=0.2)

    for everywhere in ("tcp://0.0.0.0:5555", "tcp://255.255.255.255:5555", "tcp://224.0.0.1:5555"):
        with pytest.raises(ValueError, match="no interface of one host"):
            attempt(everywhere)
    with pytest.raises(ValueError, match="name one interface"):
        attempt("tcp://*:5555")
    for strange in ("udp://127.0.0.1:5555", "ipc://relative", "tcp://:5555", "tcp://127.0.0.1:0"):
        with pytest.raises(ValueError, match="expected ipc"):
            attempt(strange)
    with pytest.raises(ValueError, match="at least 16"):
        attempt("tcp://127.0.0.1:5555", token="short")
    with pytest.raises(ValueError, match="rank must be"):
        attempt(f"ipc://{tmp_path}", rank=2)
    with pytest.raises(ValueError, match="unknown backend 'mpi'"):
        attempt(f"ipc://{tmp_path}", backend="mpi")
    with pytest.raises(ValueError, match="timeout_s"):
        connect(0, 2, f"ipc://{tmp_path}", token=TOKEN, timeout_s=-1)
    with pytest.raises(JoinError, match="must be an address of the host that runs rank 0"):
        attempt("tcp://192.0.2.1:5555")
    with pytest.raises(CommTimeout, match="rank 0: has not made"):
        attempt(f"ipc://{tmp_path}/nowhere", rank=1)
    os.chmod(tmp_path, 0o755)
    with pytest.raises(JoinError, match="0700"):
        attempt(f"ipc://{tmp_path}")


def test_nobody_listens(address_of):
    with pytest.raises(CommTimeout, match="rank 0: does not listen yet"):
        connect(1, 2, address_of("tcp"), token=TOKEN, timeout_s=0.3)


def test_a_port_that_is_taken_for_a_moment_is_no_failure(address_of):
    address = address_of("tcp")
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        with pytest.raises(JoinError, match="is there another rank 0, or another program"):
            connect(0, 2, address, token=TOKEN, timeout_s=30)
        looks = []

        def watch():
            looks.append(other.close())

        def meet(rank):
            with connect(
                rank, 2, address, token=TOKEN, timeout_s=30, watch=None if rank else watch
            ) as comm:
                return comm.size

        assert outcomes(2, meet) == [2, 2]
        assert looks


RANK = """
import os, sys, synk_comm
rank, address = int(sys.argv[1]), sys.argv[2]
print("up", flush=True)
try:
    comm = synk_comm.connect(rank, 3, address, token=os.environ["TOKEN"], timeout_s=30)
except synk_comm.PeerLost as exc:
    print("lost", exc.rank, exc)
"""


@pytest.mark.parametrize(
    "scheme, victim",
    [
        ("ipc", 0),
        ("tcp", 1),
        pytest.param("ipc", 1, marks=pytest.mark.nightly),
        pytest.param("tcp", 0, marks=pytest.mark.nightly),
    ],
)
def test_a_rank_that_dies_while_others_are_joining(scheme, victim, address_of, tmp_path):
    address = address_of(scheme)
    env = environment(TOKEN=TOKEN)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), address],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for child in children:
            assert child.stdout.readline() == "up\n"
        time.sleep(0.5)  # they have met, and wait for rank 2
        began = time.monotonic()
        children[victim].kill()
        out, _ = children[1 - victim].communicate(timeout=20)
        assert time.monotonic() - began < 5
        assert f"lost {victim} rank {victim} is lost" in out
    finally:
        for child in children:
            child.kill()
            child.communicate()
    if victim == 1:
        assert os.listdir(tmp_path) == []


def test_a_rank_that_dies_in_the_wiring_ends_the_wait_of_all(address_of, monkeypatch):
    from synk_comm._backends.zmq.fabric import ZmqFabric

    original = ZmqFabric.meet
    leaving = threading.Event()

    def meet(self, deadline):
        if self.rank == 1:
            leaving.wait(5)
            raise KeyboardInterrupt
        leaving.set()
        original(self, deadline)

    monkeypatch.setattr(ZmqFabric, "meet", meet)
    address = address_of("tcp")

    def run(rank):
        try:
            return connect(rank, 3, address, token=TOKEN, backend="zmq", timeout_s=20)
        except KeyboardInterrupt as exc:
            return exc

    began = time.monotonic()
    got = outcomes(3, run)
    assert time.monotonic() - began < 10
    assert isinstance(got[1], KeyboardInterrupt)
    for rank in (0, 2):
        assert isinstance(got[rank], CommError)
        # In its own words, or as its sockets tell it: whichever comes first.
        assert "rank 1 could not join: KeyboardInterrupt" in str(got[rank]) or (
            "rank 1 is lost" in str(got[rank])
        )
