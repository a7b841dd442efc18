"""The contract as functions of one communicator, to be run on all ranks at the same time.

Expected values come from NumPy, on data that every rank can make for all ranks.
"""

# ruff: noqa: S101 - asserts are how a test speaks

from __future__ import annotations

import time
from typing import Any, Callable

import numpy as np

from synk_comm._ops import Array
from synk_comm.abc import Communicator
from synk_comm.exceptions import MismatchError, PeerDeclined

SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3, 0, 2), (7, 5), (2, 90_001)]
DTYPES = ["f2", "f4", "f8", "g", "c8", "c16", "i1", "u2", "i4", "u8"]


def data(rank: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return one rank's data, the same wherever it is made."""
    rng = np.random.default_rng([rank, len(shape)])
    values = rng.integers(1, 5, shape) + (rng.random(shape) if np.dtype(dtype).kind in "fc" else 0)
    return np.asarray(values, np.dtype(dtype))


def raises(kind: type[BaseException], text: str, call: Callable[[], Any]) -> Any:
    """Return the exception that ``call`` must raise."""
    try:
        call()
    except kind as exc:
        if text not in str(exc):
            raise AssertionError(f"expected {text!r} in: {exc}") from exc
        return exc
    raise AssertionError(f"did not raise {kind.__name__} ({text})")


def equal(got: Any, expected: Any) -> None:
    """Raise unless two arrays have the same dtype, shape and values."""
    expected = np.asarray(expected)
    assert isinstance(got, np.ndarray)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
    assert got.shape == expected.shape


def check_barrier(comm: Communicator) -> None:
    """No rank leaves before the last has entered."""
    time.sleep(0.01 * comm.rank)
    entered = time.monotonic()
    comm.barrier()
    left = time.monotonic()
    assert left >= max(comm.all_gather_object(entered))


def check_reductions(comm: Communicator) -> None:
    """Every op on every dtype and shape is what NumPy computes, in rank order."""
    folds: dict[str, Callable[..., Any]] = {
        "sum": np.add,
        "prod": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
    }
    for dtype in DTYPES:
        for shape in SHAPES if dtype == "f4" else SHAPES[:-1]:
            parts = [data(rank, shape, dtype) for rank in range(comm.size)]
            wide = [part.astype("f4") if dtype == "f2" else part for part in parts]
            for op, fold in folds.items():
                expected = wide[0]
                for part in wide[1:]:
                    expected = np.asarray(fold(expected, part), expected.dtype)
                equal(comm.all_reduce(parts[comm.rank], op), expected.astype(dtype))
            if np.dtype(dtype).kind in "fc":
                expected = np.mean(np.stack(wide), axis=0).astype(dtype)
                got = comm.all_reduce(parts[comm.rank], "avg")
                assert got.dtype == expected.dtype
                np.testing.assert_allclose(got, expected, rtol=4 * float(np.finfo(dtype).eps))


def check_booleans(comm: Communicator) -> None:
    """min is and, max is or; sums and averages of booleans are refused here, not at the peers."""
    x = np.array([True, False, comm.rank == 0])
    equal(comm.all_reduce(x, "min"), [True, False, comm.size == 1])
    equal(comm.all_reduce(x, "max"), [True, False, True])
    for op in ("sum", "prod", "avg"):
        raises(TypeError, "bool", lambda op=op: comm.all_reduce(x, op))  # type: ignore[misc]


def check_reduce_to_root(comm: Communicator) -> None:
    """Only the root gets a result, new or in ``out``."""
    for root in range(comm.size):
        got = comm.reduce(np.full(5, comm.rank), "max", root)
        assert (got is not None) == (comm.rank == root)
        if got is not None:
            equal(got, np.full(5, comm.size - 1))
        out = np.zeros(5)
        got = comm.reduce(np.ones(5), out=out, root=root)
        assert got is (out if comm.rank == root else None)
        equal(out, np.full(5, float(comm.size) if comm.rank == root else 0.0))


def check_in_place_and_out(comm: Communicator) -> None:
    """``out`` may be x, overlap x, or be laid out in any way."""
    total = comm.size * (comm.size + 1) / 2
    big = 150_000  # more than one slot of float64
    x = np.full(big, comm.rank + 1.0)
    assert comm.all_reduce(x, out=x) is x
    equal(x, np.full(big, total))
    x = np.full(big, comm.rank + 1.0)
    comm.all_reduce(x, "avg", weight=comm.rank + 1.0, out=x)
    weights = np.arange(1.0, comm.size + 1)
    np.testing.assert_allclose(x, np.full(big, np.average(weights, weights=weights)), rtol=1e-14)
    store = np.full(big + 1, comm.rank + 1.0)
    comm.all_reduce(store[:-1], out=store[1:])
    equal(store[1:], np.full(big, total))
    out = np.zeros((40, 30), order="F")
    strided = np.ones((40, 60))[:, ::2]
    assert comm.all_reduce(strided, out=out) is out
    equal(out, np.full((40, 30), float(comm.size)))


def check_who_contributes(comm: Communicator) -> None:
    """None and weight 0 contribute nothing, and receive all the same."""
    last = comm.size - 1
    nan = np.full(4, np.nan)
    mine = np.arange(4.0) if comm.rank == last else None
    equal(comm.all_reduce(mine), np.arange(4.0))
    out = np.zeros(4)
    comm.all_reduce(mine, "avg", out=out)
    equal(out, np.arange(4.0))
    weighted = nan if mine is None else mine
    equal(comm.all_reduce(weighted, "avg", weight=float(comm.rank == last)), np.arange(4.0))
    everybody_none = raises(MismatchError, "no rank contributes", lambda: comm.all_reduce(None))
    assert list(everybody_none.calls) == list(range(comm.size))
    raises(MismatchError, "no rank contributes", lambda: comm.gather(None))
    raises(MismatchError, "no rank", lambda: comm.all_reduce(nan, "avg", weight=0.0))


def check_weights(comm: Communicator) -> None:
    """Weighted averages are exact to rounding, for weights of any magnitude."""
    for scale in (1.0, 1e-30, 1e30):
        for dtype in ("f2", "f4", "f8", "c8"):
            parts = [data(rank, (31,), dtype) for rank in range(comm.size)]
            weights = np.array([1.0 + 3 * rank for rank in range(comm.size)])
            exact = np.average(np.stack(parts).astype("c16"), axis=0, weights=weights)
            weight = scale * weights[comm.rank]
            got = comm.all_reduce(parts[comm.rank], "avg", weight=weight)
            assert got.dtype == np.dtype(dtype)
            eps = float(np.finfo(dtype).eps)
            np.testing.assert_allclose(got, exact, rtol=8 * eps, atol=8 * eps)


def check_same_bits_everywhere(comm: Communicator) -> None:
    """All ranks hold the same bits, run after run."""
    rng = np.random.default_rng(comm.rank)
    x = rng.standard_normal(100_003).astype("f4") * np.float32(10) ** rng.integers(-6, 6)
    results = [comm.all_reduce(x, "avg").tobytes() for _ in range(2)]
    assert len({bits for theirs in comm.all_gather_object(results) for bits in theirs}) == 1


def check_broadcast(comm: Communicator) -> None:
    """Any dtype and layout arrives, in place."""
    structured = np.dtype([("a", "i2"), ("b", "f8", (2,))], align=True)
    for root in range(comm.size):
        for dtype in ("f4", "?", "M8[ns]", "U5", "S3", "V7", ">i4", structured):
            x = np.zeros((3, 4), dtype)
            if comm.rank == root:
                # Every other byte in four is a valid bool, character, and anything else.
                x = np.frombuffer(b"\1\0\0\0" * x.nbytes, dtype, x.size).reshape(x.shape)
            assert comm.broadcast(x, root) is x
            assert len(set(comm.all_gather_object(x.tobytes()))) == 1
            assert any(x.tobytes())
        for x in (np.zeros((300, 700), order="F"), np.zeros((600, 700))[::2], np.zeros(())):
            x[...] = comm.rank
            assert comm.broadcast(x, root) is x
            assert (x == root).all()


def check_gather(comm: Communicator) -> None:
    """Arrays of any shapes come in rank order; None stands for those who gave nothing."""
    mine = np.full((50_000 * comm.rank, 2), comm.rank, "i2")
    for rank, got in enumerate(comm.all_gather(mine)):
        equal(got, np.full((50_000 * rank, 2), rank, "i2"))
    for root in range(comm.size):
        got_list = (
            comm.gather(np.array(comm.rank, "M8[s]") if comm.rank != root else None, root)
            if comm.size > 1
            else [None]
        )
        assert (got_list is None) == (comm.rank != root)
        for rank, got in enumerate(got_list or []):
            assert (got is None) == (rank == root)
            assert got is None or got == np.array(rank, "M8[s]")
    pair = np.array([(comm.rank, "x")], [("n", "i4"), ("s", "U2")])
    assert [got["n"][0] for got in comm.all_gather(pair) if got is not None] == list(
        range(comm.size)
    )


def check_scatter(comm: Communicator) -> None:
    """Each rank gets its own array of the root's list, of any shape."""
    for root in range(comm.size):
        xs = [np.full((rank, 70_000), rank, "f8") for rank in range(comm.size)]
        got = comm.scatter(xs if comm.rank == root else None, root)
        equal(got, xs[comm.rank])
        assert got.flags.writeable
        assert not np.may_share_memory(got, xs[comm.rank])


def check_objects(comm: Communicator) -> None:
    """Small Python objects travel as arrays do."""
    ranks = list(range(comm.size))
    for root in ranks:
        assert comm.broadcast_object({"root": comm.rank}, root) == {"root": root}
        gathered = comm.gather_object("x" * comm.rank, root)
        assert gathered == (["x" * rank for rank in ranks] if comm.rank == root else None)
        dealt = comm.scatter_object(
            [(rank,) for rank in ranks] if comm.rank == root else None, root
        )
        assert dealt == (comm.rank,)
    long = bytes(600_000) + bytes([comm.rank])
    assert [theirs[-1] for theirs in comm.all_gather_object(long)] == ranks


def check_mismatches(comm: Communicator) -> None:
    """Every kind of disagreement is raised on all ranks, names all calls, and does no harm."""
    if comm.size == 1:
        return
    odd = comm.rank == comm.size - 1
    x = np.ones(4, "f4")
    ours: list[Callable[[], Any]] = [
        lambda: comm.all_reduce(np.ones(5, "f4") if odd else x),
        lambda: comm.all_reduce(x.astype("i4") if odd else x),
        lambda: comm.all_reduce(x, "max" if odd else "sum"),
        lambda: comm.barrier() if odd else comm.all_reduce(x),
        lambda: comm.all_reduce(None, out=np.zeros(3, "f4")) if odd else comm.all_reduce(x),
        lambda: comm.reduce(x, root=int(odd)),
        lambda: comm.broadcast(np.zeros(5) if odd else np.zeros(4)),
        lambda: comm.broadcast(np.zeros(4, "f4") if odd else np.zeros(4)),
        lambda: comm.gather(np.zeros((1, 4)) if odd else np.zeros(4)),
        lambda: comm.all_gather(np.zeros(4, "f4") if odd else np.zeros(4)),
        lambda: comm.scatter([x] * comm.size if comm.rank == int(odd) else None, int(odd)),
        lambda: comm.all_gather_object(1) if odd else comm.gather_object(1),
        lambda: comm.all_reduce(np.ones(300_000) if odd else np.ones(1)),
    ]
    for call in ours:
        error = raises(MismatchError, f"rank {comm.size - 1}:", call)
        assert list(error.calls) == list(range(comm.size))
        assert error.calls[0] != error.calls[comm.size - 1]
        equal(comm.all_reduce(x), np.full(4, comm.size, "f4"))


def check_decline(comm: Communicator) -> None:
    """A rank may pass; peers learn why before any output is written, a hundred times over."""
    if comm.size == 1:
        assert comm.decline("alone") == {}
        return
    x = np.zeros(3)
    for turn in range(100):
        who = turn % comm.size
        if comm.rank == who:
            assert comm.decline(f"turn {turn}") == {}
        else:
            calls: list[Callable[[], Any]] = [
                lambda: comm.all_reduce(np.ones(3), out=x),
                lambda who=who: comm.broadcast(x, who),  # type: ignore[misc]
                comm.barrier,
            ]
            error = raises(PeerDeclined, f"turn {turn}", calls[turn % 3])
            assert error.reasons == {who: f"turn {turn}"}
        equal(x, np.zeros(3))
        if turn % 10 == 0:
            equal(comm.all_reduce(np.ones(2)), np.full(2, float(comm.size)))
    others = comm.decline("\N{SNOWMAN}" * 20_000)
    assert sorted(others) == [rank for rank in range(comm.size) if rank != comm.rank]
    assert all(reason.startswith("\N{SNOWMAN}") for reason in others.values())


def check_bad_arguments(comm: Communicator) -> None:
    """What is wrong by itself is refused here, and the peers hear nothing of it."""
    x = np.ones(3)
    fixed = np.ones(3)
    fixed.flags.writeable = False
    bad: list[tuple[type[BaseException], str, Callable[[], Any]]] = [
        (ValueError, "unknown reduce op", lambda: comm.all_reduce(x, "mean")),
        (ValueError, "root must be", lambda: comm.broadcast(x, comm.size)),
        (ValueError, "root must be", lambda: comm.gather(x, -1)),
        (TypeError, "cannot average", lambda: comm.all_reduce(np.ones(3, int), "avg")),
        (TypeError, "numeric", lambda: comm.all_reduce(np.array(["a"]))),
        (TypeError, "byte order", lambda: comm.all_reduce(x.astype(">f8"))),
        (TypeError, "objects", lambda: comm.all_gather(np.array([None]))),
        (TypeError, "objects", lambda: comm.broadcast(np.zeros(2, [("a", "O")]))),
        (ValueError, "out must be like", lambda: comm.all_reduce(x, out=np.zeros(4))),
        (ValueError, "out must be like", lambda: comm.all_reduce(x, out=np.zeros(3, "f4"))),
        (ValueError, "writeable", lambda: comm.all_reduce(x, out=fixed)),
        (TypeError, "ndarray", lambda: comm.all_reduce(x, out=[0, 0, 0])),  # type: ignore[arg-type]
        (ValueError, "only meaningful", lambda: comm.all_reduce(x, weight=2.0)),
        (ValueError, "not negative", lambda: comm.all_reduce(x, "avg", weight=-1.0)),
        (ValueError, "finite", lambda: comm.all_reduce(x, "avg", weight=float("nan"))),
        (ValueError, "timeout_s", lambda: comm.barrier(timeout_s=0)),
        (TypeError, "ndarray", lambda: comm.broadcast([1, 2])),  # type: ignore[arg-type]
        (ValueError, f"list of {comm.size}", lambda: comm.scatter([x] * 9, comm.rank)),
    ]
    for kind, text, call in bad:
        raises(kind, text, call)
    if comm.size > 1:
        mixed = [x] * (comm.size - 1) + [x.astype("f4")]
        raises(TypeError, "one dtype", lambda: comm.scatter(mixed, comm.rank))
    if comm.rank != comm.size - 1:
        raises(ValueError, "writeable", lambda: comm.broadcast(fixed, comm.size - 1))
        raises(ValueError, "only the root", lambda: comm.scatter([x], comm.size - 1))
    comm.barrier()


CHECKS: list[Callable[[Communicator], None]] = [
    check_barrier,
    check_reductions,
    check_booleans,
    check_reduce_to_root,
    check_in_place_and_out,
    check_who_contributes,
    check_weights,
    check_same_bits_everywhere,
    check_broadcast,
    check_gather,
    check_scatter,
    check_objects,
    check_mismatches,
    check_decline,
    check_bad_arguments,
]


def check_all(comm: Communicator) -> None:
    """Run every check, one after the other."""
    for check in CHECKS:
        check(comm)
