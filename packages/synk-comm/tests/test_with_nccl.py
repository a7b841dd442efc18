"""NCCL around a group: with what it is put there, and what is said if it cannot be."""

from __future__ import annotations

import sys
import types

import pytest

from synk_comm import CommError, JoinError, connect, create_group
from synk_comm.testing import thread_group

MODULE = "synk_comm._backends.nccl.communicator"


@pytest.fixture
def fake_nccl(monkeypatch):
    """A module in place of NCCL's, whose communicator passes all on."""

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
def test_nccl_is_put_around_what_the_group_was_made_for(made_for, fake_nccl, monkeypatch):
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
