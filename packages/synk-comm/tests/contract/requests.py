"""Checks of isend and irecv, and of the requests that they return."""

from __future__ import annotations

import gc
import time
from collections import Counter

import numpy as np

from synk_comm._core.ops import Array
from synk_comm.abc import Communicator, Request
from synk_comm.exceptions import AbortedError, CommTimeout

from .letters import ring
from .tools import Check, equal, raises, until

LONG = 3_000_003


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
    until(lambda: all(request.test() for request in gone))


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


def _message(event: int) -> Array:
    length = (0, 1, 50, 3000, 90_000, 700_000)[event * 7 % 6]
    return np.arange(length, dtype=("f8", "i4", "u1")[event % 3]) + event % 50


def check_random_programs(comm: Communicator) -> None:
    """Whatever the order of messages, each receive gets the message that it should.

    Only whoever comes second to a message may wait for the other, so that no rank is stuck.
    """
    done = Counter[str]()
    for seed in range(8):
        rng = np.random.default_rng([seed, comm.size])
        # For each sender, receiver and tag, how much later than it is sent a message is asked for.
        lags = rng.integers(-5, 5, (comm.size, comm.size, 2)) + 0.5
        ways = rng.integers([comm.size, comm.size, 2], size=(30, 3)).tolist()
        waits = rng.random(len(ways)) < 0.4
        ends = [(float(event), event, "send") for event in range(len(ways))]
        ends += [(event + lags[tuple(way)], event, "recv") for event, way in enumerate(ways)]
        requests: list[tuple[Request, Array | None]] = []
        for _, event, what in sorted(ends):
            source, dest, tag = ways[event]
            if comm.rank != (source if what == "send" else dest):
                continue
            is_second = (lags[source, dest, tag] > 0) == (what == "recv")
            kind = what if is_second and waits[event] else f"i{what}"
            done[kind] += 1
            message = _message(event)
            out = np.empty_like(message) if event % 2 else None
            if kind == "send":
                comm.send(message, dest, tag=tag, timeout_s=20)
            elif kind == "isend":
                requests.append((comm.isend(message, dest, tag=tag), None))
            elif kind == "recv":
                equal(comm.recv(source, tag=tag, out=out, timeout_s=20), message)
            else:
                requests.append((comm.irecv(source, tag=tag, out=out), message))
        for number in np.random.default_rng([seed, comm.rank]).permutation(len(requests)):
            request, expected = requests[number]
            got = request.wait(20)
            if expected is not None:
                equal(got, expected)
        comm.barrier()
    assert min(done[what] for what in ("send", "isend", "recv", "irecv"))


REQUESTS: list[Check] = [
    check_all_send_before_they_receive,
    check_dropped_requests,
    check_half_a_message,
    check_requests_to_oneself,
    check_random_programs,
]
