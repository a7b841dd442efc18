"""Checks of mistakes: calls that differ between ranks, are wrong by themselves, or declined."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from synk_comm.abc import Communicator
from synk_comm.exceptions import CommError, MismatchError, PeerDeclined

from .tools import Check, equal, raises


def _disagreements(comm: Communicator) -> list[Callable[[], Any]]:
    """Return calls in which the last rank differs from the others, in every way there is."""
    size, rank = comm.size, comm.rank
    odd = rank == size - 1
    x, y = np.ones(4, "f4"), np.ones(5, "f4")
    i = x.astype("i4")
    big = np.ones(300_000, "f4")
    wrong = np.zeros((size, 7), "f4")

    def rows(dtype: str, length: int) -> list[Any]:
        """Return where to gather, with another kind of array for what comes from rank 0."""
        return [np.zeros(length, dtype), *np.zeros((size - 1, 4), "f4")]

    return [
        lambda: comm.all_reduce(y if odd else x),
        lambda: comm.all_reduce(i if odd else x),
        lambda: comm.all_reduce(x.astype(">f4") if odd else x),
        lambda: comm.all_reduce(x, "max" if odd else "sum"),
        lambda: comm.all_reduce([x] if odd else x),
        lambda: comm.all_reduce([x, y] if odd else [x, x]),
        lambda: comm.all_reduce(big if odd else x),
        lambda: comm.all_reduce(None, out=np.zeros(3, "f4")) if odd else comm.all_reduce(x),
        lambda: comm.barrier() if odd else comm.all_reduce(x),
        lambda: comm.reduce(x) if odd else comm.all_reduce(x),
        lambda: comm.reduce(x, root=int(odd)),
        lambda: comm.reduce_scatter(np.ones(2 * size if odd else size)),
        lambda: comm.reduce_scatter([x] * size if odd else np.ones((size, 4), "f4")),
        lambda: comm.reduce_scatter([y if odd else x] * size),
        lambda: comm.broadcast(np.zeros(5) if odd else np.zeros(4)),
        lambda: comm.broadcast(np.zeros(4, "f4") if odd else np.zeros(4)),
        lambda: comm.broadcast(np.zeros(4), int(odd)),
        lambda: comm.broadcast([x] if odd else x),
        # Who gives None agrees with every root, but not with every call, and hides no other rank.
        lambda: comm.broadcast(x if rank == int(odd) else None, int(odd)),
        lambda: comm.barrier() if odd else comm.broadcast(x if rank == 0 else None),
        lambda: comm.broadcast(y if odd else x if rank == 0 else None),
        lambda: comm.gather(np.zeros((1, 4)) if odd else np.zeros(4)),
        lambda: comm.gather(x, int(odd)),
        lambda: comm.all_gather(np.zeros(4, "f4") if odd else np.zeros(4)),
        lambda: comm.all_gather(None if odd else x, out=wrong if odd else None),
        lambda: comm.all_gather(x, out=rows("f4", 3) if odd else None),
        lambda: comm.all_gather(x, out=rows("f4", 3 if odd else 4)),
        lambda: comm.all_gather(x, out=[None, *rows("f4", 4)[1:]] if odd else rows("f4", 4)),
        lambda: comm.all_gather(None if odd else x, out=np.zeros((size, 4), "f4")),
        lambda: comm.scatter([x] * size if rank == int(odd) else None, int(odd)),
        lambda: comm.scatter([x] * size if rank == 0 else None, out=y.copy() if odd else None),
        lambda: comm.all_to_all([i if odd else x] * size),
        lambda: comm.all_to_all([x] * size, out=wrong if odd else None),
        lambda: comm.all_gather_object(1) if odd else comm.gather_object(1),
        lambda: comm.all_to_all_object([1] * size) if odd else comm.all_to_all([x] * size),
        lambda: comm.split(0) if odd else comm.barrier(),
    ]


def check_mismatches(comm: Communicator) -> None:
    """Every kind of disagreement is raised on all ranks, names all calls, and does no harm."""
    if comm.size == 1:
        return
    for number, call in enumerate(_disagreements(comm)):
        try:
            error = raises(MismatchError, f"rank {comm.size - 1}:", call)
        except AssertionError as exc:
            raise AssertionError(f"disagreement number {number}: {exc}") from exc
        assert {ValueError, CommError} < set(type(error).__mro__)
        assert list(error.calls) == list(range(comm.size)), number
        assert (comm.raised(error), comm.raised(MismatchError(""))) == (True, False)
        for rank, said in error.calls.items():
            assert f"rank {rank}: {said}" in str(error), number
        equal(comm.all_reduce(np.ones(4, "f4")), np.full(4, comm.size, "f4"))


def check_nothing_is_written(comm: Communicator) -> None:
    """A call that fails on all ranks leaves every array as it was."""
    if comm.size == 1:
        return
    size, odd = comm.size, comm.rank == comm.size - 1
    for length in (4, 200_000):
        x = np.full(length + odd, comm.rank + 7.0)
        before = x.copy()
        rows = np.full((size, length), 5.0)
        lists = [np.full(length, 5.0) for _ in range(size)]
        raises(MismatchError, "", lambda: comm.all_reduce(x, out=x))  # noqa: B023
        raises(MismatchError, "", lambda: comm.broadcast(x))  # noqa: B023
        raises(MismatchError, "", lambda: comm.all_reduce([x, x], out=[x, x]))  # noqa: B023
        y = x[:length]
        dest = rows if not odd else np.full((size, length + 1), 5.0)
        raises(
            MismatchError,
            "out of rank",
            lambda: comm.all_to_all(np.ones((size, length)), out=dest),  # noqa: B023
        )
        raises(
            MismatchError,
            "",
            lambda: comm.all_gather(y[None] if odd else y, out=rows[:, None] if odd else lists),  # noqa: B023
        )
        equal(x, before)
        assert (dest == 5).all()
        assert (rows == 5).all()
        assert all((row == 5).all() for row in lists)


def _calls(comm: Communicator, x: Any) -> list[Callable[[], Any]]:
    size, first = comm.size, comm.rank == 0
    return [
        comm.barrier,
        lambda: comm.all_reduce(x, out=x),
        lambda: comm.all_reduce([x, x, np.ones(200_000)]),
        lambda: comm.reduce(x, out=x),
        lambda: comm.reduce_scatter([x] * size, out=x),
        lambda: comm.broadcast(x, comm.size - 1),
        lambda: comm.broadcast([x], comm.size - 1),
        lambda: comm.scatter([x] * size if first else None, out=x),
        lambda: comm.gather(x),
        lambda: comm.all_gather(x, out=[x] * size),
        lambda: comm.all_gather([x]),
        lambda: comm.all_to_all([x] * size, out=[x] * size),
        lambda: comm.broadcast_object("said"),
        lambda: comm.gather_object("said"),
        lambda: comm.all_gather_object("said"),
        lambda: comm.scatter_object([1] * size if first else None),
        lambda: comm.all_to_all_object([1] * size),
        lambda: comm.split(0),
    ]


def check_decline(comm: Communicator) -> None:
    """A rank may pass any collective; peers learn why before anything is written."""
    if comm.size == 1:
        assert comm.decline("alone") == {}
        return
    small = np.full(3, comm.rank - 4.0)
    large = np.full(400_000, comm.rank - 4.0)
    turn = 0
    for x in (small, large):
        before = x.copy()
        for call in _calls(comm, x):
            who = turn % comm.size
            if comm.rank == who:
                assert comm.decline(f"turn {turn}") == {}
            else:
                error = raises(PeerDeclined, f"turn {turn}", call)
                assert error.reasons == {who: f"turn {turn}"}
            equal(x, before)
            turn += 1
        equal(comm.all_reduce(np.ones(2)), np.full(2, float(comm.size)))
    if comm.rank < comm.size - 1:
        others = comm.decline(f"from {comm.rank}")
        assert others == {r: f"from {r}" for r in range(comm.size - 1) if r != comm.rank}
    else:
        error = raises(PeerDeclined, "from 0", comm.barrier)
        assert error.reasons == {r: f"from {r}" for r in range(comm.size - 1)}


def check_long_reasons(comm: Communicator) -> None:
    """The middle of a long reason is cut out; what cannot be encoded does not break it."""
    for reason in ("\N{SNOWMAN}" * 20_000, "x" * 100_000, "", "\udcff broken", "a\0b\n\"'"):
        others = comm.decline(reason)
        assert sorted(others) == [rank for rank in range(comm.size) if rank != comm.rank]
        assert all(said[:1] == reason[:1] or "\udcff" in reason for said in others.values())
    equal(comm.all_reduce(1), comm.size)


def check_bad_arguments(comm: Communicator) -> None:
    size, rank = comm.size, comm.rank
    x = np.ones(3)
    fixed = np.ones(3)
    fixed.flags.writeable = False
    mixed = [x] * (size - 1) + [np.ones(3, "i4")]
    nothing: Any = None
    record: Any = {"loss": 1.0}
    bad: list[tuple[type[BaseException], str, Callable[[], Any]]] = [
        (ValueError, "unknown reduce op", lambda: comm.all_reduce(x, "mean")),
        (ValueError, "unknown reduce op", lambda: comm.reduce(x, nothing)),
        (ValueError, "root must be", lambda: comm.broadcast(x, size)),
        (ValueError, "root must be", lambda: comm.scatter(None, -1)),
        (ValueError, "root must be", lambda: comm.broadcast_object(1, size)),
        (TypeError, "", lambda: comm.gather(x, "0")),  # type: ignore[arg-type]
        (TypeError, "cannot average", lambda: comm.all_reduce(np.ones(3, int), "avg")),
        (TypeError, "cannot average", lambda: comm.reduce_scatter(np.ones(size, int), "avg")),
        (TypeError, "numeric", lambda: comm.all_reduce(np.array(["a"]))),
        (TypeError, "numeric", lambda: comm.reduce(np.zeros(2, "i4,f4"))),
        (TypeError, "of a dict give list(d.values())", lambda: comm.all_reduce(record)),
        (TypeError, "got a dict, expected an array", lambda: comm.send(record, rank)),
        (TypeError, "got a dict, expected an array", lambda: comm.all_to_all([record] * size)),
        (TypeError, "objects", lambda: comm.all_gather(np.array([None]))),
        (TypeError, "objects", lambda: comm.broadcast(np.zeros(2, [("a", "O")]))),
        (TypeError, "objects", lambda: comm.send(np.array([None]), rank)),
        (ValueError, "out must be like", lambda: comm.all_reduce(x, out=np.zeros(4))),
        (ValueError, "out must be like", lambda: comm.reduce(x, root=rank, out=np.zeros(4))),
        (ValueError, "out must be", lambda: comm.all_reduce([x, x], out=[x])),
        (ValueError, "out must be", lambda: comm.all_reduce([x, x], out=x)),
        (TypeError, "ndarray", lambda: comm.all_reduce([x, x], out=[x, None])),
        (ValueError, "writeable", lambda: comm.all_reduce(x, out=fixed)),
        (ValueError, "writeable", lambda: comm.recv(rank, out=fixed)),
        (ValueError, "writeable", lambda: comm.all_gather(x, out=[fixed] * size)),
        (TypeError, "ndarray", lambda: comm.all_reduce(x, out=[0, 0, 0])),
        (TypeError, "ndarray", lambda: comm.all_gather(x, out="room")),
        (TypeError, "ndarray", lambda: comm.recv(rank, out=[0])),  # type: ignore[arg-type]
        (ValueError, "", lambda: comm.all_gather(x, out=[x] * (size + 1))),
        (ValueError, "first axis", lambda: comm.all_gather(x, out=np.zeros((size + 1, 3)))),
        (ValueError, "list", lambda: comm.all_gather([x], out=np.zeros((size, 3)))),
        (
            ValueError,
            "first axis",
            lambda: comm.all_to_all([x] * size, out=np.zeros((size + 1, 3))),
        ),
        (ValueError, "only meaningful", lambda: comm.all_reduce(x, weight=2.0)),
        (ValueError, "only meaningful", lambda: comm.reduce_scatter([x] * size, weight=2.0)),
        (ValueError, "not negative", lambda: comm.all_reduce(x, "avg", weight=-1.0)),
        (ValueError, "finite", lambda: comm.all_reduce(x, "avg", weight=float("nan"))),
        (ValueError, "positive", lambda: comm.reduce_scatter([x] * size, "avg", weight=0.0)),
        (ValueError, "multiple", lambda: comm.reduce_scatter(1.0)),  # type: ignore[arg-type]
        (ValueError, f"{size}", lambda: comm.reduce_scatter([x] * (size + 1))),
        (ValueError, "like x", lambda: comm.reduce_scatter([x] * size, out=np.zeros(4))),
        (ValueError, "timeout_s", lambda: comm.barrier(timeout_s=0)),
        (ValueError, "timeout_s", lambda: comm.recv(rank, timeout_s=0)),
        (ValueError, "timeout_s", lambda: comm.split(0, timeout_s=0)),
        (TypeError, "ndarray", lambda: comm.broadcast([1, 2])),  # type: ignore[list-item]
        (ValueError, f"list of {size}", lambda: comm.scatter([x] * 9, rank)),
        (ValueError, f"list of {size}", lambda: comm.scatter_object([1] * 9, rank)),
        (ValueError, f"list of {size}", lambda: comm.all_to_all([x] * 9)),
        (ValueError, "dest must be", lambda: comm.send(x, size)),
        (ValueError, "source must be", lambda: comm.recv(-1)),
    ]
    for number, (kind, text, call) in enumerate(bad):
        error = raises(kind, text, call)
        assert not isinstance(error, CommError), number
    if size > 1:
        odd_one_out: list[Callable[[], Any]] = [
            lambda: comm.scatter(mixed, rank),
            lambda: comm.all_to_all(mixed),
            lambda: comm.reduce_scatter(mixed),
            lambda: comm.reduce_scatter(np.ones(size + 1)),
        ]
        for call in odd_one_out:
            error = raises((TypeError, ValueError), "", call)
            assert not isinstance(error, CommError), error
    if rank != size - 1:
        raises(ValueError, "writeable", lambda: comm.broadcast(fixed, size - 1))
        raises(ValueError, "writeable", lambda: comm.broadcast([x, fixed], size - 1))
        where = f"on rank {rank}, it is where the array of rank {size - 1} goes, got "
        raises(TypeError, f"{where}dict", lambda: comm.broadcast(record, size - 1))
        raises(TypeError, f"{where}int", lambda: comm.broadcast([x, 2], size - 1))  # type: ignore[list-item]
        raises(ValueError, "only the root", lambda: comm.scatter([x] * size, size - 1))
        raises(ValueError, "only the root", lambda: comm.scatter_object([1] * size, size - 1))
    else:
        raises(TypeError, f"on the root, rank {rank}, got None", lambda: comm.broadcast(None, rank))
    comm.barrier()


ERRORS: list[Check] = [
    check_mismatches,
    check_nothing_is_written,
    check_decline,
    check_long_reasons,
    check_bad_arguments,
]
