"""Checks of what moves arrays and objects without combining them."""

# ruff: noqa: S101 - asserts are how a test speaks

from __future__ import annotations

import time
from typing import Any

import numpy as np

from synk_comm._core.ops import Array
from synk_comm.abc import Communicator

from ._checks_tools import (
    ANYTHING,
    SHAPES,
    Check,
    data,
    edges,
    equal,
    layouts,
    outs_like,
)


def check_barrier(comm: Communicator) -> None:
    """No rank leaves before the last has entered."""
    for turn in range(4):
        time.sleep(0.01 * ((comm.rank + turn) % comm.size))
        entered = time.monotonic()
        comm.barrier()
        left = time.monotonic()
        assert left >= max(comm.all_gather_object(entered))


def check_broadcast(comm: Communicator) -> None:
    """Any dtype, shape and layout arrives, in place; the root's may be read-only."""
    for which, dtype in enumerate(ANYTHING):
        for shape in SHAPES:
            root = which % comm.size
            values = data(root, shape, dtype)
            x = data(comm.rank, shape, dtype) if comm.rank == root else np.zeros(shape, dtype)
            assert comm.broadcast(x, root) is x
            equal(x, values)
    for root in range(comm.size):
        values = data(root, (30, 7), "f4")
        sources = list(layouts(values))
        for source in sources:
            for x in outs_like(values):
                mine = source if comm.rank == root else x
                assert comm.broadcast(mine, root) is mine
                np.testing.assert_array_equal(mine, values)
        for x in (np.zeros((300, 700), order="F"), np.zeros((600, 700))[::-2], np.zeros(())):
            x[...] = comm.rank
            assert comm.broadcast(x, root) is x
            assert (x == root).all()


def check_broadcast_lists(comm: Communicator) -> None:
    """A list of arrays of any dtypes and sizes is overwritten in one call."""
    shapes: list[Any] = [((3,), "f4"), ((), "U5"), ((200_001,), "u1"), ((0,), "f8")]
    shapes += [((5, 2), "f4"), ((2,), "M8[s]"), ((90_000,), ">f8"), ((1,), "S3")] + [
        ((4,), ">i2")
    ] * 90
    for root in range(comm.size):
        values = [data(root, shape, dtype) for shape, dtype in shapes]
        x = [np.zeros(v.shape, v.dtype, order="F") for v in values]
        mine = values if comm.rank == root else x
        assert comm.broadcast(mine, root) is mine
        for got, value in zip(mine, values):
            equal(got, value)
    pair = (np.full(2, comm.rank), np.full(3, comm.rank))
    assert comm.broadcast(pair) is pair
    assert not pair[0].any()


def check_broadcast_to_who_has_no_array(comm: Communicator) -> None:
    """None makes new arrays of what the root gives; each rank may choose, call by call."""
    for root in range(comm.size):
        for which, dtype in enumerate(ANYTHING):
            for shape in (*SHAPES, (90_000,)) if dtype in ("f4", "U5") else SHAPES:
                values = data(root, shape, dtype)
                if comm.rank == root:
                    assert comm.broadcast(values, root) is values
                    continue
                some = (comm.rank + which) % 3 == 0
                x = np.zeros(shape, dtype) if some else None
                got = comm.broadcast(x, root)
                equal(got, values)
                assert got is x or not shape or (got.flags.writeable and got.flags.c_contiguous)
        for turn, length in enumerate([3, 3, 3, 4, 4, 300_000, 3]):  # repeated, then changed
            mine = np.full(length, root + turn) if comm.rank == root else None
            first, second = comm.broadcast(mine, root), comm.broadcast(mine, root)
            equal(first, np.full(length, root + turn))
            equal(second, first)
            assert (first is second) == (comm.rank == root)
            assert comm.rank == root or not np.may_share_memory(first, second)
        lists = [data(root, (n, 3), dtype) for n in (1, 70_000) for dtype in ("f4", ">i2", "S3")]
        for given in (lists, tuple(lists[:1])):
            for some in (False, comm.rank % 2 == 0):
                room = [np.zeros_like(value) for value in given] if some else None
                got = comm.broadcast(given if comm.rank == root else room, root)
                assert comm.rank == root or (got is room if some else type(got) is list)
                assert len(got) == len(given)
                for array, value in zip(got, given):
                    equal(array, value)


