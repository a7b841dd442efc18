"""Back-ends by name, by object and from other packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from synk_comm import CommError, JoinError, connect, create_group, join, local_group
from synk_comm._join.choice import REGISTRY, ZmqBackend, register_backend
from synk_comm._join.registry import Backend, Registry
from synk_comm._meeting.meeting import Unusable
from synk_comm.testing import in_threads

TOKEN = "a token that nobody can guess"


class Pigeons(Backend):
    """Carries by zmq, and counts who asked."""

    name = "pigeons"

    def __init__(self, unusable=""):
        self.unusable = unusable
        self.told = []

    def usable(self, hosts):
        assert all(host.machine for host in hosts)
        return self.unusable

    def open(self, meeting):
        self.told.append(meeting.exchange({"rank": meeting.rank, "many": [1, 2.5, None, "x"]}))
        comm = ZmqBackend().open(meeting)
        comm.why = "pigeons: they know the way"
        return comm


@pytest.fixture
def address(tmp_path):
    return f"ipc://{tmp_path}/meet"


def meet(address, backend, size=2):
    def run(seat):
        try:
            with connect(
                seat.rank, size, address, token=TOKEN, backend=backend, timeout_s=20
            ) as comm:
                return float(comm.all_reduce(1.0)), comm.why
        except JoinError as exc:
            return str(exc)

    return in_threads(local_group(size), run)


def test_an_object_carries_a_group(address):
    pigeons = Pigeons()
    assert meet(address, pigeons, 3) == [(3.0, "pigeons: they know the way")] * 3
    said = [{"rank": rank, "many": [1, 2.5, None, "x"]} for rank in range(3)]
    assert pigeons.told == [said] * 3


def test_a_registered_name_carries_a_group_by_address_and_by_ticket(address):
    pigeons = Pigeons()
    register_backend("pigeons-by-name", pigeons)
    register_backend("pigeons-by-name", pigeons)
    assert meet(address, "pigeons-by-name") == [(2.0, "pigeons: they know the way")] * 2
    register_backend("pigeons", pigeons)
    with create_group(2, "pigeons") as group:
        comms = in_threads(local_group(2), lambda seat: join(group.ticket(seat.rank), timeout_s=20))
    assert in_threads(comms, lambda comm: float(comm.all_reduce(1.0))) == [2.0, 2.0]
    for comm in comms:
        comm.close()


def test_one_that_is_of_no_use_here_says_so_on_all_ranks(address):
    reason = "backend 'pigeons' cannot carry this group: it rains"
    assert meet(address, Pigeons("it rains")) == [reason] * 2


def test_one_that_finds_so_while_it_opens(address):
    class Tired(Pigeons):
        def open(self, meeting):
            meeting.agree("too tired" if meeting.rank == 1 else "")
            raise AssertionError("agree has raised")

    assert meet(address, Tired()) == ["rank 1: too tired"] * 2
    assert issubclass(Unusable, JoinError)


def test_names_are_unique_and_plain():
    registry = Registry()
    registry.register("mine", Pigeons())
    with pytest.raises(ValueError, match="already a back-end with the name 'mine'"):
        registry.register("mine", Pigeons())
    for name in ("", "auto", "a b", "x|y"):
        with pytest.raises(ValueError, match="name is letters"):
            registry.register(name, Pigeons())
    for no_backend in (Pigeons, "zmq", None):
        with pytest.raises(TypeError, match="an instance of Backend"):
            registry.register("other", no_backend)
    with pytest.raises(TypeError, match="an instance of Backend"):
        connect(0, 1, backend=Pigeons)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown backend 'mpi'; .*'auto', .*'nccl', .*'zmq'"):
        REGISTRY.find("mpi")


PLUGIN = """
from synk_comm._join.registry import Backend
class Doves(Backend):
    name = "doves"
    def open(self, meeting):
        from synk_comm._join.choice import choose
        comm = choose(meeting, "auto")
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
from synk_comm._join.choice import REGISTRY
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


def test_nccl_is_put_around_what_suits_the_hosts(address, monkeypatch):
    class Wrapped:
        def __init__(self, comm):
            self.inner = comm
            self.why = f"nccl over {comm.why}"

    import types

    module = types.ModuleType("synk_comm._backends.nccl.communicator")
    module.nccl = Wrapped
    monkeypatch.setitem(sys.modules, "synk_comm._backends.nccl.communicator", module)

    def run(seat):
        comm = connect(seat.rank, 2, address, token=TOKEN, backend="nccl", timeout_s=20)
        comm.inner.close()
        return comm.why

    why = "nccl over shm: all 2 ranks are on this machine"
    assert in_threads(local_group(2), run) == [why] * 2
    with create_group(1, "shm") as group:
        monkeypatch.setenv("SYNK_COMM_TICKET", group.ticket(0))
        comm = connect(backend="nccl")
        assert comm.why.startswith("nccl over shm: the ranks inherited")
        comm.inner.close()


def test_without_nccl_the_cure_is_told_on_all_ranks(address, monkeypatch):
    monkeypatch.setitem(sys.modules, "synk_comm._backends.nccl.communicator", None)
    for told in meet(address, "nccl"):
        assert "pip install 'synk-comm[nccl]'" in told


def test_a_wrapper_that_fails_gives_the_group_up(address, monkeypatch):
    import types

    def nccl(comm):
        if comm.rank == 1:
            raise JoinError("no GPU here")
        comm.barrier()

    module = types.ModuleType("synk_comm._backends.nccl.communicator")
    module.nccl = nccl
    monkeypatch.setitem(sys.modules, "synk_comm._backends.nccl.communicator", module)

    def run(seat):
        # Rank 0 may see that rank 1 has left before it sees that it has given up.
        with pytest.raises(CommError, match="no GPU here" if seat.rank else "no GPU here|closed"):
            connect(seat.rank, 2, address, token=TOKEN, backend="nccl", timeout_s=20)

    in_threads(local_group(2), run)
