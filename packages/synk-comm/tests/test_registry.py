"""Back-ends by name, by object and from other packages."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from synk_comm import CommError, JoinError, connect, create_group, join, local_group
from synk_comm._join.groups import Ticket, enter
from synk_comm._join.registry import REGISTRY, Backend, Registry, register_backend
from synk_comm.testing import in_threads


class Pigeons(Backend):
    """Carries by what it is given, and keeps what all ranks said."""

    name = "pigeons"

    def __init__(self):
        self.told = []

    def open(self, comm):
        self.told.append(comm.all_gather_object({"rank": comm.rank}))
        comm.why = "pigeons: they know the way"
        return comm


def joined(group, backend="auto"):
    """Return what each rank of a group got, by the way of ``connect`` with a ticket."""

    def run(seat):
        try:
            with enter(Ticket.parse(group.ticket(seat.rank)), 20.0, None, backend) as comm:
                return float(comm.all_reduce(1.0)), comm.why
        except CommError as exc:
            return exc

    try:
        return in_threads(local_group(group.size), run)
    finally:
        group.discard()


@pytest.mark.parametrize("carrier", ["auto", "shm", "zmq"])
def test_an_object_carries_a_group(carrier):
    pigeons = Pigeons()
    assert joined(create_group(3, carrier), pigeons) == [(3.0, "pigeons: they know the way")] * 3
    assert pigeons.told == [[{"rank": rank} for rank in range(3)]] * 3
    with connect(backend=pigeons) as comm:
        assert (comm.size, comm.why) == (1, "pigeons: they know the way")


def test_a_registered_name_carries_a_group_made_for_it(monkeypatch):
    pigeons = Pigeons()
    register_backend("pigeons", pigeons)
    register_backend("pigeons", pigeons)
    for shared in "10":
        monkeypatch.setenv("SYNK_COMM_SHM", shared)
        group = create_group(2, "pigeons")
        assert (group.backend, bool(group.fds)) == ("pigeons", shared == "1")
        assert joined(group) == [(2.0, "pigeons: they know the way")] * 2
    for failure in joined(create_group(2, "pigeons"), "zmq"):
        assert "asked for backend 'zmq', but its group was made for 'pigeons'" in str(failure)


def test_one_that_fails_on_a_rank_ends_the_group_on_all():
    class Tired(Pigeons):
        def open(self, comm):
            if comm.rank == 1:
                raise JoinError("too tired")
            comm.barrier()
            raise AssertionError("the barrier has raised")

    other, tired = joined(create_group(2), Tired())
    assert str(tired) == "too tired"
    assert "JoinError while pigeons was set up: too tired" in str(other)


def test_names_are_unique_and_plain():
    registry = Registry()
    registry.register("mine", Pigeons())
    with pytest.raises(ValueError, match="already a back-end with the name 'mine'"):
        registry.register("mine", Pigeons())
    with pytest.raises(ValueError, match="already a back-end with the name 'shm'"):
        registry.register("shm", Pigeons())
    for name in ("", "auto", "a b", "x|y"):
        with pytest.raises(ValueError, match="name is letters"):
            registry.register(name, Pigeons())
    for no_backend in (Pigeons, "zmq", None):
        with pytest.raises(TypeError, match="an instance of Backend"):
            registry.register("other", no_backend)
    with pytest.raises(TypeError, match="an instance of Backend"):
        connect(backend=Pigeons)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown backend 'gloo'; .*'auto', .*'nccl', .*'zmq'"):
        REGISTRY.find("gloo")


PLUGIN = """
from synk_comm._join.registry import Backend
class Doves(Backend):
    name = "doves"
    def open(self, comm):
        comm.why = "doves: from another package"
        return comm
"""
BROKEN = "import a_package_that_nobody_has\n"
METADATA = "Metadata-Version: 2.1\nName: dovecote\nVersion: 1.0\nProvides-Extra: birds\n"
POINTS = """
[synk_comm.backends]
doves = dovecote:Doves
broken = broken_cote:Doves [birds]
"""
USER = """
import synk_comm
from synk_comm._join.registry import REGISTRY
assert {"doves", "broken"} <= set(REGISTRY.names()), REGISTRY.names()
with synk_comm.connect(backend="doves") as comm:
    print(comm.why)
try:
    synk_comm.connect(backend="broken")
except synk_comm.JoinError as exc:
    print(exc)
"""


def test_other_packages_announce_theirs_by_entry_points(tmp_path):
    (tmp_path / "dovecote.py").write_text(PLUGIN)
    (tmp_path / "broken_cote.py").write_text(BROKEN)
    info = tmp_path / "dovecote-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(POINTS)
    path = [str(tmp_path), *filter(None, sys.path)]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import sys; sys.path[:] = {path!r}\n{USER}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    why, error = done.stdout.splitlines()
    assert why == "doves: from another package"
    assert "the backend 'broken' needs packages that are not installed" in error
    assert "a_package_that_nobody_has" in error
    assert error.endswith("pip install 'dovecote[birds]'")


@pytest.fixture
def fake_nccl(monkeypatch):
    """A module in place of NCCL's, whose communicator passes all on."""

    class Wrapped:
        def __init__(self, comm):
            self.inner = comm
            self.why = f"nccl over {comm.why}"

    module = types.ModuleType("synk_comm._backends.nccl.communicator")
    module.nccl = Wrapped
    monkeypatch.setitem(sys.modules, "synk_comm._backends.nccl.communicator", module)


@pytest.mark.parametrize("made_for", ["shm", "zmq", "nccl"])
def test_nccl_is_put_around_what_the_group_was_made_for(made_for, fake_nccl, monkeypatch):
    with create_group(1, made_for) as group:
        monkeypatch.setenv("SYNK_COMM_TICKET", group.ticket(0))
        comm = connect(backend="nccl")
        carrier = "zmq" if made_for == "zmq" else "shm"
        assert comm.why.startswith(f"nccl over {carrier}: ")
        comm.inner.close()


def test_without_nccl_the_cure_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "synk_comm._backends.nccl.communicator", None)
    with create_group(1, "nccl") as group, pytest.raises(JoinError) as caught:
        join(group.ticket(0))
    assert "pip install 'synk-comm[nccl]'" in str(caught.value)
