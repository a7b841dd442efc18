"""Checks of isend and irecv, and of the requests that they return."""

# ruff: noqa: S101 - asserts are how a test speaks

from __future__ import annotations

import gc
import time
from collections import Counter, defaultdict
from typing import Any, Callable, NamedTuple

import numpy as np

from synk_comm._core.ops import Array
from synk_comm.abc import Communicator, Request
from synk_comm.exceptions import CommTimeout, MismatchError

from ._checks_letters import ring
from ._checks_tools import ANYTHING, Check, data, equal, layouts, outs_like, raises

LONG = 3_000_003
"""Bytes, more than any channel holds."""


def _long(number: int) -> Array:
    # With a period that is prime: no piece of it looks like another.
    return np.resize(np.arange(251, dtype="u1"), LONG) + np.uint8(number)


def check_requests_of_every_kind(comm: Communicator) -> None:
    """Any dtype, shape and layout goes, as by send; wait returns what recv returns."""
    dest, source = ring(comm)
    for dtype in ANYTHING:
        for shape in [(), (0,), (2, 3)]:
            got, gone = comm.irecv(source), comm.isend(data(comm.rank, shape, dtype), dest)
            for _ in range(2):
                equal(got.wait(), data(source, shape, dtype))
                assert gone.wait() is None
            assert got.test()
            assert gone.test()
    sent, expected = data(comm.rank, (4, 5), "f4"), data(source, (4, 5), "f4")
    for x in layouts(sent):
        gone = comm.isend(x, dest)
        got = comm.irecv(source)
        equal(got.wait(), expected)
        gone.wait()
        assert got.wait().flags.writeable
        assert not np.may_share_memory(got.wait(), x)
    for out in outs_like(expected):
        got, gone = comm.irecv(source, out=out), comm.isend(sent, dest)
        assert got.wait() is out
        np.testing.assert_array_equal(out, expected)
        gone.wait()
    numbers: list[Any] = [[1, 2], 3, 2.5, np.float32(4)]
    for number in numbers:
        comm.isend(number, dest)
        equal(comm.recv(source), np.asarray(number))
    x = np.full(3, comm.rank)
    comm.send(x, dest)
    got = comm.irecv(source)  # what has come already
    equal(got.wait(), np.full(3, source))
    got = comm.irecv(source, tag=8)
    assert repr(got) == f"<Request from rank {source}, pending>"
    comm.barrier()
    gone = comm.isend(x, dest, tag=8)
    got.wait()
    gone.wait()
    assert repr(got) == f"<Request from rank {source}, done>"
    assert repr(gone) == f"<Request to rank {dest}, done>"


def check_requests_move_in_other_calls(comm: Communicator) -> None:
    """What one rank has begun to send goes on while it waits for something else."""
    if comm.size == 1:
        return
    waits: list[Callable[[], Any]] = [
        lambda: comm.barrier(timeout_s=20),
        comm.barrier,
        lambda: comm.all_reduce(np.ones(3), timeout_s=20),
        lambda: comm.all_reduce(np.ones(400_000), timeout_s=20),
        lambda: comm.gather_object("x", comm.size - 1, timeout_s=20),
    ]
    for turn, wait in enumerate(waits):
        # The sender waits for the receiver, who is not there before all has been received.
        if comm.rank == 0:
            gone = comm.isend(_long(turn), 1, tag=turn)
            wait()
            gone.wait(20)
        elif comm.rank == 1:
            equal(comm.recv(0, tag=turn, timeout_s=20), _long(turn))
            wait()
        else:
            wait()
        comm.barrier()
    # The receiver waits for something else, until the sender has sent all.
    for wait in waits:
        if comm.rank == 0:
            comm.send(_long(3), 1, timeout_s=20)
            wait()
        elif comm.rank == 1:
            out = np.zeros(LONG, "u1")
            got = comm.irecv(0, out=out)
            wait()
            assert got.wait(20) is out
            equal(out, _long(3))
        else:
            wait()


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


