"""Checks of collectives that do not wait, beside those that do."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Callable, NamedTuple

import numpy as np

from synk_comm._core.ops import Array
from synk_comm.abc import Communicator, Request
from synk_comm.exceptions import CommTimeout, MismatchError

from .letters import ring
from .tools import Check, bits, data, equal, equal_reduced, folded, outs_like, raises

LONG = 100_003
"""Elements, of several slots."""
_PATIENCE_S = 20.0


class _BothWays(NamedTuple):
    """A collective, to be made with and without waiting.

    Attributes:
        method: of those that wait.
        make: ``make()`` returns fresh arguments.
        check: raises unless a result is what NumPy says.
    """

    method: str
    make: Callable[[], tuple[Any, ...]]
    check: Callable[[Any], None]
    keywords: dict[str, Any]

    def wait(self, comm: Communicator) -> Any:
        return getattr(comm, self.method)(*self.make(), **self.keywords)

    def begin(self, comm: Communicator) -> Request:
        request: Request = getattr(comm, f"i{self.method}")(*self.make(), **self.keywords)
        return request


def _calls(comm: Communicator, n: int, dtype: str) -> Iterator[_BothWays]:
    """Yield every collective, with its result by NumPy."""
    me, size, last = comm.rank, comm.size, comm.size - 1
    xs = [data(rank, (n,), dtype) for rank in range(size)]
    x = xs[me]
    dealt = [[xs[rank][: to + 2] for to in range(size)] for rank in range(size)]
    total, top = folded(xs, "sum"), folded(xs, "max")
    some = xs[1:] or xs  # without rank 0, if there are others

    def call(
        method: str, make: Callable[[], tuple[Any, ...]], check: Callable[[Any], None], **how: Any
    ) -> _BothWays:
        return _BothWays(method, make, check, how)

    def reduced(expected: Array) -> Callable[[Any], None]:
        return lambda got: equal_reduced(comm, got, expected, x.nbytes)

    def reduced_list(got: Any) -> None:
        for one, length in zip(got, [n, 3, 0]):
            equal_reduced(comm, one, total[:length], 2 * x.nbytes)

    def only_last(check: Callable[[Any], None]) -> Callable[[Any], None]:
        return check if me == last else _is_none

    def each(expected: list[Any]) -> Callable[[Any], None]:
        return partial(_equal_lists, expected)

    yield call("barrier", tuple, _is_none)
    yield call("all_reduce", lambda: (x,), reduced(total))
    yield call("all_reduce", lambda: (x.copy(), "max"), reduced(top))
    yield call("all_reduce", lambda: (x if me or not last else None,), reduced(folded(some, "sum")))
    yield call("all_reduce", lambda: ([x, x[:3], x[:0]],), reduced_list)
    yield call("reduce", lambda: (x, "max", last), only_last(reduced(top)))
    blocks = [folded([dealt[rank][to] for rank in range(size)], "sum") for to in range(size)]
    yield call("reduce_scatter", lambda: (dealt[me],), partial(equal, expected=blocks[me]))
    given = x if me == last else np.zeros_like(x)
    yield call("broadcast", lambda: (given.copy(), last), partial(equal, expected=xs[last]))
    yield call(
        "broadcast", lambda: (x if me == last else None, last), partial(equal, expected=xs[last])
    )
    yield call("broadcast", lambda: (me + 0.5, last), partial(equal, expected=last + 0.5))
    yield call(
        "scatter",
        lambda: (dealt[last] if me == last else None, last),
        partial(equal, expected=dealt[last][me]),
    )
    ragged = [xs[rank][rank:] for rank in range(size)]
    yield call("gather", lambda: (ragged[me], last), only_last(each(ragged)))
    yield call("all_gather", lambda: (ragged[me],), each(ragged))
    yield call("all_gather", lambda: (None if me < last else x,), each([*[None] * last, xs[last]]))
    yield call("all_to_all", lambda: (dealt[me],), each([dealt[rank][me] for rank in range(size)]))
    if np.dtype(dtype).kind == "f":
        weights = [rank + 1.0 for rank in range(size)]
        mean = sum(weight * one.astype("f8") for weight, one in zip(weights, xs)) / sum(weights)
        yield call(
            "all_reduce",
            lambda: (x, "avg"),
            lambda got: np.testing.assert_allclose(got, mean, rtol=1e-5),
            weight=weights[me],
        )


def _is_none(got: Any) -> None:
    assert got is None


def _equal_lists(expected: list[Any], got: list[Any]) -> None:
    assert len(got) == len(expected)
    for one, like in zip(got, expected):
        _is_none(one) if like is None else equal(one, like)


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


def _until(done: Callable[[], Any]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def check_begun_collectives(comm: Communicator) -> None:
    """Each gives what the blocking call gives, to the last bit, and what NumPy does."""
    for n in (5 + comm.size, LONG):
        for dtype in ("f4", "i8"):
            for call in _calls(comm, n, dtype):
                request = call.begin(comm)
                for _ in range(2):
                    call.check(request.wait())
                assert request.test()
                _same_bits(request.wait(), call.wait(comm))
                assert repr(request) == f"<Request of {call.method}, done>"


def check_many_begun_collectives(comm: Communicator) -> None:
    """Many may be under way; each rank waits for them in an order of its own, or looks."""
    calls = list(_calls(comm, 4 + comm.size, "f8")) + list(_calls(comm, LONG, "f4"))
    requests = [call.begin(comm) for call in calls]
    pairs = list(zip(calls, requests))
    if comm.rank % 2:
        pairs.reverse()
    for number, (call, request) in enumerate(pairs):
        if number % 3 == comm.rank % 3:
            _until(request.test)
        call.check(request.wait(_PATIENCE_S))


def check_begun_beside_other_calls(comm: Communicator) -> None:
    """Blocking calls, messages and other groups go on beside what was begun, in any order."""
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
                _equal_lists(list(np.arange(comm.size)), there.wait())
                comm.barrier()
            equal(got.wait(), [source, turn])
            _equal_lists(list(np.arange(comm.size) + turn), second.wait())
            if not me % 2:
                comm.barrier()
                _equal_lists(list(np.arange(comm.size)), there.wait())
            equal(first.wait(), np.full(LONG, comm.size * (comm.size + 1) / 2))


def check_begun_goes_on_by_itself(comm: Communicator) -> None:
    """A collective gets done while no rank calls anything, even if nobody keeps its request."""
    out = np.zeros(LONG)
    comm.iall_reduce(np.ones(LONG), out=out)
    gc.collect()
    _until(lambda: out[0] == out[-1] == comm.size)
    comm.ibarrier().wait()
    equal(out, np.full(LONG, float(comm.size)))


def check_begun_with_out(comm: Communicator) -> None:
    """What is given as ``out`` is filled and returned."""
    me, size = comm.rank, comm.size
    x = np.arange(6.0 * size).reshape(2 * size, 3) + me
    xs = [x - me + rank for rank in range(size)]
    total = folded(xs, "sum")
    here = x.copy()
    for source, out in [(here, here), *((x, out) for out in outs_like(total))]:
        assert comm.iall_reduce(source, out=out).wait() is out
        np.testing.assert_array_equal(out, total)
    into = np.zeros((size, *x.shape))
    for number, method in enumerate([comm.igather, comm.iall_gather]):
        into[...] = 0
        got = method(x, out=into).wait()
        if number or not me:
            assert got is into
            equal(into, np.stack(xs))
        else:
            assert got is None
            assert not into.any()
    row, block = np.zeros(3), np.zeros(3)
    dealt = comm.iscatter(None if me else x[:size], out=row)
    assert comm.ireduce_scatter([x[0]] * size, out=block).wait() is block
    equal(block, folded([one[0] for one in xs], "sum"))
    assert dealt.wait() is row
    equal(row, xs[0][me])
    rows = np.zeros((size, 3))
    assert comm.iall_to_all(x[:size], out=rows).wait() is rows
    equal(rows, np.stack([one[me] for one in xs]))
    same = comm.ibroadcast(rows).wait()
    assert same is rows


def check_wrong_begun_collectives(comm: Communicator) -> None:
    """Mistakes of one rank are raised at once, on that rank alone."""
    me, x, other = comm.rank, np.ones(3), (comm.rank + 1) % comm.size
    fixed = np.ones(3)
    fixed.flags.writeable = False
    mistakes: list[tuple[type[Exception], Callable[[], Any]]] = [
        (ValueError, lambda: comm.iall_reduce(x, "total")),
        (ValueError, lambda: comm.iall_reduce(x, out=np.ones(4))),
        (ValueError, lambda: comm.iall_reduce(x, out=fixed)),
        (TypeError, lambda: comm.iall_reduce(np.ones(3, "i4"), "avg")),
        (ValueError, lambda: comm.ireduce(x, root=comm.size)),
        (ValueError, lambda: comm.ireduce_scatter([x] * (comm.size + 1))),
        (ValueError, lambda: comm.ibroadcast(x, -1)),
        (TypeError, lambda: comm.ibroadcast("x", me)),  # type: ignore[arg-type]
        (ValueError, lambda: comm.iscatter([x], me) if comm.size > 1 else comm.iscatter(None)),
        (ValueError, lambda: comm.igather(x, me, out=np.ones((comm.size + 1, 3)))),
        (TypeError, lambda: comm.iall_gather(np.array([{}]))),
        (TypeError, lambda: comm.iall_to_all([x] * comm.size, out=3)),
    ]
    if comm.size > 1:
        mistakes.append((ValueError, lambda: comm.iscatter([x] * comm.size, other)))
    for number, (kind, mistake) in enumerate(mistakes):
        if number % comm.size == me:
            raises(kind, "", mistake)
    assert comm.iall_reduce(1).wait() == comm.size


def check_mismatch_of_begun_collectives(comm: Communicator) -> None:
    """All ranks raise it, from the request, and go on."""
    me = comm.rank
    if comm.size == 1:
        raises(MismatchError, "no rank contributes", comm.iall_reduce(None).wait)
        return
    cases: list[tuple[str, Callable[[], Request]]] = [
        ("different shapes", lambda: comm.iall_reduce(np.ones(3 + me))),
        ("different collectives", lambda: comm.ibarrier() if me else comm.igather(1.0)),
        ("different collectives", lambda: comm.ireduce(1.0, "max" if me else "min")),
        (
            "does not fit",
            lambda: comm.iall_gather(np.ones(2), out=np.ones((comm.size, 3 - me % 2))),
        ),
        ("no rank contributes", lambda: comm.igather(None)),
    ]
    begun = [(text, begin(), comm.iall_reduce(1)) for text, begin in cases]
    for text, request, after in begun:
        for _ in range(2):
            error = raises(MismatchError, text, request.wait)
            assert list(error.calls) == list(range(comm.size))
        raises(MismatchError, text, request.test)
        assert after.wait() == comm.size
    # The first one of a group is a call of that group.
    aside = comm.split(0)
    assert aside is not None
    with aside:
        call = aside.barrier if me else aside.ibarrier
        for _ in range(2):
            raises(MismatchError, "first non-blocking collective", call)
        assert aside.iall_reduce(1).wait() == comm.size


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
    assert request.wait(_PATIENCE_S) == comm.size


def check_overflow_in_begun_collectives(comm: Communicator) -> None:
    """What NumPy says to overflow is said as the one who begins has asked."""
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
    check_many_begun_collectives,
    check_begun_beside_other_calls,
    check_begun_goes_on_by_itself,
    check_begun_with_out,
    check_wrong_begun_collectives,
    check_mismatch_of_begun_collectives,
    check_wait_for_a_collective_again,
    check_overflow_in_begun_collectives,
]
