"""Checks of calls that are made again and again: what a transport learns must not change them."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from synk_comm.abc import Communicator
from synk_comm.exceptions import MismatchError, PeerDeclined

from .steps import ops_of
from .tools import NUMBERS, Check, bits, data, equal, equal_lists, everywhere, raises


def check_again_the_same(comm: Communicator) -> None:
    """The first, second and hundredth call of a kind have the same result, to the last bit."""
    for dtype in NUMBERS:
        x = np.asarray(np.random.default_rng(comm.rank).standard_normal(5) * 10).astype(dtype)
        for op in ops_of(dtype):
            with np.errstate(all="ignore"):
                results = [comm.all_reduce(x, op) for _ in range(3)]
                results += comm.all_reduce([x], op)
            assert not any(np.may_share_memory(result, x) for result in results)
            everywhere(comm, [bits(result.astype(dtype)) for result in results])
            assert len({bits(result.astype(dtype)) for result in results}) == 1, (dtype, op)
    for turn in range(100):
        equal(comm.all_reduce(np.full(3, turn)), np.full(3, turn * comm.size))
        x = np.full(3, comm.rank + turn)
        equal(comm.broadcast(x, turn % comm.size), np.full(3, turn % comm.size + turn))
        for rank, got in enumerate(comm.all_gather(np.array(turn + comm.rank))):
            equal(got, np.array(turn + rank))
        comm.barrier()


def _variants(comm: Communicator, x: np.ndarray[Any, Any], odd: bool) -> list[Callable[[], Any]]:
    """Return what an odd rank may do while the others call all_reduce(x), after they learned it."""
    size, reduce, gather = comm.size, lambda: comm.all_reduce(x), lambda: comm.all_gather(x)
    broadcast: Callable[[], Any] = lambda: comm.broadcast(x.copy())  # noqa: E731
    differing: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (lambda: comm.all_reduce(x.astype("f8")), reduce),
        (lambda: comm.all_reduce(x[1:]), reduce),
        (lambda: comm.all_reduce(x, "max"), reduce),
        (comm.barrier, reduce),
        (broadcast, gather),
        (lambda: comm.broadcast(x.copy(), 1), broadcast),
        (lambda: comm.split(0), comm.barrier),
    ]

    def refused(acts: tuple[Callable[[], Any], Callable[[], Any]]) -> Callable[[], Any]:
        return lambda: raises(MismatchError, f"rank {size - 1}:", acts[0] if odd else acts[1])

    def declined(act: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: comm.decline("not me") if odd else raises(PeerDeclined, "not me", act)

    return [
        *map(refused, differing),
        *map(declined, [reduce, gather, broadcast, comm.barrier]),
        lambda: equal(comm.all_reduce(None if odd else x), x * np.float32(size - 1)),
        lambda: equal(comm.all_reduce(None if odd else x, out=x.copy()), x * np.float32(size - 1)),
        lambda: equal_lists(comm.all_gather(None if odd else x), [*[x] * (size - 1), None]),
        lambda: equal_lists(comm.all_gather(x[1:] if odd else x), [*[x] * (size - 1), x[1:]]),
        lambda: equal(comm.all_reduce(x, timeout_s=10.0 if odd else None), x * np.float32(size)),
        lambda: comm.barrier(timeout_s=10.0 if odd else None),
    ]


def _learn(comm: Communicator, x: np.ndarray[Any, Any]) -> None:
    for _ in range(2):
        equal(comm.all_reduce(x), x * np.float32(comm.size))
        comm.all_reduce(x, "avg")
        comm.all_gather(x)
        comm.broadcast(x.copy(), 0)
        comm.broadcast(x.copy(), 1 % comm.size)
        comm.barrier()


def check_again_but_not_all(comm: Communicator) -> None:
    """One rank that does something else is noticed by all, also in the third call of a kind."""
    if comm.size == 1:
        return
    odd = comm.rank == comm.size - 1
    for length in (3, 3000, 300_000):
        x = np.arange(length, dtype="f4") % 7
        for variant in range(len(_variants(comm, x, odd))):
            _learn(comm, x)
            _variants(comm, x, odd)[variant]()
            # ... and once more, since the odd one may have been learned too
            _variants(comm, x, odd)[variant]()
        _learn(comm, x)


def check_again_with_weights(comm: Communicator) -> None:
    size, rank = comm.size, comm.rank
    parts = [data(r, (6,), "f8") for r in range(size)]
    series = [[1.0] * size, [2.0] * size, [1.0 + r for r in range(size)], [2.0] * size]
    series += [[float(r == size - 1) for r in range(size)], [1.0] * size]
    series += [[0.5] + [1.0] * (size - 1)]
    for _ in range(3):
        for weights in series:
            for weight in (weights[rank], None if weights[rank] == 1.0 else weights[rank]):
                got = comm.all_reduce(parts[rank], "avg", weight=weight)
                exact = np.average(parts, axis=0, weights=weights)
                np.testing.assert_allclose(got, exact, rtol=1e-14)
        mine = np.full(6, np.nan) if rank == 0 and size > 1 else parts[rank]
        got = comm.all_reduce(mine, "avg", weight=float(rank > 0 or size == 1))
        np.testing.assert_allclose(got, np.mean(parts[1:] or parts, axis=0), rtol=1e-14)
    for own in (np.float32(1.1 + rank), np.full(3, 0.7 * rank, np.float32)):
        turns = [comm.all_reduce(own, "avg", weight=3.3 + rank) for _ in range(4)]
        assert len({turn.tobytes() for turn in turns}) == 1, "the same bits each time"


def check_again_with_bad_arguments(comm: Communicator) -> None:
    x, fixed = np.ones(3), np.ones(3)
    fixed.flags.writeable = False
    room = np.zeros((comm.size, 3))
    room.flags.writeable = False
    for _ in range(3):
        comm.all_reduce(x)
        comm.all_gather(x)
        comm.broadcast(x.copy())
    for out in (np.zeros(4), np.zeros(3, "f4"), np.zeros(3, ">f8"), np.zeros((1, 3))):
        raises(ValueError, "out must be like", lambda: comm.all_reduce(x, out=out))  # noqa: B023
    raises(ValueError, "writeable", lambda: comm.all_reduce(x, out=fixed))
    raises(ValueError, "writeable", lambda: comm.all_reduce(fixed, out=fixed))
    raises(TypeError, "ndarray", lambda: comm.all_reduce(x, out=[1, 2, 3]))
    raises(ValueError, "timeout_s", lambda: comm.all_reduce(x, timeout_s=0))
    raises(ValueError, "writeable", lambda: comm.all_gather(x, out=room))
    raises(ValueError, "", lambda: comm.all_gather(x, out=np.zeros((comm.size + 1, 3))))
    if comm.rank:
        raises(ValueError, "writeable", lambda: comm.broadcast(fixed))
    comm.broadcast(fixed if comm.rank == 0 else x)
    kind: Any = type("Kind", (np.ndarray,), {})
    for like in (fixed, [1.0, 1.0, 1.0], x.view(kind)):
        equal(comm.all_reduce(like), np.full(3, float(comm.size)))


AGAIN: list[Check] = [
    check_again_the_same,
    check_again_but_not_all,
    check_again_with_weights,
    check_again_with_bad_arguments,
]
