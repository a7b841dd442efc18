"""Checks of collectives that do not wait, beside those that do."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np

from synk_comm.abc import Communicator, Request
from synk_comm.exceptions import CommTimeout, MismatchError

from .letters import ring
from .tools import PATIENCE_S, Check, bits, data, equal, equal_lists, raises, until

LONG = 100_003
_BothWays = tuple[str, Callable[[], tuple[Any, ...]], dict[str, Any]]
"""A collective, to be made with and without waiting: method, fresh arguments, keywords."""


def calls_of(comm: Communicator, n: int, dtype: str) -> Iterator[_BothWays]:
    me, size, last = comm.rank, comm.size, comm.size - 1
    x = data(me, (n,), dtype)
    dealt = [x[: to + 2] for to in range(size)]
    yield "barrier", tuple, {}
    yield "all_reduce", lambda: (x,), {}
    yield "all_reduce", lambda: (x.copy(), "max"), {}
    yield "all_reduce", lambda: (x if me or not last else None,), {}
    yield "all_reduce", lambda: ([x, x[:3], x[:0]],), {}
    yield "reduce", lambda: (x, "max", last), {}
    yield "reduce_scatter", lambda: (dealt,), {}
    yield "broadcast", lambda: (x.copy() if me == last else np.zeros_like(x), last), {}
    yield "broadcast", lambda: (x if me == last else None, last), {}
    yield "broadcast", lambda: (me + 0.5, last), {}
    yield "scatter", lambda: (dealt if me == last else None, last), {}
    yield "gather", lambda: (x[me:], last), {}
    yield "all_gather", lambda: (x[me:],), {}
    yield "all_gather", lambda: (None if me < last else x,), {}
    yield "all_to_all", lambda: (dealt,), {}
    if np.dtype(dtype).kind == "f":
        yield "all_reduce", lambda: (x, "avg"), {"weight": me + 1.0}


def _begin(comm: Communicator, call: _BothWays) -> Request:
    method, make, keywords = call
    request: Request = getattr(comm, f"i{method}")(*make(), **keywords)
    return request


def _wait(comm: Communicator, call: _BothWays) -> Any:
    method, make, keywords = call
    return getattr(comm, method)(*make(), **keywords)


def _same_bits(one: Any, other: Any) -> None:
    if isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other):
            _same_bits(left, right)
    elif one is None:
        assert other is None
    else:
        assert type(one) is type(other)
        assert bits(np.asarray(one)) == bits(np.asarray(other))


def check_begun_collectives(comm: Communicator) -> None:
    """Each gives what the blocking call gives, to the last bit, in whatever order ranks wait."""
    calls = [
        call
        for n in (5 + comm.size, LONG)
        for kind in ("f4", "i8")
        for call in calls_of(comm, n, kind)
    ]
    for call in calls:
        request = _begin(comm, call)
        first = request.wait()
        assert request.test()
        _same_bits(first, request.wait())
        _same_bits(first, _wait(comm, call))
        assert repr(request) == f"<Request of {call[0]}, done>"
    requests = [_begin(comm, call) for call in calls]
    got: dict[int, Any] = {}
    order = list(range(len(calls)))
    for number in reversed(order) if comm.rank % 2 else order:
        if number % 3 == comm.rank % 3:
            until(requests[number].test)
        got[number] = requests[number].wait(PATIENCE_S)
    for number, call in enumerate(calls):
        _same_bits(got[number], _wait(comm, call))


def check_begun_beside_other_calls(comm: Communicator) -> None:
    """Blocking calls, messages and other groups go on beside begun collectives."""
    dest, source = ring(comm)
    me, x, ones = comm.rank, np.full(LONG, comm.rank + 1.0), np.ones(LONG)
    aside = comm.split(0)
    assert aside is not None
    with aside:
        for turn in range(3):
            first = comm.iall_reduce(x)
            got = comm.irecv(source, tag=turn)
            equal(comm.all_reduce(ones), np.full(LONG, float(comm.size)))
            there = aside.iall_gather(np.array(me))
            comm.isend(np.array([me, turn]), dest, tag=turn)
            second = comm.iall_gather(np.array(me + turn))
            if me % 2:
                equal_lists(there.wait(), np.arange(comm.size))
                comm.barrier()
            equal(got.wait(), [source, turn])
            equal_lists(second.wait(), np.arange(comm.size) + turn)
            if not me % 2:
                comm.barrier()
                equal_lists(there.wait(), np.arange(comm.size))
            equal(first.wait(), np.full(LONG, comm.size * (comm.size + 1) / 2))


def check_begun_goes_on_by_itself(comm: Communicator) -> None:
    """A collective gets done while no rank calls anything, even if nobody keeps its request."""
    out = np.zeros(LONG)
    comm.iall_reduce(np.ones(LONG), out=out)
    gc.collect()
    until(lambda: out[0] == out[-1] == comm.size)
    comm.ibarrier().wait()
    equal(out, np.full(LONG, float(comm.size)))


def check_wrong_begun_collectives(comm: Communicator) -> None:
    """Mistakes of one rank are raised at once, there alone; mismatches by all ranks' requests."""
    me, size, x = comm.rank, comm.size, np.ones(3)
    out = np.zeros((size, 3))
    assert comm.iall_gather(np.full(3, float(me)), out=out).wait() is out
    equal(out, np.repeat(np.arange(float(size))[:, None], 3, axis=1))
    mistakes: list[tuple[type[Exception], Callable[[], Any]]] = [
        (ValueError, lambda: comm.iall_reduce(x, "total")),
        (ValueError, lambda: comm.iall_reduce(x, out=np.ones(4))),
        (ValueError, lambda: comm.ireduce(x, root=size)),
        (ValueError, lambda: comm.ibroadcast(x, -1)),
        (ValueError, lambda: comm.iscatter([x] * (size + 1), me)),
        (TypeError, lambda: comm.iall_to_all([x] * size, out=3)),
    ]
    for number, (kind, mistake) in enumerate(mistakes):
        if number % size == me:
            raises(kind, "", mistake)
    cases: list[tuple[str, Callable[[], Request]]] = [
        ("no rank contributes", lambda: comm.igather(None)),
        ("different shapes", lambda: comm.iall_reduce(np.ones(3 + me))),
        ("different collectives", lambda: comm.ibarrier() if me else comm.igather(1.0)),
    ]
    begun = [(text, begin(), comm.iall_reduce(1)) for text, begin in cases[: 3 if size > 1 else 1]]
    for text, request, after in begun:
        for call in (request.wait, request.wait, request.test):
            error = raises(MismatchError, text, call)
            assert list(error.calls) == list(range(size))
        assert after.wait() == size
    # The first one of a group is a call of that group.
    aside = comm.split(0)
    assert aside is not None
    with aside:
        for _ in range(2 if size > 1 else 0):
            call = aside.barrier if me else aside.ibarrier
            raises(MismatchError, "first non-blocking collective", call)
        assert aside.iall_reduce(1).wait() == size


