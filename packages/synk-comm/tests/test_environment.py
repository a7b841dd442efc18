"""The environment has no ticket for ``connect``, one, or half of one; NCCL around the group."""

from __future__ import annotations

import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
from _helpers import run_python

from synk_comm import CommError, JoinError, connect, create_group
from synk_comm.testing import thread_group


@pytest.fixture(autouse=True)
def no_group_around(monkeypatch):
    for name in ("TICKET", "RANK", "SIZE", "SHM"):
        monkeypatch.delenv(f"SYNK_COMM_{name}", raising=False)


SCRIPT = """
import synk_comm
with synk_comm.connect(timeout_s=20) as comm:
    print(comm.rank, comm.size, comm.backend, "|", comm.why, "|", comm.all_reduce(comm.rank + 1))
"""


def said(**variables):
    done = run_python("-W", "error", "-c", SCRIPT, **variables)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_ticket_in_the_environment():
    with create_group(2, "zmq") as group:
        tickets = [{"SYNK_COMM_TICKET": group.ticket(rank)} for rank in range(2)]
        with ThreadPoolExecutor() as pool:
            told = [*pool.map(lambda ticket: said(**ticket), tickets)]
        assert told == [
            f"{rank} 2 zmq | zmq: the group was made without shared memory | 3" for rank in range(2)
        ]


def test_by_itself_a_script_is_a_group_of_one():
    assert said() == (
        "0 1 local | local: no variable SYNK_COMM_* is set, so this process is a group of one | 1"
    )


@pytest.mark.parametrize("name", ["RANK", "SIZE"])
def test_half_an_environment_is_an_error_with_its_cure(name):
    told = said(**{f"SYNK_COMM_{name}": "0"})
    assert f"SYNK_COMM_{name} is set, but not SYNK_COMM_TICKET" in told
    assert "python -m synk_comm.run -n 4 script.py" in told


@pytest.mark.parametrize("backend", ["auto", "shm", "zmq"])
def test_a_group_of_one_needs_nothing(backend):
    with connect(backend=backend) as comm:
        assert comm.backend == ("local" if backend == "auto" else backend)
        assert float(comm.all_reduce(2.0)) == 2.0
        assert comm.why.startswith(f"{comm.backend}: ")
    with pytest.raises(ValueError, match="timeout_s"):
        connect(backend=backend, timeout_s=-1)


MODULE = "synk_comm._backends.nccl.communicator"


@pytest.fixture
def fake_nccl(monkeypatch):
    class Wrapped:
        def __init__(self, comm):
            if comm.rank == 1:
                raise JoinError("no GPU here")
            comm.barrier()
            self.inner = comm
            self.why = f"nccl over {comm.why}"

    module = types.ModuleType(MODULE)
    module.nccl = Wrapped
    monkeypatch.setitem(sys.modules, MODULE, module)


@pytest.mark.parametrize("made_for", ["shm", "zmq", "nccl"])
def test_nccl_wraps_a_group_of_any_backend(made_for, fake_nccl, monkeypatch):
    with create_group(1, made_for) as group:
        monkeypatch.setenv("SYNK_COMM_TICKET", group.ticket(0))
        comm = connect(backend="nccl")
        carrier = "zmq" if made_for == "zmq" else "shm"
        assert comm.why.startswith(f"nccl over {carrier}: ")
        comm.inner.close()


def test_nccl_that_fails_on_a_rank_ends_the_group_on_all(fake_nccl):
    with pytest.raises(CommError, match="no GPU here"):
        thread_group(2, "nccl", timeout_s=20)


def test_a_ticket_of_nccl_is_of_no_other_backend(monkeypatch):
    with create_group(1, "nccl") as group:
        monkeypatch.setenv("SYNK_COMM_TICKET", group.ticket(0))
        with pytest.raises(JoinError, match=r"asked for backend 'zmq', but its group .* 'nccl'"):
            connect(backend="zmq")
        with pytest.raises(ValueError, match="unknown backend 'gloo'; expected one of"):
            connect(backend="gloo")
