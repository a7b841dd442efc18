"""Checks of what a communicator is, and of smaller groups."""

from __future__ import annotations

import numpy as np

from synk_comm.abc import Communicator
from synk_comm.exceptions import AbortedError, ClosedError, MismatchError

from .tools import Check, equal, raises


def check_attributes(comm: Communicator) -> None:
    assert type(comm.rank) is int
    assert 0 <= comm.rank < comm.size
    assert comm.all_gather_object(comm.rank) == list(range(comm.size))
    assert type(comm.backend) is str
    assert type(comm.why) is str
    assert len(comm.why) > 5
    assert f"rank {comm.rank} of {comm.size}" in repr(comm)
    assert "open" in repr(comm)


def _use(group: Communicator) -> None:
    size, rank = group.size, group.rank
    for _ in range(3):
        equal(group.all_reduce(np.full(5, rank)), np.full(5, size * (size - 1) // 2))
        x = np.full(300_001, rank + 1.0)
        group.all_reduce(x, out=x)
        equal(x, np.full(300_001, size * (size + 1) / 2))
    assert group.all_gather_object(rank) == list(range(size))
    group.send(np.array(rank), (rank + 1) % size)
    equal(group.recv((rank - 1) % size), (rank - 1) % size)
    y = np.full(5, rank, "f4")
    group.broadcast(y, size - 1)
    equal(y, np.full(5, size - 1, "f4"))
    group.barrier()


def check_split(comm: Communicator) -> None:
    """Ranks of one color make a group, numbered by key, then by rank; None makes none."""
    rank, size = comm.rank, comm.size
    pairs = comm.split(rank // 2)
    assert pairs is not None
    assert (pairs.rank, pairs.size) == (rank % 2, min(2, size - rank // 2 * 2))
    assert pairs.backend == comm.backend
    assert type(pairs.why) is str
    _use(pairs)
    turned = comm.split(int(np.int64(5)), key=-rank)
    assert turned is not None
    assert (turned.rank, turned.size) == (size - 1 - rank, size)
    _use(turned)
    some = comm.split(-1 if rank % 2 == 0 else None)
    assert (some is None) == (rank % 2 == 1)
    if some is not None:
        assert (some.rank, some.size) == (rank // 2, (size + 1) // 2)
        _use(some)
    assert comm.split(None) is None
    for _ in range(3):
        equal(comm.all_reduce(1), size)
        equal(pairs.all_reduce(1), pairs.size)
        equal(turned.all_reduce(rank, "max"), size - 1)
        if some is not None:
            equal(some.all_reduce(1), some.size)
    with turned:
        inner = turned.split(turned.rank % 2, key=0)
        assert inner is not None
        _use(inner)
    _use(inner)  # outlives the group that it came from
    inner.close()
    pairs.close()
    raises(ClosedError, "closed", pairs.barrier)
    equal(comm.all_reduce(1), size)
    if some is not None:
        some.close()
    for _ in range(5):
        again = comm.split(0)
        assert again is not None
        again.barrier()
        again.close()


def check_groups_are_independent(comm: Communicator) -> None:
    """What ends a split leaves the group it came from, and its siblings, as they were."""
    part = comm.split(comm.rank % 2)
    twin = comm.split(comm.rank % 2)
    assert part is not None
    assert twin is not None
    if comm.rank in (0, 1):
        part.abort("enough of this")
    comm.barrier()
    for _ in range(2):
        raises(AbortedError, "enough of this", lambda: [part.barrier(), part.barrier()])
    equal(twin.all_reduce(1), twin.size)
    equal(comm.all_reduce(1), comm.size)
    if comm.rank % 2 == 0:
        raises(ValueError, "reduce op", lambda: twin.all_reduce(1, "nothing"))
        if twin.size > 1:
            raises(MismatchError, "rank 1", lambda: twin.all_reduce(np.ones(1 + twin.rank)))
    equal(twin.all_reduce(1), twin.size)
    comm.barrier()
    part.close()
    twin.close()
    for bad in ("red", 1.5):
        raises(TypeError, "", lambda bad=bad: comm.split(bad))  # type: ignore[misc]
        raises(TypeError, "", lambda bad=bad: comm.split(0, bad))  # type: ignore[misc]


GROUPS: list[Check] = [check_attributes, check_split, check_groups_are_independent]