def check_many_requests(comm: Communicator) -> None:
    """Many small messages may be under way; they arrive in the order in which they were sent."""
    dest, source = ring(comm)
    gone = [comm.isend(np.array([comm.rank, n]), dest) for n in range(100)]
    comm.send(np.array([comm.rank, 100]), dest) if comm.rank == 0 else None
    for n in range(50):
        equal(comm.recv(source), [source, n])
    got = [comm.irecv(source) for _ in range(50, 100)]
    for n, request in reversed(list(enumerate(got, 50))):
        equal(request.wait(), [source, n])
    if source == 0:
        equal(comm.recv(source), [source, 100])
    for request in gone:
        request.wait()
    for n in range(10):  # short and long ones by turns
        comm.isend(_long(n) if n % 2 else np.array(n), dest)
    for n in range(10):
        equal(comm.recv(source), _long(n) if n % 2 else n)
    comm.barrier()  # who does nothing more moves nothing on


def check_calls_again_beside_requests(comm: Communicator) -> None:
    """What a rank has sent and received before takes its turn behind what is pending."""
    dest, source = ring(comm)
    for n in range(4):
        comm.send(np.array([comm.rank, n]), dest)
        equal(comm.recv(source), [source, n])
    got = [comm.irecv(source), comm.irecv(source)]
    comm.isend(_long(comm.rank), dest)
    comm.send(np.array([comm.rank, 4]), dest)
    equal(got[1].wait(), [source, 4])
    equal(got[0].wait(), _long(source))
    first = comm.irecv(source)
    comm.barrier()
    for n in (5, 6):
        comm.send(np.array([comm.rank, n]), dest)
    equal(comm.recv(source), [source, 6])
    equal(first.wait(), [source, 5])
    comm.barrier()


def check_tags_of_requests(comm: Communicator) -> None:
    """Messages go to the receives of their tag in the order in which these were posted."""
    dest, source = ring(comm)
    tags = [4, 0, 4, 9, 0, 4]
    got = [comm.irecv(source, tag=tag) for tag in tags]
    for n, tag in reversed(list(enumerate(tags))):
        comm.isend(np.array([comm.rank, n]), dest, tag=tag)
    comm.isend(np.array([comm.rank, 99]), dest, tag=4)
    equal(comm.recv(source, tag=4), [source, 99])  # after those that were posted before
    for tag in sorted(set(tags)):
        came = [int(request.wait()[1]) for request, its in zip(got, tags) if its == tag]
        assert came == [n for n, its in reversed(list(enumerate(tags))) if its == tag]
    comm.barrier()
    # A long message that began to arrive before anybody asked for it.
    comm.isend(_long(1), dest, tag=1)
    comm.isend(np.array(5), dest, tag=2)
    equal(comm.recv(source, tag=2), 5)
    equal(comm.irecv(source, tag=1).wait(), _long(1))
    comm.barrier()


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
    comm.isend(_long(comm.rank), dest)
    gc.collect()
    comm.barrier()
    equal(comm.recv(source), _long(source))
    comm.barrier()


def check_request_timeouts(comm: Communicator) -> None:
    """A request whose time is up is still pending: it can be waited for again."""
    dest, source = ring(comm)
    for out in (None, np.zeros(3)):
        got = comm.irecv(source, tag=3, out=out)
        assert not got.test()
        for _ in range(2):
            error = raises(CommTimeout, f"{source}", lambda: got.wait(0.05))  # noqa: B023
            assert list(error.missing) == [source]
        raises(ValueError, "positive", lambda: got.wait(0))  # noqa: B023
        assert not got.test()
        comm.barrier()
        comm.isend(np.full(3, float(comm.rank)), dest, tag=3)
        equal(got.wait(), np.full(3, float(source)))
    if comm.size == 1:
        return
    comm.barrier()
    gone = comm.isend(_long(comm.rank), dest)
    error = raises(CommTimeout, f"send to rank {dest}", lambda: gone.wait(0.1))
    assert list(error.missing) == [dest]
    # What was not begun is taken back, and the order of all else is kept.
    raises(CommTimeout, "", lambda: comm.send(np.array(7), dest, timeout_s=0.05))
    assert not gone.test()
    comm.barrier()
    raises(CommTimeout, "", lambda: comm.recv(source, tag=5, timeout_s=0.3))
    comm.isend(np.array(8), dest)
    comm.barrier()
    equal(comm.recv(source), _long(source))
    equal(comm.recv(source), 8)
    gone.wait()
    comm.barrier()
    # Half of a message comes, and the rest does not: its sender waits in another group.
    with comm.split(0) as aside:  # type: ignore[union-attr]
        if comm.rank == 0:
            gone = comm.isend(_long(5), 1)
        aside.barrier()
        if comm.rank == 1:
            raises(CommTimeout, "", lambda: comm.recv(0, timeout_s=0.3))
        aside.barrier()
    if comm.rank == 0:
        gone.wait()
    if comm.rank == 1:
        equal(comm.recv(0), _long(5))
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


