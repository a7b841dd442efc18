"""Ranks on several hosts: two network namespaces, joined by a cable that can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from synk_comm import CommError, connect, local_group
from synk_comm._meeting.host import Host, apart, this_host
from synk_comm.testing import check_all, in_threads
from synk_comm.testing._checks import THEMES

TOKEN = "a token that nobody can guess"
ADDRESSES = ["10.213.77.1", "10.213.77.2"]
PORT = 5599
# All of them take a minute here, and are done by the contracts of zmq and shm.
CHECKS = "checks" if os.environ.get("SYNK_TESTS") == "all" else "some"


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def cable():
    """Two namespaces; yields their names, and the name of the first one's end of the cable."""
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` here to make network namespaces with")
    spaces = [f"synk{os.getpid()}-{end}" for end in "ab"]
    ends = [f"sy{os.getpid()}{end}" for end in "ab"]
    made = []
    try:
        try:
            for space in spaces:
                ip("netns", "add", space)
                made.append(space)
            ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            for space, end, address in zip(spaces, ends, ADDRESSES):
                ip("link", "set", end, "netns", space)
                ip("-n", space, "addr", "add", f"{address}/24", "dev", end)
                ip("-n", space, "link", "set", end, "up")
                ip("-n", space, "link", "set", "lo", "up")
        except OSError as exc:
            pytest.skip(f"network namespaces cannot be made here: {exc}")
        yield spaces, ends[0]
    finally:
        for space in made:
            ip("netns", "del", space)


RANK = """
import faulthandler, os, sys, time
import numpy as np
import synk_comm
from synk_comm.testing import check_all
from synk_comm.testing._checks import THEMES

faulthandler.dump_traceback_later(170, exit=True)
rank, size, backend, what = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
ears = None
if what == "spy" and rank == 0:
    import socket, threading
    ears, heard = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)), bytearray()
    ears.settimeout(0.2)
    def listen():
        while True:
            try:
                heard.extend(ears.recv(1 << 16))
            except socket.timeout:
                if done.is_set():
                    return
    done = threading.Event()
    spy = threading.Thread(target=listen)
    spy.start()
comm = synk_comm.connect(
    rank, size, os.environ["ADDRESS"], token=os.environ["TOKEN"], backend=backend, timeout_s=30
)
if what in ("checks", "some"):
    for check in [check_all] if what == "checks" else THEMES["moves"] + THEMES["errors"]:
        check(comm)
    print(comm.why, flush=True)
elif what == "spy":
    for _ in range(3):
        comm.all_reduce(np.frombuffer(b"REVEALED" * 1000, np.uint8), "max")
    if rank == 0:
        done.set()
        spy.join()
        ears.close()
        print(b"synkcom2" in heard, heard.count(b"REVEALED"), len(heard) > 24000, flush=True)
elif what == "compute":
    until = time.monotonic() + 3.5 * rank  # twice the silence that means a cut
    while time.monotonic() < until:
        sum(range(10_000))
    comm.barrier()
    print("in time", flush=True)
elif what == "forever":
    comm.barrier()
    print("up", flush=True)
    try:
        while True:
            comm.barrier(timeout_s=20)
    except synk_comm.CommError as exc:
        print(type(exc).__name__, exc.rank, flush=True)
comm.close()
"""


def start(space, *args):
    env = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join(filter(None, sys.path)),
        ADDRESS=f"tcp://{ADDRESSES[0]}:{PORT}",
        TOKEN=TOKEN,
    )
    return subprocess.Popen(
        ["ip", "netns", "exec", space, sys.executable, "-W", "error", "-c", RANK, *map(str, args)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends(children, timeout_s=180):
    try:
        said = []
        for child in children:
            out, err = child.communicate(timeout=timeout_s)
            assert err == ""
            said.append(out.strip())
        return said
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_all_of_it_between_two_hosts(cable):
    (a, b), _ = cable
    children = [start(space, rank, 3, "zmq", CHECKS) for rank, space in enumerate((a, b, b))]
    assert ends(children) == ["zmq: asked for"] * 3


def test_what_travels_between_hosts_cannot_be_read(cable):
    (a, b), _ = cable
    children = [start(a, 0, 2, "zmq", "spy"), start(b, 1, 2, "zmq", "spy")]
    assert (
        ends(children)[0] == "True 0 True"
    )  # it did read the handshake, and the length of the data


def test_a_cable_that_is_cut(cable):
    (a, b), end = cable
    children = [start(a, 0, 2, "zmq", "forever"), start(b, 1, 2, "zmq", "forever")]
    for child in children:
        assert child.stdout.readline() == "up\n"
    began = time.monotonic()
    ip("-n", a, "link", "set", end, "down")
    assert ends(children) == ["PeerLost 1", "PeerLost 0"]
    assert time.monotonic() - began < 15


def test_a_rank_that_only_computes_is_not_lost(cable):
    (a, b), _ = cable
    children = [start(a, 0, 2, "zmq", "compute"), start(b, 1, 2, "zmq", "compute")]
    assert ends(children) == ["in time", "in time"]


def test_ranks_that_share_a_machine_but_no_network_share_memory(cable):
    (a, b), _ = cable
    children = [start(a, 0, 2, "auto", CHECKS), start(b, 1, 2, "auto", CHECKS)]
    assert ends(children) == ["shm: all 2 ranks are on this machine"] * 2


# -- without namespaces -------------------------------------------------------------------------


@pytest.fixture
def far_apart(monkeypatch):
    """Make ranks take each other for hosts far away: encryption and heartbeats, over loopback."""
    monkeypatch.setattr(Host, "near", lambda self, other: self is other)


def test_encrypted_checks_over_loopback(far_apart, free_port):
    def run(seat):
        with connect(
            seat.rank, 2, f"tcp://127.0.0.1:{free_port}", token=TOKEN, backend="zmq", timeout_s=40
        ) as comm:
            for check in (
                [check_all] if CHECKS == "checks" else [*THEMES["moves"], *THEMES["errors"]]
            ):
                check(comm)

    in_threads(local_group(2), run, 180)


def test_a_zmq_that_cannot_encrypt_is_not_used_between_hosts(far_apart, free_port, monkeypatch):
    import zmq

    monkeypatch.setattr(zmq, "has", lambda what: False)

    def run(seat):
        try:
            connect(
                seat.rank,
                2,
                f"tcp://127.0.0.1:{free_port}",
                token=TOKEN,
                backend="zmq",
                timeout_s=9,
            )
        except CommError as exc:
            return "built without CURVE" in str(exc)

    assert in_threads(local_group(2), run) == [True, True]


def test_between_hosts_auto_takes_zmq_and_names_who_is_elsewhere(free_port, monkeypatch):
    lock = threading.local()

    def fake(address=""):
        return this_host(address)._replace(machine=f"machine {min(lock.rank, 1)}")

    monkeypatch.setattr("synk_comm._join.rendezvous.this_host", fake)

    def run(seat):
        lock.rank = seat.rank
        address = f"tcp://127.0.0.1:{free_port}"
        with connect(seat.rank, 3, address, token=TOKEN, timeout_s=20) as comm:
            return comm.why, float(comm.all_reduce(1.0))

    why = "zmq: ranks 1, 2 run on another host than rank 0"
    assert in_threads(local_group(3), run) == [(why, 3.0)] * 3

    def run_shm(seat):
        lock.rank = seat.rank
        address = f"tcp://127.0.0.1:{free_port}"
        try:
            connect(seat.rank, 2, address, token=TOKEN, backend="shm", timeout_s=20)
        except CommError as exc:
            return "rank 1 runs on another host than rank 0" in str(exc)

    assert in_threads(local_group(2), run_shm) == [True, True]


def test_who_can_share_memory():
    here = this_host()
    assert apart([here, here]) == ""
    foreign = here._replace(user=here.user + 1)
    assert apart([here, here, foreign]) == "rank 2 runs as another user than rank 0"
    assert here.near(this_host())
    assert not here.near(here._replace(network=here.network + 1))
    # The address of another interface: the same boot id is no proof of the same machine.
    assert not here.near(here._replace(address="10.0.0.9"))


@pytest.fixture
def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_arrays_of_many_slots_encrypted(far_apart, free_port):
    x = np.random.default_rng(0).standard_normal(700_000)

    def run(seat):
        address = f"tcp://127.0.0.1:{free_port}"
        with connect(seat.rank, 2, address, token=TOKEN, backend="zmq", timeout_s=30) as comm:
            return comm.all_reduce(x * (seat.rank + 1)).tobytes()

    assert in_threads(local_group(2), run) == [(x + x * 2).tobytes()] * 2
