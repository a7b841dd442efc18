"""Tickets, and everything that can be wrong with them."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import stat
import tempfile
import threading
import time
import warnings
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from _helpers import printed_by

from synk_comm import (
    AbortedError,
    CommTimeout,
    JoinError,
    PeerLost,
    create_group,
    join,
    local_group,
)
from synk_comm._system.folder import SocketFolder
from synk_comm.testing import in_threads, thread_group

BOTH = pytest.mark.parametrize("backend", ["shm", "zmq"])


def joined(group):
    seats = [SimpleNamespace(rank=rank, abort=lambda _: None) for rank in range(group.size)]
    return in_threads(seats, lambda seat: join(group.ticket(seat.rank), timeout_s=20))


@BOTH
def test_group_of_one_needs_nobody(backend):
    with create_group(1, backend) as group, join(group.ticket(0)) as comm:
        assert repr(comm) == f"<Communicator rank 0 of 1, {backend}, open>"
        np.testing.assert_array_equal(comm.all_reduce(np.arange(3), "prod"), np.arange(3))
        assert comm.scatter_object(["x"]) == "x"
    assert repr(comm) == f"<Communicator rank 0 of 1, {backend}, closed>"
    assert repr(group) == f"<Group of 1, {backend}, closed>"


def test_shm_ticket_holds_no_secret_and_memory_has_no_name():
    with create_group(2) as group:
        (fd,) = group.fds
        assert os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:")
        assert not os.get_inheritable(fd)
        assert len(group.ticket(1)) < 200
    with pytest.raises(OSError):
        os.fstat(fd)
    group.close()


def test_zmq_folder_is_private_and_gone_after_joining():
    group = create_group(2, "zmq")
    folder = group.folder
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    group.close()
    assert os.path.isdir(folder)  # ranks may still be starting
    comms = joined(group)
    assert not os.path.exists(folder)
    for comm in comms:
        comm.close()


def test_a_long_path_of_temporary_files_leaves_room_for_names_of_sockets(tmp_path, monkeypatch):
    long = tmp_path / ("l" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    group = create_group(3, "zmq")
    comms = joined(group)

    def in_parts(comm):
        with comm, comm.split(comm.rank % 2) as part:
            return float(part.all_reduce(1.0))

    assert in_threads(comms, in_parts) == [2.0, 1.0, 2.0]
    assert not os.path.exists(group.folder)
    group.close()
    assert os.listdir(long) == []


def test_zmq_folder_goes_with_its_maker():
    code = "import synk_comm; print(synk_comm.create_group(2, 'zmq').folder)"
    assert not os.path.exists(printed_by("-c", code).strip())


def test_wrong_sizes_ranks_backends_and_tickets():
    with pytest.raises(ValueError, match="at least 1"):
        create_group(0)
    with pytest.raises(ValueError, match="unknown backend 'gloo'; expected one of"):
        create_group(2, "gloo")
    for size in (0, 2):
        with pytest.raises(ValueError, match=r"a group of one, got size .* start them by launch"):
            local_group(size)
    with create_group(2) as group:
        with pytest.raises(ValueError, match="0 to 1"):
            group.ticket(2)
        with pytest.raises(ValueError, match="not a ticket"):
            join("hello")
        with pytest.raises(ValueError, match="timeout_s"):
            join(group.ticket(0), timeout_s=-1)


def test_descriptor_that_was_not_inherited():
    with create_group(2) as group:
        ticket = group.ticket(1)
    with pytest.raises(JoinError, match="pass_fds"):
        join(ticket)
    with create_group(2) as other, create_group(2) as group:
        foreign = group.ticket(0).split("|")
        foreign[-1] = other.ticket(0).split("|")[-1]
        with pytest.raises(JoinError, match="another group"):
            join("|".join(foreign))


@BOTH
def test_joining_alone_times_out_and_names_the_others(backend):
    with create_group(3, backend) as group:
        with pytest.raises(CommTimeout, match=r"rank 2: has not joined yet") as caught:
            join(group.ticket(0), timeout_s=0.2)
        assert sorted(caught.value.missing) == [1, 2]


@BOTH
def test_a_rank_joins_once(backend):
    with create_group(2, backend) as group:
        comms = joined(group)
        with pytest.raises(JoinError, match="already" if backend == "shm" else "used or given up"):
            join(group.ticket(1))
        in_threads(comms, lambda comm: comm.barrier())
        for comm in comms:
            comm.close()


def test_a_rank_does_not_join_a_second_time_while_others_are_missing():
    group = create_group(2, "zmq")
    rightful = SocketFolder(group.folder)
    rightful.claim(0)
    with pytest.raises(JoinError, match="rank 0 has already joined this group"):
        join(group.ticket(0), timeout_s=20)
    assert os.path.isdir(group.folder)  # the rightful one goes on
    rightful.remove()
    group.discard()


@pytest.mark.parametrize("fault", ["mode", "owner", "link", "file", "none"])
def test_a_folder_that_others_can_enter_is_refused(fault, tmp_path, monkeypatch):
    group = create_group(2, "zmq")
    place = tmp_path / "place"
    ticket = group.ticket(0).replace(group.folder, str(place))
    if fault == "mode":
        place.mkdir()
        os.chmod(place, 0o750)
    elif fault == "owner":
        place.mkdir(mode=0o700)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    elif fault == "link":
        place.symlink_to(group.folder)
    elif fault == "file":
        place.touch(mode=0o600)
    with pytest.raises(JoinError, match="given up" if fault == "none" else "mode 0700"):
        join(ticket, timeout_s=20)
    group.discard()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="processes cannot be watched here")
def test_a_rank_that_has_joined_and_died_before_the_others_came_is_lost():
    with create_group(2) as group:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons warn of threads at a fork
            pid = os.fork()
        if not pid:
            try:  # it has entered when it waits for the other one, and ends then
                join(group.ticket(1), watch=lambda: os._exit(0))
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0) == (pid, 0)  # not even a zombie is left to watch
        with pytest.raises(PeerLost, match=rf"its process \(pid {pid}\) has ended") as caught:
            join(group.ticket(0), timeout_s=10)
    assert caught.value.rank == 1


def test_a_rank_that_aborts_and_leaves_meanwhile_is_not_taken_for_lost(monkeypatch):
    comms = thread_group(2)
    fabric = comms[0]._steps.fabric
    failure = fabric.failure

    def just_before():
        found = failure()
        comms[1].abort("given up")
        comms[1].close()
        return found

    monkeypatch.setattr(fabric, "failure", just_before)
    assert fabric.gone([1]) is None
    monkeypatch.undo()
    assert isinstance(fabric.gone([1]), AbortedError)
    comms[0].close()


def test_a_timeout_names_the_call_that_waits_also_if_it_was_repeated():
    comms = thread_group(2, timeout_s=1.0)
    for _ in range(2):
        in_threads(comms, lambda comm: comm.all_reduce(np.ones(3)))
    in_threads(comms, lambda comm: comm.all_reduce(np.ones(4), timeout_s=20))  # not by a shortcut
    with pytest.raises(CommTimeout, match=r"in call #4, all_reduce\(sum, <f8 \(3,\)\)"):
        comms[0].all_reduce(np.ones(3))
    for comm in comms:
        comm.close()


def _memory_of_groups():
    """How often memory that ranks share is mapped in this process, or has a descriptor."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found = [line for line in maps if "/memfd:synk-comm" in line]
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += re.findall("/memfd:synk-comm", os.readlink(f"/proc/self/fd/{name}"))
    return len(found)


def test_close_gives_the_memory_back_at_once():
    gc.collect()
    before = _memory_of_groups()
    gc.disable()
    try:
        comms = thread_group(2)
        for _ in range(3):
            in_threads(comms, lambda comm: comm.barrier())
            in_threads(comms, lambda comm: comm.all_reduce(np.ones(3)))
            in_threads(comms, lambda comm: comm.reduce(np.ones(3)))
        assert _memory_of_groups() > before
        for comm in comms:
            comm.close()
        assert _memory_of_groups() == before
    finally:
        gc.enable()


@pytest.mark.parametrize(("backend", "first_inside"), [("shm", True), ("zmq", False)])
def test_the_error_that_ended_a_group_keeps_no_arguments(backend, first_inside):
    comms = thread_group(2, backend)
    x = np.ones(5)
    kept = weakref.ref(x)
    if not first_inside:
        comms[1].abort("given up")
        time.sleep(0.1)
    else:
        threading.Timer(0.1, comms[1].abort, ["given up"]).start()
    for _ in range(2):
        with pytest.raises(AbortedError, match="given up"):
            comms[0].all_reduce(x)
    del x
    gc.collect()
    assert kept() is None
    for comm in comms:
        comm.close()
