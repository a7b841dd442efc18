"""Checks of send and recv, and of their twins for objects."""

# ruff: noqa: PT017 - what is raised is looked at

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np

from synk_comm._core.fabric import piece_bytes
from synk_comm.abc import Communicator
from synk_comm.exceptions import CommTimeout, MismatchError

from .steps import Step, check
from .tools import ANYTHING, Check, equal, raises


def ring(comm: Communicator) -> tuple[int, int]:
    """Return who this rank sends to, and whom it receives from: itself if it is alone."""
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def check_long_letters(comm: Communicator) -> None:
    """Arrays longer than the channel pass from rank to rank, to the last byte."""
    dest, source = ring(comm)
    piece = piece_bytes(comm.size)
    for nbytes in (piece - 1, piece, piece + 1, 5 * piece + 3):
        values = np.arange(nbytes, dtype="u4").astype("u1")
        out = np.zeros(nbytes, "u1")
        for rank in range(comm.size):  # one after the other: a ring of waiting senders is stuck
            if comm.rank == rank:
                comm.send(values + np.uint8(rank), dest)
            if comm.rank == (rank + 1) % comm.size:
                got = comm.recv(source, out=out) if nbytes % 2 else comm.recv(source)
                assert np.array_equal(got, values + np.uint8(source))


def check_tags(comm: Communicator) -> None:
    """Tags may be asked for in any order; within a tag the order is kept."""
    dest, source = ring(comm)
    comm.send(np.array(1), dest, tag=np.int64(2**40))  # type: ignore[arg-type]
    comm.send(np.array(2), dest, tag=3)
    equal(comm.recv(source, tag=3), 2)
    equal(comm.recv(source, tag=2**40), 1)
    for kept in range(20):
        comm.send(np.array(kept), comm.rank, tag=kept % 2)
    for tag in (1, 0):
        got = [int(comm.recv(comm.rank, tag=tag)) for _ in range(10)]
        assert got == list(range(tag, 20, 2))
    x = np.ones(3)
    for bad in (-1, "a", 1.5, None):
        for act in (partial(comm.send, x, dest), partial(comm.recv, source)):
            raises((TypeError, ValueError), "", partial(act, tag=bad, timeout_s=0.05))


def check_objects_as_letters(comm: Communicator) -> None:
    dest, source = ring(comm)
    for obj in (None, {"a": (1, 2)}, "x" * 3000):
        comm.send_object((comm.rank, obj), dest, tag=4)
        assert comm.recv_object(source, tag=4) == (source, obj)
    for rank in range(comm.size):
        if comm.rank == rank:
            comm.send_object(b"y" * 2_000_001, dest)
        if comm.rank == (rank + 1) % comm.size:
            assert comm.recv_object(source) == b"y" * 2_000_001


def check_letters_of_every_kind(comm: Communicator) -> None:
    """Any dtype, shape and layout arrives, with and without waiting; small ones wait for nobody."""
    for n, dtype in enumerate(ANYTHING):
        for shape, seed in product([(), (0,), (2, 3)], range(3)):
            out, layout = (n + seed) % 6, (n + 2 * seed) % 7
            check(comm, Step("ring", dtype, (shape,), out=out, layout=layout, seed=seed))
    dest, source = ring(comm)
    x = np.full(3, comm.rank)
    comm.send(x, dest)
    x[...] = -1  # ours again
    got = comm.irecv(source).wait()  # what has come already
    equal(got, np.full(3, source))
    assert got.flags.writeable
    numbers: list[Any] = [[1, 2], 3, 2.5, np.float32(4)]
    for number in numbers:
        gone = comm.isend(number, dest)
        equal(comm.recv(source), np.asarray(number))
        gone.wait()
    got = comm.irecv(source, tag=8)
    assert repr(got) == f"<Request from rank {source}, pending>"
    comm.barrier()
    gone = comm.isend(x, dest, tag=8)
    got.wait()
    gone.wait()
    assert repr(got) == f"<Request from rank {source}, done>"
    assert repr(gone) == f"<Request to rank {dest}, done>"


def check_wrong_out(comm: Communicator) -> None:
    """An ``out`` that does not fit loses the message, on this rank alone."""
    dest, source = ring(comm)
    for out in (np.zeros(4), np.zeros(3, "f4"), np.zeros((3, 1)), np.zeros(3, ">f8")):
        for size in (3, 200_000):
            got = comm.irecv(source, out=out)
            gone = comm.isend(np.full(size, 1.0), dest)
            for call in (got.wait, got.wait, got.test):
                error = raises(MismatchError, f"rank {source} sent", call)
                assert list(error.calls) == [source]
            assert not out.any()
            gone.wait()
            comm.send(np.array(5), dest)
            equal(comm.recv(source), 5)
            if size == 3:
                comm.send(np.full(size, 1.0), dest)
                raises(MismatchError, "sent", lambda: comm.recv(source, out=out))  # noqa: B023


def check_letter_timeouts(comm: Communicator) -> None:
    """A receiver that waits in vain names the sender; nothing breaks, and it can wait again."""
    dest, source = ring(comm)
    for tag in (0, 3):
        error = raises(
            CommTimeout,
            f"{source}",
            lambda: comm.recv(source, tag=tag, timeout_s=0.1),  # noqa: B023
        )
        assert list(error.missing) == [source]
        got = comm.irecv(source, tag=tag)
        assert not got.test()
        for _ in range(2):
            raises(CommTimeout, f"{source}", lambda: got.wait(0.05))  # noqa: B023
        raises(ValueError, "positive", lambda: got.wait(0))  # noqa: B023
        comm.barrier()
        comm.send(np.array([comm.rank, tag]), dest, tag=tag)
        equal(got.wait(), [source, tag])
    comm.barrier()
    comm.send(np.zeros(2), dest, tag=1)
    comm.barrier()
    raises(CommTimeout, f"{source}", lambda: comm.recv(source, tag=2, timeout_s=0.1))
    equal(comm.recv(source, tag=1), np.zeros(2))
    if comm.size > 1:
        sent = 0
        try:  # until the channel is full: what was begun goes through, the next is not begun
            while sent < 100_000:
                comm.send(np.array(sent), dest, timeout_s=0.1)
                sent += 1
        except CommTimeout as exc:
            assert list(exc.missing) == [dest]
        comm.barrier()
        counts = comm.all_gather_object(sent)
        got = [int(comm.recv(source)) for _ in range(counts[source])]
        assert got == list(range(counts[source]))
        # What was begun is still under way after a wait for it.
        comm.barrier()
        gone = comm.isend(np.zeros(3_000_000), dest)
        error = raises(CommTimeout, f"send to rank {dest}", lambda: gone.wait(0.1))
        assert list(error.missing) == [dest]
        raises(CommTimeout, "", lambda: comm.send(np.array(7), dest, timeout_s=0.05))
        comm.barrier()
        last = comm.isend(np.array(8), dest)
        assert comm.recv(source).shape == (3_000_000,)
        equal(comm.recv(source), 8)
        gone.wait()
        last.wait()
    comm.barrier()


LETTERS: list[Check] = [
    check_letters_of_every_kind,
    check_long_letters,
    check_tags,
    check_wrong_out,
    check_letter_timeouts,
    check_objects_as_letters,
]
