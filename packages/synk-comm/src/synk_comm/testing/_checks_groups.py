"""Checks of what a communicator makes: smaller groups, and symmetric arrays."""

# ruff: noqa: S101, PT017 - asserts are how a test speaks

from __future__ import annotations

from typing import Any

import numpy as np

from synk_comm.abc import Communicator
from synk_comm.exceptions import AbortedError, ClosedError, CommError, MismatchError

from ._checks_tools import Check, data, equal, equal_reduced, folded, raises


def check_attributes(comm: Communicator) -> None:
    """A communicator says who it is, what carries it, and why."""
    assert type(comm.rank) is int
    assert 0 <= comm.rank < comm.size
    assert comm.all_gather_object(comm.rank) == list(range(comm.size))
    assert type(comm.backend) is str
    assert type(comm.why) is str
    assert len(comm.why) > 5
    assert f"rank {comm.rank} of {comm.size}" in repr(comm)
    assert "open" in repr(comm)


def _use(group: Communicator) -> None:
    """Do a little of everything in a group."""
    size, rank = group.size, group.rank
    for _ in range(3):
        equal(group.all_reduce(np.full(5, rank)), np.full(5, size * (size - 1) // 2))
        x = np.full(300_001, rank + 1.0)
        group.all_reduce(x, out=x)
        equal(x, np.full(300_001, size * (size + 1) / 2))
    assert group.all_gather_object(rank) == list(range(size))
    group.send(np.array(rank), (rank + 1) % size)
    equal(group.recv((rank - 1) % size), (rank - 1) % size)
    y = group.empty(5, "f4")
    y[...] = rank
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
    # All of them at once, in turn.
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


def check_empty(comm: Communicator) -> None:
    """The arrays of ``empty`` are ordinary ones, of every shape and dtype, also after reuse."""
    size = comm.size
    shapes: list[Any] = [3, (), (0,), (2, 0), (4, 5), np.int32(2), [7, 2]]
    for shape in shapes:
        for dtype in (float, "f4", ">i4", "?", "U3", "M8[s]", [("a", "i1"), ("b", "f8")]):
            x = comm.empty(shape, dtype)
            assert type(x) is np.ndarray
            assert x.dtype == np.dtype(dtype)
            assert x.shape == np.empty(shape).shape
            assert x.flags.c_contiguous
            assert x.flags.writeable
            x[...] = data(comm.rank, x.shape, dtype)
            for rank, got in enumerate(comm.all_gather(x)):
                equal(got, data(rank, x.shape, dtype))
            comm.broadcast(x, size - 1)
            equal(x, data(size - 1, x.shape, dtype))
    for bad in (-1, "three", (2, -1), 2.5):
        try:
            comm.empty(bad)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
        raise AssertionError(f"shape {bad!r} was taken")
    raises(TypeError, "", lambda: comm.empty(3, object))
    if size > 1:
        odd = comm.rank > 0
        raises(MismatchError, "rank 1", lambda: comm.empty(4 if odd else 3))
        raises(MismatchError, "rank 1", lambda: comm.empty(3, "f8" if odd else "f4"))
    equal(comm.all_reduce(1), size)


def check_reduce_in_place(comm: Communicator) -> None:
    """Symmetric arrays, whole or in part, are reduced in place like others."""
    size, rank = comm.size, comm.rank
    long = {"f4": 300_001, "f2": 150_001, "i1": 300_001, ">f8": 70_001, "g": 40_001}
    for dtype, longest in long.items():
        for length in (10, longest):
            parts = [np.full(length, r % 3 + 1, dtype) for r in range(size)]
            x = comm.empty(length, dtype)
            for op in ("sum", "max", "avg"):
                if op == "avg" and dtype == "i1":
                    continue
                x[...] = parts[rank]
                assert comm.all_reduce(x, op, out=x) is x
                equal(x, folded(parts, op))
            x[...] = parts[rank]
            middle = x[length // 5 : length - 3]
            assert comm.all_reduce(middle, out=middle) is middle
            equal(x[: length // 5], parts[rank][: length // 5])
            equal(middle, folded(parts, "sum")[length // 5 : length - 3])
            equal(x[length - 3 :], parts[rank][length - 3 :])
    x = comm.empty((300, 1000))
    x[...] = parts_of = data(rank, (300, 1000), float)
    whole = folded([data(r, (300, 1000), float) for r in range(size)], "sum")
    for view in (x[::2], x[:, 5:900], x.T):
        x[...] = parts_of
        comm.all_reduce(view, out=view)
    equal_reduced(comm, x, whole)
    x[...] = parts_of
    comm.all_reduce(x, "avg", weight=rank + 1.0, out=x)
    exact = np.average([data(r, (300, 1000), float) for r in range(size)], 0, np.arange(size) + 1)
    np.testing.assert_allclose(x, exact, rtol=1e-13)
    x[...] = parts_of
    out = np.zeros((300, 1000))
    comm.all_reduce(x, out=out)
    equal_reduced(comm, out, whole)
    equal(x, parts_of)
    comm.all_reduce([x, out], out=[x, out])
    equal_reduced(comm, x, whole)


def check_mixed_memory(comm: Communicator) -> None:
    """It is no matter who brings a symmetric array, who an ordinary one, and who nothing."""
    size, rank = comm.size, comm.rank
    length = 200_003
    parts = [data(r, (length,), "f4") for r in range(size)]
    expected = folded(parts, "sum")
    first, second = comm.empty(length, "f4"), comm.empty(length + 64, "f4")
    for turn in range(2 * size):
        for x in (first, second[64:], second[:length], parts[rank].copy()):
            mine = x if turn % size == rank else parts[rank].copy()
            mine[...] = parts[rank]
            comm.all_reduce(mine, out=mine)
            equal_reduced(comm, mine, expected)
            offset = second[turn % size if rank == 0 else 0 :][:length]  # not the same part
            offset[...] = parts[rank]
            comm.all_reduce(offset, out=offset)
            equal_reduced(comm, offset, expected)
    if size > 1:
        for quiet in range(size):
            first[...] = parts[rank]
            comm.all_reduce(None if rank == quiet else first, out=first)
            equal(first, folded([p for r, p in enumerate(parts) if r != quiet], "sum"))
            first[...] = np.nan if rank == quiet else parts[rank]
            comm.all_reduce(first, "avg", weight=float(rank != quiet), out=first)
            equal(first, folded([p for r, p in enumerate(parts) if r != quiet], "avg"))


def check_memory_is_used_again(comm: Communicator) -> None:
    """What all ranks have dropped may be handed out again, and nothing else."""
    rank = comm.rank
    kept = comm.empty(70_000)
    kept[...] = rank
    for turn in range(9):
        x = comm.empty(70_000 - turn)
        x[...] = -1.0
        if turn % 3 == rank % 3:
            late = x[5:]  # a view keeps it alive, on some ranks
            late[...] = turn
            del x
            y = comm.empty(70_000 - turn)
            y[...] = -2.0
            comm.barrier()
            assert (late == turn).all()
            del late, y
        else:
            del x
            comm.empty(70_000 - turn)[...] = -3.0
            comm.barrier()
    assert (kept == rank).all()
    comm.all_reduce(kept, out=kept)
    equal(kept, np.full(70_000, comm.size * (comm.size - 1) / 2))


def check_too_much_memory(comm: Communicator) -> None:
    """Memory that cannot be had is refused on all ranks, and does no harm."""
    try:
        comm.empty((1 << 40, 1 << 40), "u1")
    except (MemoryError, ValueError, CommError) as exc:
        assert not isinstance(exc, AbortedError), exc
    else:
        raise AssertionError("more memory was given than there can be")
    equal(comm.all_reduce(1), comm.size)


GROUPS: list[Check] = [
    check_attributes,
    check_split,
    check_groups_are_independent,
    check_empty,
    check_reduce_in_place,
    check_mixed_memory,
    check_memory_is_used_again,
    check_too_much_memory,
]
