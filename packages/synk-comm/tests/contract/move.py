"""Checks of what moves arrays and objects without combining them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from synk_comm.abc import Communicator

from .tools import (
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
    """Any dtype, shape and layout arrives, in place or, to who gives None, in a new array."""
    for which, dtype in enumerate(ANYTHING):
        for shape in (*SHAPES, (90_000,)) if dtype in ("f4", "U5") else SHAPES:
            root = which % comm.size
            values = data(root, shape, dtype)
            x = values.copy() if comm.rank == root else np.zeros(shape, dtype)
            assert comm.broadcast(x, root) is x
            equal(x, values)
            if comm.rank == root:
                assert comm.broadcast(values, root) is values
                continue
            room = np.zeros(shape, dtype) if (comm.rank + which) % 3 == 0 else None
            got = comm.broadcast(room, root)
            equal(got, values)
            assert got is room or not shape or (got.flags.writeable and got.flags.c_contiguous)
    for root in range(comm.size):
        values = data(root, (30, 7), "f4")
        for source in layouts(values):
            for x in outs_like(values):
                mine = source if comm.rank == root else x
                assert comm.broadcast(mine, root) is mine
                np.testing.assert_array_equal(mine, values)
        for x in (np.zeros((300, 700), order="F"), np.zeros((600, 700))[::-2], np.zeros(())):
            x[...] = comm.rank
            assert comm.broadcast(x, root) is x
            assert (x == root).all()
        for turn, length in enumerate([3, 3, 3, 4, 300_000, 3]):  # repeated, then changed
            mine = np.full(length, root + turn) if comm.rank == root else None
            first, second = comm.broadcast(mine, root), comm.broadcast(mine, root)
            equal(first, np.full(length, root + turn))
            equal(second, first)
            assert comm.rank == root or not np.may_share_memory(first, second)


def check_broadcast_lists(comm: Communicator) -> None:
    """A list of arrays of any dtypes and sizes is overwritten, or made, in one call."""
    shapes: list[Any] = [((3,), "f4"), ((), "U5"), ((200_001,), "u1"), ((0,), "f8")]
    shapes += [((2,), "M8[s]"), ((90_000,), ">f8"), ((1,), "S3")] + [((4,), ">i2")] * 90
    for root in range(comm.size):
        values = [data(root, shape, dtype) for shape, dtype in shapes]
        x = [np.zeros(v.shape, v.dtype, order="F") for v in values]
        for room in (x, tuple(x), None):
            mine = values if comm.rank == root else room
            got = comm.broadcast(mine, root)
            assert got is mine or (room is None and type(got) is list)
            for array, value in zip(got, values):
                equal(array, value)


def check_gather(comm: Communicator) -> None:
    """Arrays of any dtype and lengths come in rank order; None for those who gave nothing."""
    ranks, me = range(comm.size), comm.rank
    for which, dtype in enumerate(ANYTHING):
        for shape in [(), (2, 0), (3, 2)]:
            expected = [data(rank, shape, dtype) for rank in ranks]
            root = which % comm.size
            everywhere = comm.all_gather(expected[me])
            there = comm.gather(expected[me], root)
            assert (there is None) == (me != root)
            for got in (everywhere, there or everywhere):
                assert type(got) is list
                for array, value in zip(got, expected):
                    equal(array, value)
                    assert not np.may_share_memory(array, expected[me])
    for scale in (1, 50_000):
        ragged = [np.full((scale * rank, 2), rank, "i2") for rank in ranks]
        for got in (comm.all_gather(ragged[me]), comm.gather(ragged[me], comm.size - 1)):
            for array, value in zip(got or [], ragged):
                equal(array, value)
    for x in layouts(data(me, (4, 5), "f4")):
        for rank, array in enumerate(comm.all_gather(x)):
            equal(array, data(rank, (4, 5), "f4"))
    for quiet in ranks if comm.size > 1 else ():
        some = comm.all_gather(None if me == quiet else np.array(me, "M8[s]"))
        for rank, array in enumerate(some):
            assert (array is None) == (rank == quiet)
            assert array is None or array == np.array(rank, "M8[s]")
        there = comm.gather(None if me == quiet else np.ones(2), quiet)
        assert there is None or there[quiet] is None


def check_gather_out(comm: Communicator) -> None:
    """``out`` may be one array or a list, of any layout; it is ignored where nothing comes."""
    size, ranks, me = comm.size, range(comm.size), comm.rank
    for shape, dtypes in (((), ["f4", "U3"]), ((3, 2), ["f4", ">i4"]), ((140_000,), ["f4"])):
        for dtype in dtypes:
            values = [data(rank, shape, dtype) for rank in ranks]
            stacked = np.stack(values).astype(dtype)
            for out in outs_like(stacked):
                for _ in range(2):
                    out[...] = np.zeros((), dtype)
                    assert comm.all_gather(values[me], out=out) is out
                    np.testing.assert_array_equal(out, stacked)
            for root in ranks:
                out = np.zeros(stacked.shape, dtype)
                comm.gather(values[me], root, out=out)
                equal(out, stacked if me == root else np.zeros_like(stacked))
    ragged = [np.full(5 + 3 * rank, rank + 1) for rank in ranks]
    outs = [np.zeros_like(values) for values in ragged]
    assert all(a is b for a, b in zip(comm.all_gather(ragged[me], out=outs), outs))
    for out, value in zip(outs, ragged):
        equal(out, value)
    room = np.zeros((size, 4))
    room[me] = me + 1
    comm.all_gather(room[me], out=room)  # in place
    equal(room, np.repeat(np.arange(1.0, size + 1)[:, None], 4, axis=1))
    if size > 1:
        holes: list[Any] = [np.zeros(2) if rank else None for rank in ranks]
        got = comm.all_gather(np.ones(2) if me else None, out=holes)
        assert got[0] is None
        assert all((out == 1).all() for out in holes[1:])


def check_gather_lists(comm: Communicator) -> None:
    """A list gives a list of lists: for each array those of all ranks."""
    kinds = [("f4", 1), ("M8[s]", 2), (">i4", 70_000), ("S3", 3)]
    lists = [
        [data(rank, (n * (rank % 2) + 1, 2), dtype) for dtype, n in kinds]
        for rank in range(comm.size)
    ]
    mine, root = lists[comm.rank], comm.size - 1
    for got in (comm.all_gather(mine), comm.gather(tuple(mine), root)):
        assert (got is None) <= (comm.rank != root)
        for which, arrays in enumerate(got or []):
            for array, theirs in zip(arrays, lists):
                equal(array, theirs[which])
    if comm.size > 1:
        some = comm.all_gather(None if comm.rank == 1 else mine)
        assert [arrays[1] for arrays in some] == [None] * len(kinds)
        equal(some[2][0], lists[0][2])


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
    check_gather,
    check_gather_out,
    check_gather_lists,
    check_scatter,
    check_all_to_all,
    check_move_lengths,
    check_objects,
]