def check_wrong_requests(comm: Communicator) -> None:
    """Mistakes are raised at once; an ``out`` that does not fit loses one message."""
    dest, source = ring(comm)
    for out in (np.zeros(4), np.zeros(3, "f4"), np.zeros((3, 1))):
        for length in (3, LONG // 8):
            got = comm.irecv(source, out=out)
            comm.isend(np.full(length, 1.0), dest)
            for call in (got.wait, got.wait, got.test):
                error = raises(MismatchError, f"rank {source} sent", call)
                assert list(error.calls) == [source]
            assert not out.any()
            comm.isend(5, dest)
            equal(comm.recv(source), 5)
    comm.barrier()
    x = np.ones(3)
    fixed = np.ones(3)
    fixed.flags.writeable = False
    mistakes: list[tuple[type[Exception], Callable[[], Any]]] = [
        (ValueError, lambda: comm.isend(x, comm.size)),
        (ValueError, lambda: comm.irecv(-1)),
        (ValueError, lambda: comm.isend(x, dest, tag=-1)),
        (TypeError, lambda: comm.irecv(source, tag=1.5)),  # type: ignore[arg-type]
        (TypeError, lambda: comm.isend(np.array([{}]), dest)),
        (TypeError, lambda: comm.irecv(source, out=[1.0])),  # type: ignore[arg-type]
        (ValueError, lambda: comm.irecv(source, out=fixed)),
    ]
    for kind, mistake in mistakes:
        raises(kind, "", mistake)


# -- random programs ------------------------------------------------------------------------


class _RankStep(NamedTuple):
    """What one rank does: a barrier, or one end of a message, or the wait for it.

    Attributes:
        what: ``"barrier"``, ``"send"``, ``"isend"``, ``"recv"``, ``"irecv"`` or ``"wait"``.
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
        if rng.random() < 0.1:
            for steps in at:
                steps.append((event, _RankStep("barrier")))
            continue
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
                if not waiting[rank] and what not in ("wait", "barrier"):
                    side, other = ("s", "r") if "send" in what else ("r", "s")
                    if posted[other, way]:
                        mate = posted[other, way].pop(0)
                        mates[name], mates[mate] = mate, name
                    else:
                        posted[side, way].append(name)
                waiting[rank] = True
                own = what == "send" and way[0] == way[1]
                if what == "barrier":
                    others = [list_[place : place + 1] for list_, place in zip(plan, places)]
                    if any(not step or step[0].what != "barrier" for step in others):
                        break
                    places = [place + 1 for place in places]
                    waiting = [False] * len(plan)
                elif what.startswith("i") or own or name in mates:
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
    """Whatever the order of messages and barriers, each receive gets the message that it should."""
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
            if what == "barrier":
                comm.barrier(timeout_s=20)
            elif what == "send":
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
    assert min(done[what] for what in ("send", "isend", "recv", "irecv", "wait", "barrier"))


REQUESTS: list[Check] = [
    check_requests_of_every_kind,
    check_requests_move_in_other_calls,
    check_all_send_before_they_receive,
    check_many_requests,
    check_calls_again_beside_requests,
    check_tags_of_requests,
    check_dropped_requests,
    check_request_timeouts,
    check_requests_to_oneself,
    check_wrong_requests,
    check_random_programs,
]