def check_gather(comm: Communicator) -> None:  # noqa: PLR0912 - loops
    """Arrays of any dtype and lengths come in rank order; None for those who gave nothing."""
    ranks = range(comm.size)
    for which, dtype in enumerate(ANYTHING):
        for shape in [(), (2, 0), (3, 2)]:
            expected = [data(rank, shape, dtype) for rank in ranks]
            root = which % comm.size
            everywhere = comm.all_gather(expected[comm.rank])
            there = comm.gather(expected[comm.rank], root)
            assert (there is None) == (comm.rank != root)
            for got in (everywhere, there or everywhere):
                assert type(got) is list
                for array, value in zip(got, expected):
                    equal(array, value)
                    assert not np.may_share_memory(array, expected[comm.rank])
    for scale in (1, 50_000):
        mine = np.full((scale * comm.rank, 2), comm.rank, "i2")
        for rank, got in enumerate(comm.all_gather(mine)):
            equal(got, np.full((scale * rank, 2), rank, "i2"))
        for root in ranks:
            gathered = comm.gather(mine, root)
            for rank, got in enumerate(gathered or []):
                equal(got, np.full((scale * rank, 2), rank, "i2"))
    for x in layouts(data(comm.rank, (4, 5), "f4")):
        for rank, got in enumerate(comm.all_gather(x)):
            equal(got, data(rank, (4, 5), "f4"))
    if comm.size > 1:
        for quiet in ranks:
            some = comm.all_gather(None if comm.rank == quiet else np.array(comm.rank, "M8[s]"))
            for rank, got in enumerate(some):
                assert (got is None) == (rank == quiet)
                assert got is None or got == np.array(rank, "M8[s]")
            there = comm.gather(None if comm.rank == quiet else np.ones(2), quiet)
            assert there is None or there[quiet] is None


def check_gather_out(comm: Communicator) -> None:
    """``out`` may be one array or a list, of any layout; it is ignored where nothing comes."""
    size, ranks = comm.size, range(comm.size)
    for shape, dtypes in (((), ["f4", "U3"]), ((3, 2), ["f4", "U3", ">i4"]), ((140_000,), ["f4"])):
        for dtype in dtypes:
            values = [data(rank, shape, dtype) for rank in ranks]
            stacked = np.stack(values).astype(dtype)
            for out in outs_like(stacked):
                for _ in range(2):
                    out[...] = np.zeros((), dtype)
                    got = comm.all_gather(values[comm.rank], out=out)
                    np.testing.assert_array_equal(out, stacked)
                    for row, value in zip(got, values):
                        np.testing.assert_array_equal(row, value)
            for root in ranks:
                empty = np.zeros(stacked.shape, dtype)
                out = empty.copy()
                comm.gather(values[comm.rank], root, out=out)
                equal(out, stacked if comm.rank == root else empty)
    lengths = [5 + 3 * rank for rank in ranks]
    mine = np.full(lengths[comm.rank], comm.rank + 1)
    outs = [np.zeros(length, int) for length in lengths]
    got = comm.all_gather(mine, out=outs)
    assert all(a is b for a, b in zip(got, outs))
    for rank, out in enumerate(outs):
        equal(out, np.full(lengths[rank], rank + 1))
    room = np.zeros((size, 4))
    room[comm.rank] = comm.rank + 1
    comm.all_gather(room[comm.rank], out=room)  # in place
    equal(room, np.repeat(np.arange(1.0, size + 1)[:, None], 4, axis=1))
    if size > 1:
        holes: list[Any] = [np.zeros(2) if rank else None for rank in ranks]
        got = comm.all_gather(np.ones(2) if comm.rank else None, out=holes)
        assert got[0] is None
        assert all((out == 1).all() for out in holes[1:])
        root = size - 1
        ignored: Any = holes if comm.rank == root else "nothing"
        comm.gather(np.full(2, 2.0) if comm.rank else None, root, out=ignored)
        assert all((out == 1 + (comm.rank == root)).all() for out in holes[1:])


def check_gather_lists(comm: Communicator) -> None:
    """A list gives a list of lists: for each array those of all ranks."""
    ranks = range(comm.size)

    def make(rank: int) -> list[Array]:
        return [
            data(rank, (rank, 2), "f4"),
            data(rank, (), "M8[s]"),
            data(rank, (70_000 * (rank % 2) + 1,), ">i4"),
            data(rank, (3,), "S3"),
        ]

    lists = [make(rank) for rank in ranks]
    root = comm.size - 1
    for got in (comm.all_gather(lists[comm.rank]), comm.gather(tuple(lists[comm.rank]), root)):
        if got is None:
            assert comm.rank != root
            continue
        assert len(got) == 4
        for which, arrays in enumerate(got):
            assert len(arrays) == comm.size
            for rank, array in enumerate(arrays):
                equal(array, lists[rank][which])
    if comm.size > 1:
        some = comm.all_gather(None if comm.rank == 1 else lists[comm.rank])
        assert [arrays[1] for arrays in some] == [None] * 4
        for which, arrays in enumerate(some):
            equal(arrays[0], lists[0][which])


