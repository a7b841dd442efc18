"""What the environment tells ``connect``: nothing, a ticket, or who this is and where to meet."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from _helpers import environment

from synk_comm import JoinError, connect, create_group, local_group
from synk_comm.testing import in_threads

TOKEN = "a token that nobody can guess"


@pytest.fixture(autouse=True)
def no_group_around(monkeypatch):
    for name in ("TICKET", "RANK", "SIZE", "ADDRESS", "TOKEN", "SHM"):
        monkeypatch.delenv(f"SYNK_COMM_{name}", raising=False)


@pytest.fixture
def address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


SCRIPT = """
import os, sys, synk_comm
if len(sys.argv) > 1:
    os.environ.pop("SYNK_COMM_ADDRESS", None)
with synk_comm.connect(timeout_s=20) as comm:
    print(comm.rank, comm.size, comm.backend, "|", comm.why, "|", comm.all_reduce(comm.rank + 1))
"""


def start(*args, **variables):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SCRIPT, *args],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(child):
    out, err = child.communicate(timeout=60)
    return out.strip() or err.strip().splitlines()[-1]


def test_the_environment_tells_who_this_is(address):
    children = [
        start(
            SYNK_COMM_RANK=str(rank),
            SYNK_COMM_SIZE="2",
            SYNK_COMM_ADDRESS=address,
            SYNK_COMM_TOKEN=TOKEN,
        )
        for rank in range(2)
    ]
    assert [said(child) for child in children] == [
        f"{rank} 2 shm | shm: all 2 ranks are on this machine | 3" for rank in range(2)
    ]


def test_a_ticket_in_the_environment():
    with create_group(2, "zmq") as group:
        children = [start(SYNK_COMM_TICKET=group.ticket(rank)) for rank in range(2)]
        assert [said(child) for child in children] == [
            f"{rank} 2 zmq | zmq: asked for | 3" for rank in range(2)
        ]


def test_by_itself_a_script_is_a_group_of_one():
    assert said(start()) == (
        "0 1 local | local: no variable SYNK_COMM_* is set, so this process is a group of one | 1"
    )


def test_half_an_environment_is_an_error_that_tells_the_cure():
    child = start("no address", SYNK_COMM_RANK="0", SYNK_COMM_SIZE="2")
    told = said(child)
    assert "SYNK_COMM_ADDRESS is not set" in told
    assert "python -m synk_comm.run -n 4 script.py" in told
    assert "SYNK_COMM_SIZE is not set" in said(start(SYNK_COMM_RANK="0"))
    assert "SYNK_COMM_RANK must be a number, got 'x'" in said(start(SYNK_COMM_RANK="x"))
    env = {"SYNK_COMM_RANK": "0", "SYNK_COMM_SIZE": "2", "SYNK_COMM_ADDRESS": "ipc:///tmp/x"}
    assert "SYNK_COMM_TOKEN is not set" in said(start(**env))


def test_arguments_come_before_the_environment(monkeypatch, address):
    monkeypatch.setenv("SYNK_COMM_RANK", "7")
    monkeypatch.setenv("SYNK_COMM_SIZE", "2")
    monkeypatch.setenv("SYNK_COMM_TICKET", "not a ticket")
    monkeypatch.setenv("SYNK_COMM_TOKEN", TOKEN)
    in_threads(
        local_group(2), lambda seat: connect(seat.rank, address=address, timeout_s=20).close()
    )


@pytest.mark.parametrize("backend", ["auto", "shm", "zmq"])
def test_a_group_of_one_needs_no_address(backend):
    with connect(0, 1, backend=backend) as comm:
        assert comm.backend == ("local" if backend == "auto" else backend)
        assert float(comm.all_reduce(2.0)) == 2.0
        assert comm.why.startswith(f"{comm.backend}: ")


def test_a_ticket_of_another_backend(monkeypatch):
    with create_group(1, "zmq") as group:
        monkeypatch.setenv("SYNK_COMM_TICKET", group.ticket(0))
        with pytest.raises(JoinError, match=r"asked for backend 'shm', but its group .* 'zmq'"):
            connect(backend="shm")
        connect(backend="zmq").close()
