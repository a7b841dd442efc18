"""Checks of isend and irecv, and of the requests that they return."""

from __future__ import annotations

import gc
import time
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import numpy as np

from synk_comm._core.ops import Array
from synk_comm.abc import Communicator, Request
from synk_comm.exceptions import AbortedError, CommTimeout

from .letters import ring
from .tools import Check, equal, raises

LONG = 3_000_003
"""Bytes, more than any channel holds."""


def _long(number: int) -> Array:
    # With a period that is prime: no piece of it looks like another.
    return np.resize(np.arange(251, dtype="u1"), LONG) + np.uint8(number)


def settle(comm: Communicator) -> None:
    """Wait until all that this rank has sent to the next one is out: collectives move nothing."""
    dest, source = ring(comm)
    requests = [comm.isend(np.zeros(0), dest, tag=99), comm.irecv(source, tag=99)]
    for request in requests:
        request.wait()
    comm.barrier()


def check_all_send_before_they_receive(comm: Communicator) -> None:
    """All ranks send long arrays to all, and then receive; in whatever order they wait."""
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    gone = [comm.isend(_long(comm.rank + rank), rank, tag=1) for rank in others]
    got = [comm.irecv(rank, tag=1) for rank in others]
    for request in gone:
        request.wait()
    for rank, request in reversed(list(zip(others, got))):
        equal(request.wait(), _long(comm.rank + rank))
    gone = [comm.isend(_long(comm.rank + rank), rank, tag=1) for rank in others]
    for rank in others:
        equal(comm.recv(rank, tag=1), _long(comm.rank + rank))
    deadline = time.monotonic() + 20
    while not all(request.test() for request in gone):
        assert time.monotonic() < deadline


def check_dropped_requests(comm: Communicator) -> None:
    """A message whose request nobody keeps is sent and received all the same."""
    dest, source = ring(comm)
    out = np.zeros(LONG, "u1")
    comm.irecv(source, out=out)
    comm.isend(_long(comm.rank), dest)
    comm.isend(np.array(comm.rank), dest)
    gc.collect()
    equal(comm.recv(source), source)  # after the long one
    equal(out, _long(source))
    # What was sent before takes its turn behind what is pending.
    got = [comm.irecv(source), comm.irecv(source)]
    comm.isend(_long(comm.rank), dest)
    comm.send(np.array([comm.rank, 4]), dest)
    equal(got[1].wait(), [source, 4])
    equal(got[0].wait(), _long(source))
    settle(comm)


def check_half_a_message(comm: Communicator) -> None:
    """Half of a message comes, and the rest does not: its sender does other things meanwhile."""
    if comm.size == 1:
        return
    for end in (False, True):
        group = comm.split(0)
        assert group is not None
        out = np.zeros(LONG, "u1") if end else None
        gone = group.isend(_long(5), 1) if comm.rank == 0 else None
        comm.barrier()
        if comm.rank == 1:
            raises(CommTimeout, "rank 0", lambda: group.recv(0, out=out, timeout_s=0.3))  # noqa: B023
        comm.barrier()
        if out is None:  # it is kept, and goes on
            if gone is not None:
                gone.wait(20)
            if comm.rank == 1:
                equal(group.recv(0, timeout_s=20), _long(5))
        else:  # `out` is half full: the group has ended
            raises(AbortedError, "CommTimeout", lambda: [group.barrier(), group.barrier()])  # noqa: B023
        group.close()
        comm.barrier()


def check_requests_to_oneself(comm: Communicator) -> None:
    """A rank may send to itself, before or after it asks for that."""
    me = comm.rank
    got = comm.irecv(me, tag=6)
    assert not got.test()
    began = time.monotonic()
    error = raises(CommTimeout, "itself", got.wait)  # nothing can come while it waits
    assert list(error.missing) == [me]
    assert time.monotonic() - began < 5
    x = _long(2)
    gone = comm.isend(x, me, tag=6)
    assert gone.test()
    x[:] = 0
    equal(got.wait(), _long(2))
    comm.isend(1.5, me)
    comm.send(2.5, me)
    equal(comm.irecv(me).wait(), 1.5)
    equal(comm.recv(me), 2.5)


# -- random programs ------------------------------------------------------------------------