def check_scatter(comm: Communicator) -> None:
    """Each rank gets its own array of the root's list, of any shape and layout."""
    lists = [
        [data(rank, (rank, columns), dtype) for rank in range(comm.size)]
        for dtype, columns in (("f8", 30_000), ("U2", 3), ("?", 70_000))
    ]
    for root in range(comm.size):
        for xs in lists:
            got = comm.scatter(xs if comm.rank == root else None, root)
            equal(got, xs[comm.rank])
            assert got.flags.writeable
            assert not np.may_share_memory(got, xs[comm.rank])
        table = data(root, (comm.size, 4, 3), ">f4")
        for way in list(layouts(table)):
            got = comm.scatter(way if comm.rank == root else None, root)
            equal(got, table[comm.rank])
        for out in outs_like(table[0]):
            got = comm.scatter(table if comm.rank == root else None, root, out=out)
            assert got is out
            np.testing.assert_array_equal(out, table[comm.rank])
        row = np.zeros((4, 3), ">f4") if comm.rank != root else table[(root + 1) % comm.size]
        mine = table[comm.rank].copy()
        comm.scatter(table if comm.rank == root else None, root, out=row)
        equal(row, mine)
    zero = comm.scatter(list(range(comm.size)) if comm.rank == 0 else None)
    equal(zero, np.array(comm.rank))


def check_all_to_all(comm: Communicator) -> None:
    """Rank r gets the r-th array of every rank, whatever their lengths."""
    size, me = comm.size, comm.rank
    ranks = range(size)
    for dtype in ANYTHING:
        table = [data(rank, (size, 3), dtype) for rank in ranks]
        for rank, got in enumerate(comm.all_to_all(table[me])):
            equal(got, table[rank][me])
    for scale in (1, 40_000):
        xs = [np.full((scale * ((me + dest) % 3), 2), 10 * me + dest) for dest in ranks]
        for source, got in enumerate(comm.all_to_all(xs)):
            equal(got, np.full((scale * ((me + source) % 3), 2), 10 * source + me))
        outs = [np.zeros((scale * ((me + source) % 3), 2), int) for source in ranks]
        given = comm.all_to_all(xs, out=outs)
        assert all(a is b for a, b in zip(given, outs))
        for source, got in enumerate(outs):
            equal(got, np.full((scale * ((me + source) % 3), 2), 10 * source + me))
    x = np.arange(size * 4.0).reshape(size, 4) + 100 * me
    expected = np.stack([np.arange(4.0) + 4 * me + 100 * source for source in ranks])
    for out in outs_like(x):
        comm.all_to_all(x, out=out)
        np.testing.assert_array_equal(out, expected)
    comm.all_to_all(x, out=x)  # in place
    equal(x, expected)


def check_move_lengths(comm: Communicator) -> None:
    """Arrays of any length, around those where they are cut up, arrive to the last byte."""
    for which, nbytes in enumerate(edges(comm.size)):
        root = which % comm.size
        values = np.arange(nbytes, dtype="u4").astype("u1")
        x = values.copy() if comm.rank == root else np.zeros(nbytes, "u1")
        assert np.array_equal(comm.broadcast(x, root), values), nbytes
        mine = values + np.uint8(comm.rank)
        if which % 3 == 0:
            for rank, got in enumerate(comm.all_gather(mine)):
                assert np.array_equal(got, values + np.uint8(rank)), nbytes
        elif which % 3 == 1:
            for rank, got in enumerate(comm.gather(mine[comm.rank :], root) or []):
                assert np.array_equal(got, (values + np.uint8(rank))[rank:]), nbytes
        else:
            xs = [values[dest:] + np.uint8(comm.rank) for dest in range(comm.size)]
            for rank, got in enumerate(comm.all_to_all(xs)):
                assert np.array_equal(got, values[comm.rank :] + np.uint8(rank)), nbytes
            dealt = comm.scatter(xs if comm.rank == root else None, root)
            assert np.array_equal(dealt, values[comm.rank :] + np.uint8(root)), nbytes


def check_objects(comm: Communicator) -> None:
    """Small Python objects travel as arrays do."""
    ranks = list(range(comm.size))
    for root in ranks:
        mine = {"root": comm.rank}
        got = comm.broadcast_object(mine, root)
        assert got == {"root": root}
        assert (got is mine) == (comm.rank == root)
        gathered = comm.gather_object("x" * comm.rank, root)
        assert gathered == (["x" * rank for rank in ranks] if comm.rank == root else None)
        dealt = comm.scatter_object([(r,) for r in ranks] if comm.rank == root else None, root)
        assert dealt == (comm.rank,)
    assert comm.broadcast_object() is None
    assert comm.all_gather_object(None) == [None] * comm.size
    long = bytes(600_000 * (comm.rank % 2)) + bytes([comm.rank])
    assert [theirs[-1] for theirs in comm.all_gather_object(long)] == ranks
    swapped = comm.all_to_all_object([(comm.rank, to, "x" * to) for to in ranks])
    assert swapped == [(source, comm.rank, "x" * comm.rank) for source in ranks]


MOVE: list[Check] = [
    check_barrier,
    check_broadcast,
    check_broadcast_lists,
    check_broadcast_to_who_has_no_array,
    check_gather,
    check_gather_out,
    check_gather_lists,
    check_scatter,
    check_all_to_all,
    check_move_lengths,
    check_objects,
]