def check_wait_for_a_collective_again(comm: Communicator) -> None:
    """A wait whose time is up leaves the collective under way."""
    last = comm.size - 1
    comm.ibarrier().wait()
    if comm.rank == last:
        for rank in range(last):
            comm.recv(rank)
        assert comm.iall_reduce(1).wait() == comm.size
        return
    request = comm.iall_reduce(1)
    for _ in range(2):
        error = raises(
            CommTimeout, "all_reduce, which is still under way", lambda: request.wait(0.03)
        )
        assert isinstance(error, TimeoutError)
        assert not request.test()
    raises(ValueError, "positive", lambda: request.wait(0))
    assert repr(request) == "<Request of all_reduce, pending>"
    comm.send(1, last)
    assert request.wait(PATIENCE_S) == comm.size


def check_overflow_in_begun_collectives(comm: Communicator) -> None:
    """An overflow is handled as the caller that begins has asked NumPy."""
    huge = np.full(3, 3e38, "f4")
    with np.errstate(over="raise"):
        loud = comm.iall_reduce(huge)
        block = comm.ireduce_scatter(np.repeat(huge, comm.size))
    with np.errstate(over="ignore"):
        silent = comm.iall_reduce(huge)
    if comm.size > 1:
        for _ in range(2):
            raises(FloatingPointError, "overflow", loud.wait)
        raises(FloatingPointError, "overflow", block.wait)
        equal(silent.wait(), np.full(3, np.inf, "f4"))
    assert comm.iall_reduce(1).wait() == comm.size


NONBLOCKING: list[Check] = [
    check_begun_collectives,
    check_begun_beside_other_calls,
    check_begun_goes_on_by_itself,
    check_wrong_begun_collectives,
    check_wait_for_a_collective_again,
    check_overflow_in_begun_collectives,
]