class _RankStep(NamedTuple):
    """What one rank does: one end of a message, or the wait for it.

    Attributes:
        what: ``"send"``, ``"isend"``, ``"recv"``, ``"irecv"`` or ``"wait"``.
        way: sender, receiver and tag.
        event: which message of the plan; ``wait`` is for what was begun in it.
    """

    what: str
    way: tuple[int, int, int] = (0, 0, 0)
    event: int = 0


def _plan(rng: np.random.Generator, size: int, count: int) -> list[list[_RankStep]]:
    """Return random steps for each rank, which may well wait for each other in a circle."""
    at: list[list[tuple[float, _RankStep]]] = [[] for _ in range(size)]
    for event in range(count):
        way = (int(rng.integers(size)), int(rng.integers(size)), int(rng.integers(2)))
        lags = [0.0, 0.0]
        lags[int(rng.integers(2))] = float(rng.integers(6))
        for rank, kinds, lag in zip(way, (("send", "isend"), ("recv", "irecv")), lags):
            what = kinds[int(rng.random() < 0.7)]
            at[rank].append((event + lag, _RankStep(what, way, event)))
            if what.startswith("i"):
                later = event + 6 + float(rng.integers(6))
                at[rank].append(
                    (later, _RankStep("wait", way, event if what == "isend" else ~event))
                )
    return [[step for _, step in sorted(steps, key=lambda pair: pair[0])] for steps in at]


def _simulate(plan: list[list[_RankStep]]) -> dict[int, int] | None:
    """Return which message each receive of a plan gets, by event; None if ranks would be stuck.

    Nothing is buffered here: a message goes when both its ends have been posted.
    """
    posted: dict[tuple[str, Any], list[int]] = defaultdict(list)
    mates: dict[int, int] = {}  # both ways; receives by the complement of their event
    places, waiting = [0] * len(plan), [False] * len(plan)
    moved = True
    while moved:
        moved = False
        for rank, steps in enumerate(plan):
            while places[rank] < len(steps):
                what, way, event = steps[places[rank]]
                name = event if "send" in what or what == "wait" else ~event
                if not waiting[rank] and what != "wait":
                    side, other = ("s", "r") if "send" in what else ("r", "s")
                    if posted[other, way]:
                        mate = posted[other, way].pop(0)
                        mates[name], mates[mate] = mate, name
                    else:
                        posted[side, way].append(name)
                waiting[rank] = True
                own = what == "send" and way[0] == way[1]
                if what.startswith("i") or own or name in mates:
                    places[rank] += 1
                    waiting[rank] = False
                else:
                    break
                moved = True
    if any(place < len(steps) for steps, place in zip(plan, places)):
        return None
    return {~name: mate for name, mate in mates.items() if name < 0}


def _message(event: int) -> Array:
    """Return what is sent in an event."""
    length = (0, 1, 50, 3000, 90_000, 700_000)[event * 7 % 6]
    return np.arange(length, dtype=("f8", "i4", "u1")[event % 3]) + event % 50


def check_random_programs(comm: Communicator) -> None:
    """Whatever the order of messages, each receive gets the message that it should."""
    done = Counter[str]()
    seed = 0
    while done["programs"] < 8:
        seed += 1
        plan = _plan(np.random.default_rng([seed, comm.size]), comm.size, 30)
        mates = _simulate(plan)
        if mates is None:
            continue
        done["programs"] += 1
        requests: dict[int, Request] = {}
        for what, (source, dest, tag), event in plan[comm.rank]:
            done[what] += 1
            out = None
            if "recv" in what and event in mates and event % 2:
                out = np.empty_like(_message(mates[event]))
            if what == "send":
                comm.send(_message(event), dest, tag=tag, timeout_s=20)
            elif what == "isend":
                requests[event] = comm.isend(_message(event), dest, tag=tag)
            elif what == "recv":
                equal(comm.recv(source, tag=tag, out=out, timeout_s=20), _message(mates[event]))
            elif what == "irecv":
                requests[~event] = comm.irecv(source, tag=tag, out=out)
            else:
                got = requests[event].wait(20)
                if event < 0:
                    equal(got, _message(mates[~event]))
        comm.barrier()
    assert min(done[what] for what in ("send", "isend", "recv", "irecv", "wait"))


REQUESTS: list[Check] = [
    check_all_send_before_they_receive,
    check_dropped_requests,
    check_half_a_message,
    check_requests_to_oneself,
    check_random_programs,
]
