"""What goes wrong while ``split`` makes a smaller group: who is blamed, and in whose numbers."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import threading
import time

import pytest
from _helpers import BOTH

from synk_comm import (
    AbortedError,
    ClosedError,
    CommTimeout,
    JoinError,
    PeerDeclined,
    PeerLost,
)
from synk_comm._collectives.splitting import _look_at, in_ranks_of_the_old
from synk_comm.testing import in_threads, run_ranks, thread_group

SOON_S = 4.0
"""On a busy machine; it is some hundredths of a second on an idle one."""
FIRST, ALONE, LAST = range(3)
"""Three ranks, of which the first and the last go into one group, as ranks 0 and 1 of it."""


class Old:
    """The group that is being split; this is its rank 0."""

    rank = 0

    def __init__(self, failure):
        self.failure = failure

    def gone(self, ranks):
        return self.failure


class New:
    """The smaller group: nobody has come yet but this rank."""

    def has_entered(self, rank):
        return rank == 0


@pytest.mark.parametrize(
    ("failure", "raised", "looks"),
    [
        (None, None, 0),
        (PeerLost("rank 2 is lost: why", rank=2, reason="why"), 1, 2),
        (PeerLost("rank 1 is lost: why", rank=1, reason="why"), -1, 1),
        (AbortedError("by a late one", rank=2, reason="why"), 1, 1),
        (AbortedError("by one that goes elsewhere", rank=1, reason="why"), -1, 1),
        (AbortedError("by this rank, from another thread", rank=0, reason="why"), 0, 1),
    ],
)
def test_a_smaller_group_is_waited_for_until_the_old_one_ends(failure, raised, looks):
    look = _look_at(Old(failure), New(), [0, 2])
    if raised is None:
        look()
        look()
        return
    for _ in range(looks - 1):  # it may have come meanwhile
        look()
    with pytest.raises(type(failure)) as caught:
        look()
    assert (caught.value.rank, caught.value.reason) == (raised, "why")


@pytest.mark.parametrize("kind", [PeerLost, AbortedError])
def test_errors_name_the_ranks_of_the_old_group(kind):
    error = in_ranks_of_the_old(kind("rank 1 did it", rank=1, reason="why"), [5, 7])
    assert type(error) is kind
    assert (error.rank, error.reason) == (7, "why")
    assert "rank 7" in str(error)
    assert "rank 1" not in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.rank, again.reason, str(again)) == (7, "why", str(error))
    unknown = kind("nobody knows who", rank=-1)
    assert in_ranks_of_the_old(unknown, [5, 7]) is unknown


def outcome(comm, *, late_s=0.0, struck=None, timeout_s=None, watch=None, color=None):
    """Split; return what is raised there, and after how long.

    This rank enters its group `late_s` after all have agreed on how to; `struck` happens meanwhile.
    """
    fabric = comm._steps.fabric
    part = type(fabric).split

    def slowly(self, groups, mine, share):
        def share_first(obj):
            said = share(obj)
            time.sleep(late_s)
            return said

        made = part(self, groups, mine, share_first)
        if watch is not None:
            made.watch = watch
        if struck is not None:
            timer = threading.Timer(0.1, struck)
            timer.daemon = True
            timer.start()
        return made

    comm.barrier()
    type(fabric).split = slowly
    began = time.monotonic()
    try:
        made = comm.split(comm.rank % 2 if color is None else color, timeout_s=timeout_s)
        made.close()
        comm.barrier()
    except BaseException as exc:
        blamed = getattr(exc, "rank", getattr(exc, "missing", None))
        return type(exc), blamed, str(exc), time.monotonic() - began
    finally:
        type(fabric).split = part
    raise AssertionError("nothing was raised")


def lose_one_that_has_come(comm, how):
    struck = None
    if comm.rank == LAST:
        struck = {
            "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "abort": lambda: comm.abort("given up"),
            "close": comm.close,
        }[how]
    # The one that is alone looks when the first has ended because of the last.
    return outcome(comm, late_s={FIRST: 0.3, ALONE: 1.0, LAST: 0}[comm.rank], struck=struck)


@pytest.mark.parametrize(
    ("how", "backend"),
    [("kill", "shm"), ("abort", "zmq"), pytest.param("close", "shm", marks=pytest.mark.nightly)],
)
def test_a_rank_is_lost_after_it_has_come(how, backend):
    outcomes = run_ranks(3, lose_one_that_has_come, how, backend=backend, check=False)
    for rank in (FIRST, ALONE):
        kind, blamed, text, took = outcomes[rank].value
        assert kind is (PeerLost if how == "kill" else AbortedError), text
        assert blamed == LAST, text
        assert f"rank {LAST}" in text
        assert took < SOON_S
    if how != "kill":
        kind, blamed, text, took = outcomes[LAST].value
        assert kind in (AbortedError, ClosedError), text
        assert took < SOON_S


def come_too_late(comm):
    timeout_s = 0.5 if comm.rank == FIRST else None
    return outcome(comm, late_s=2.0 if comm.rank == LAST else 0, timeout_s=timeout_s)


@BOTH
def test_one_does_not_come(backend):
    outcomes = run_ranks(3, come_too_late, backend=backend)
    kind, missing, text, took = outcomes[FIRST]
    assert kind is CommTimeout, text
    assert list(missing) == [LAST]
    assert f"ranks [{FIRST}, {LAST}] of this one" in text
    assert took < SOON_S
    for rank in (ALONE, LAST):
        kind, blamed, text, _ = outcomes[rank]
        assert kind is AbortedError, text
        assert blamed == FIRST, text
        assert "CommTimeout" in text


def test_a_group_without_memory_for_a_smaller_one_goes_on(monkeypatch):
    def fail(size, group_id):
        raise MemoryError("no room")

    def split(comm):
        with pytest.raises(MemoryError if comm.rank == 0 else PeerDeclined, match="no room"):
            comm.split(0)
        return float(comm.all_reduce(1.0))

    monkeypatch.setattr("synk_comm._backends.shm.fabric.create", fail)
    comms = thread_group(2)
    assert in_threads(comms, split) == [2.0, 2.0]
    for comm in comms:
        comm.close()


def fail_to_wire(comm):
    if comm.rank == FIRST:
        tempfile.tempdir = "/does/not/exist"
    if comm.rank == ALONE:  # it goes elsewhere, and leaves the old group at once
        comm.barrier()
        return comm.split(None), comm.close()
    return outcome(comm)


def test_a_rank_that_cannot_connect_gives_the_reason():
    outcomes = run_ranks(3, fail_to_wire, backend="zmq", check=False)
    assert outcomes[ALONE].value == (None, None)
    for rank in (FIRST, LAST):
        kind, _, text, _ = outcomes[rank].value
        assert kind is JoinError, text
        assert "rank 0 could not wire a smaller group" in text
