"""Checks of what moves arrays and objects without combining them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from synk_comm.abc import Communicator

from .steps import MOVES, check, table
from .tools import Check, data, edges, equal, outs_like


def check_barrier(comm: Communicator) -> None:
    """No rank leaves before the last has entered."""
    for turn in range(4):
        time.sleep(0.01 * ((comm.rank + turn) % comm.size))
        entered = time.monotonic()
        comm.barrier()
        left = time.monotonic()
        assert left >= max(comm.all_gather_object(entered))


def check_table(comm: Communicator) -> None:
    for step in table(comm.size):
        for _ in range((step.kind in MOVES) * (3 if step.shapes == ((),) else 1)):
            check(comm, step)


def check_broadcast(comm: Communicator) -> None:
    """A rank that gives None gets new arrays; one that gives an array gets that."""
    for root in range(comm.size):
        for turn, length in enumerate([3, 3, 3, 4, 300_000, 3]):  # repeated, then changed
            values = np.full(length, root + turn)
            mine = values if comm.rank == root else None
            first, second = comm.broadcast(mine, root), comm.broadcast(mine, root)
            equal(first, values)
            equal(second, first)
            assert comm.rank == root or not np.may_share_memory(first, second)
            assert comm.rank != root or first is values
            several = None if mine is None else (mine, *[np.array("text")] * 90)
            got = comm.broadcast(several, root)
            assert got is several or type(got) is list
            equal(got[0], values)
            equal(got[90], "text")


def check_gather_out(comm: Communicator) -> None:
    """``out`` may be one array or a list, of any layout; it is ignored where nothing comes."""
    size, ranks, me = comm.size, range(comm.size), comm.rank
    values = data(me, (140_000,), "f4")
    stacked = np.stack([data(rank, (140_000,), "f4") for rank in ranks])
    for out in outs_like(stacked):
        for _ in range(2):
            out[...] = 0
            assert comm.all_gather(values, out=out) is out
            np.testing.assert_array_equal(out, stacked)
    for root in ranks:
        out = np.zeros(stacked.shape, "f4")
        comm.gather(values, root, out=out)
        equal(out, stacked if me == root else np.zeros_like(stacked))
    room = np.zeros((size, 4))
    room[me] = me + 1
    comm.all_gather(room[me], out=room)  # in place
    equal(room, np.repeat(np.arange(1.0, size + 1)[:, None], 4, axis=1))
    if size > 1:
        holes: list[Any] = [np.zeros(2) if rank else None for rank in ranks]
        got = comm.all_gather(np.ones(2) if me else None, out=holes)
        assert got[0] is None
        assert all((out == 1).all() for out in holes[1:])


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


def check_dealt(comm: Communicator) -> None:
    """Arrays that are dealt out may be overwritten where they lie; numbers are scalars."""
    size, me = comm.size, comm.rank
    x = np.arange(size * 4.0).reshape(size, 4) + 100 * me
    expected = np.stack([np.arange(4.0) + 4 * me + 100 * source for source in range(size)])
    for out in outs_like(x):
        comm.all_to_all(x, out=out)
        np.testing.assert_array_equal(out, expected)
    comm.all_to_all(x, out=x)  # in place
    equal(x, expected)
    for root in range(size):
        rows = data(root, (size, 4, 3), ">f4")
        mine = rows[me].copy()
        row = np.zeros((4, 3), ">f4") if me != root else rows[(root + 1) % size]
        comm.scatter(rows if me == root else None, root, out=row)
        equal(row, mine)
    equal(comm.scatter(list(range(size)) if me == 0 else None), np.array(me))


MOVE: list[Check] = [
    check_barrier,
    check_table,
    check_broadcast,
    check_dealt,
    check_gather_out,
    check_move_lengths,
    check_objects,
]
