"""Checks of the reductions: all_reduce, reduce and reduce_scatter."""

from __future__ import annotations

from typing import Any

import numpy as np

from synk_comm._core.ops import Array, ReduceOp
from synk_comm.abc import Communicator
from synk_comm.exceptions import MismatchError

from .tools import (
    FOLDS,
    NUMBERS,
    SHAPES,
    Check,
    data,
    edges,
    equal,
    equal_reduced,
    everywhere,
    folded,
    layouts,
    outs_like,
    raises,
)


def _parts(comm: Communicator, shape: tuple[int, ...], dtype: Any) -> list[Array]:
    return [data(rank, shape, dtype) for rank in range(comm.size)]


def check_every_op_and_dtype(comm: Communicator) -> None:
    """Every op on every dtype and shape is what NumPy computes, in rank order, to the last bit."""
    for dtype in NUMBERS:
        for shape in SHAPES:
            parts = _parts(comm, shape, dtype)
            for op in FOLDS:
                if op != "avg" or np.dtype(dtype).kind in "fc":
                    equal(comm.all_reduce(parts[comm.rank], op), folded(parts, op))
    ops = [ReduceOp.MAX, "max"]
    for op in ops:
        equal(comm.all_reduce(comm.rank, op), comm.size - 1)


def check_special_values(comm: Communicator) -> None:
    """NaN, infinities and signed zeros are results; integers wrap around; NaT is NaT."""
    for dtype in ("f2", "f4", "f8", "c8"):
        values = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, comm.rank], dtype)
        values = np.roll(values, comm.rank)
        parts = [np.roll([np.nan, np.inf, -np.inf, -0.0, 0.0, r], r) for r in range(comm.size)]
        with np.errstate(all="ignore"):
            for op in FOLDS:
                got = comm.all_reduce(values, op)
                equal(got, folded([np.asarray(part, dtype) for part in parts], op))
    for dtype in ("u1", "i1", "i8", "u8"):
        top = np.array([np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
        for op in ("sum", "prod"):
            equal(comm.all_reduce(top, op), folded([top] * comm.size, op))
    spans = [np.array([rank + 1, "NaT" if rank == 0 else 3], "m8[s]") for rank in range(comm.size)]
    for op in ("sum", "min", "max"):
        equal(comm.all_reduce(spans[comm.rank], op), folded(spans, op))
    for op in ("prod", "avg"):
        raises(TypeError, "timedelta", lambda op=op: comm.all_reduce(spans[0], op))  # type: ignore[misc]


def check_booleans(comm: Communicator) -> None:
    """min is and, max is or; sums and averages of booleans are refused here, not at the peers."""
    x = np.array([True, False, comm.rank == 0])
    equal(comm.all_reduce(x, "min"), [True, False, comm.size == 1])
    equal(comm.all_reduce(x, "max"), [True, False, True])
    for op in ("sum", "prod", "avg"):
        raises(TypeError, "bool", lambda op=op: comm.all_reduce(x, op))  # type: ignore[misc]


def check_lists_that_overlap(comm: Communicator) -> None:
    """The outs of a list may be other arrays of the list."""
    for length in (100, 100_000):
        a, b = np.full(length, 1.0), np.full(length, 2.0)
        comm.all_reduce([a, b], out=[b, a])
        equal(b, np.full(length, 1.0 * comm.size))
        equal(a, np.full(length, 2.0 * comm.size))


def check_who_contributes(comm: Communicator) -> None:
    """None and weight 0 contribute nothing, and receive all the same."""
    for length in (4, 100_001):
        last = comm.size - 1
        values = np.arange(length) + 0.5
        nan = np.full(length, np.nan)
        mine = values if comm.rank == last else None
        equal(comm.all_reduce(mine), values)
        out = np.zeros(length)
        assert comm.all_reduce(mine, "avg", out=out) is out
        equal(out, values)
        weighted = nan if mine is None else mine
        equal(comm.all_reduce(weighted, "avg", weight=float(comm.rank == last)), values)
        some = None if comm.rank == last and last else values
        equal(comm.all_reduce(some, "max"), values)
    everybody_none = raises(MismatchError, "no rank contributes", lambda: comm.all_reduce(None))
    assert list(everybody_none.calls) == list(range(comm.size))
    raises(MismatchError, "no rank contributes", lambda: comm.gather(None))
    raises(MismatchError, "no rank contributes", lambda: comm.all_reduce(None, out=np.ones(3)))
    raises(MismatchError, "no rank", lambda: comm.all_reduce(nan, "avg", weight=0.0))


def check_weights(comm: Communicator) -> None:
    """Weighted averages are exact to rounding, for weights of any magnitude."""
    for scale in (1.0, 1e-30, 1e30):
        for dtype in ("f2", ">f2", "f4", ">f8", "c8"):
            for shape in ((), (31,)):
                parts = _parts(comm, shape, dtype)
                weights = np.array([1.0 + 3 * rank for rank in range(comm.size)])
                exact = np.average(np.stack(parts).astype("c16"), axis=0, weights=weights)
                weight = scale * weights[comm.rank]
                for _ in range(2):
                    got = comm.all_reduce(parts[comm.rank], "avg", weight=weight)
                    assert got.dtype == (dtype if shape else np.dtype(dtype).newbyteorder("="))
                    eps = float(np.finfo(dtype).eps)
                    np.testing.assert_allclose(got, exact, rtol=8 * eps, atol=8 * eps)
                to_root = comm.reduce(parts[comm.rank], "avg", comm.size - 1, weight=weight)
                same = to_root is None or to_root.tobytes() == got.tobytes()
                assert same, (dtype, shape, scale, to_root, got)


def check_same_bits(comm: Communicator) -> None:
    """All ranks hold the same bits, run after run, and each element whatever the array's length."""
    length = 100_003 if comm.ordered_bytes is None else comm.ordered_bytes // 8
    last = length - 1003
    for dtype in ("f4", "f2", "f8"):
        rng = np.random.default_rng(comm.rank)
        scale = 10.0 ** rng.integers(-3, 3)
        x = (rng.standard_normal(length) * scale).astype(dtype)
        for op, weight in (("avg", None), ("avg", 0.1 + comm.rank), ("sum", None)):
            whole = comm.all_reduce(x, op, weight=weight)
            everywhere(comm, whole.tobytes())
            assert whole.tobytes() == comm.all_reduce(x, op, weight=weight).tobytes()
            for start, stop in ((0, 1), (17, 40), (last, length), (3, length // 2)):
                piece = comm.all_reduce(x[start:stop], op, weight=weight)
                assert piece.tobytes() == whole[start:stop].tobytes()
            (listed,) = comm.all_reduce([x], op, weight=weight)
            assert listed.tobytes() == whole.tobytes()
            root = comm.size // 2
            reduced = comm.reduce(x, op, root, weight=weight)
            assert reduced is None or reduced.tobytes() == whole.tobytes()
            padded = np.zeros(comm.size * length, dtype).reshape(comm.size, length)
            padded[...] = x
            block = comm.reduce_scatter(padded, op, weight=weight)
            assert block.tobytes() == whole.tobytes()


def check_lengths(comm: Communicator) -> None:
    """Arrays of any length, around those where they are cut up, are reduced to the last byte."""
    for nbytes in edges(comm.size):
        base = np.arange(nbytes, dtype="u4").astype("u1")
        x = base * np.uint8(comm.rank + 1)
        expected = base * np.uint8(comm.size * (comm.size + 1) // 2)
        assert np.array_equal(comm.all_reduce(x), expected), nbytes
        root = nbytes % comm.size
        got = comm.reduce(x, root=root)
        assert got is None or np.array_equal(got, expected), nbytes
        assert comm.all_reduce(x, out=x) is x
        assert np.array_equal(x, expected), nbytes


def check_reduce_scatter(comm: Communicator) -> None:
    """Each rank gets its own block of what all_reduce would give."""
    size, rank = comm.size, comm.rank
    for dtype in ("f4", ">f2", ">i4", "c16"):
        for rows, shape in ((1, ()), (2, (3,)), (0, (4,)), (9_000, (2,))):
            parts = _parts(comm, (rows * size, *shape), dtype)
            for op in ("sum", "max") if dtype != "c16" else ("sum", "avg"):
                expected = folded(parts, op)[rank * rows : (rank + 1) * rows]
                got = comm.reduce_scatter(parts[rank], op)
                equal(got, expected)
                assert not np.may_share_memory(got, parts[rank])
                for out in outs_like(expected):
                    assert comm.reduce_scatter(parts[rank], op, out=out) is out
                    np.testing.assert_array_equal(out, expected)
    shapes: list[tuple[int, ...]] = [(r, 30_001) if r % 2 else (r,) for r in range(size)]
    lists = [[data(r, shape, "f8") + n for n, shape in enumerate(shapes)] for r in range(size)]
    equal(comm.reduce_scatter(lists[rank]), folded([x[rank] for x in lists], "sum"))
    weights = np.arange(size) + 1.0
    got = comm.reduce_scatter(lists[rank], "avg", weight=weights[rank])
    exact = np.average([x[rank] for x in lists], axis=0, weights=weights)
    np.testing.assert_allclose(got, exact, rtol=1e-13)
    x = data(rank, (size, 50_000), "f4")
    expected = folded(_parts(comm, (size, 50_000), "f4"), "sum")[rank]
    for row in (x[rank], x[size - 1 - rank]):
        again = x.copy()
        out = again[0 if row is x[rank] else size - 1 - rank][None]
        comm.reduce_scatter(again, out=out)
        equal(out[0], expected)
    for nbytes in edges(size)[::3]:
        base = np.tile(np.arange(nbytes, dtype="u4").astype("u1"), (size, 1))
        got = comm.reduce_scatter(base * np.uint8(rank + 1))
        wanted = base[:1] * np.uint8(size * (size + 1) // 2)
        assert np.array_equal(got, wanted), nbytes


def check_layouts_and_outs(comm: Communicator) -> None:
    """Inputs and outs may lie in memory in any way, on each rank in another, and out on x."""
    for dtype in ("f4", ">i4", "f2"):
        for shape in ((), (4, 6), (3, 0)):
            parts = _parts(comm, shape, dtype)
            mine, expected = parts[comm.rank], folded(parts, "sum")
            ways = list(layouts(mine))
            for turn in range(len(ways)):
                x = ways[(turn + comm.rank) % len(ways)]
                got = comm.all_reduce(x)
                equal(got, expected)
                assert got.flags.c_contiguous
                assert not np.may_share_memory(got, x)
                equal(x, mine)
            for out in outs_like(mine):
                assert comm.all_reduce(mine, out=out) is out
                np.testing.assert_array_equal(out, expected)
    for length in (50, 150_000):  # in one slot, in several
        parts = _parts(comm, (length,), "f8")
        expected = folded(parts, "sum")
        for shift in (0, 1, -1, 7):
            store = np.zeros(length + 16)
            x, out = store[8 : 8 + length], store[8 + shift : 8 + shift + length]
            x[...] = parts[comm.rank]
            comm.all_reduce(x, out=out)
            equal_reduced(comm, out, expected)
        x = parts[comm.rank].copy()
        backwards = x[::-1]
        comm.all_reduce(x, out=backwards)
        equal_reduced(comm, backwards, expected)
        x = parts[comm.rank].copy()
        assert comm.all_reduce(x, "avg", weight=comm.rank + 1.0, out=x) is x
        weights = np.arange(1.0, comm.size + 1)
        np.testing.assert_allclose(x, np.average(parts, axis=0, weights=weights), rtol=1e-13)


def check_reduce_to_root(comm: Communicator) -> None:
    """Only the root gets a result, new or in ``out``; others' ``out`` is ignored."""
    for root in range(comm.size):
        for shape in ((5,), (), (90_001, 3)):
            parts = _parts(comm, shape, "f4")
            got = comm.reduce(parts[comm.rank], "max", root)
            assert (got is not None) == (comm.rank == root)
            if got is not None:
                equal(got, folded(parts, "max"))
            out: Any = np.zeros(shape, "f4") if comm.rank == root else "nothing to write to"
            assert comm.reduce(parts[comm.rank], out=out, root=root) is (
                out if comm.rank == root else None
            )
            if comm.rank == root:
                equal_reduced(comm, out, folded(parts, "sum"))
        alone = comm.reduce(np.arange(3) if comm.rank == root else None, root=root)
        if comm.rank == root:
            equal(alone, np.arange(3))


def check_lists(comm: Communicator) -> None:
    """A list is reduced array by array, whatever dtypes and sizes are in it, and who gives none."""
    shapes = [((3,), "f4"), ((), "f8"), ((70_001,), "f4"), ((0, 2), "i4"), ((2, 2), "f2")]
    shapes += [((4,), ">f4"), ((2, 3), ">f4"), ((5,), "f4"), ((200_000,), "i1"), ((1,), "g")]
    lists = [[data(rank, shape, dtype) for shape, dtype in shapes] for rank in range(comm.size)]
    mine, total = lists[comm.rank], sum(x.nbytes for x in lists[0])
    expected = [folded(list(parts), "sum") for parts in zip(*lists)]

    def check(got: Any, wanted: Any) -> None:
        assert type(got) is list
        assert len(got) == len(wanted)
        for array, value in zip(got, wanted):
            equal_reduced(comm, array, value, total)

    check(comm.all_reduce(tuple(mine)), expected)
    for out in ([np.zeros(x.shape, x.dtype, order="F") for x in mine], [x.copy() for x in mine]):
        got = comm.all_reduce(out if out[0].any() else mine, out=out)
        assert all(a is b for a, b in zip(got, out))
        check(out, expected)
    last = comm.size - 1
    result = comm.reduce(mine, "sum", last)
    assert (result is None) == (comm.rank != last)
    check(result or expected, expected)
    few = None if comm.rank < last else mine
    check(comm.all_reduce(few), lists[last])
    check(comm.all_reduce(few, out=[np.zeros_like(x) for x in mine]), lists[last])
    floats = [x.astype("f8") for x in mine]
    weights = np.arange(comm.size) + 0.5
    for which, got in enumerate(comm.all_reduce(floats, "avg", weight=weights[comm.rank])):
        exact = np.average([x[which].astype("f8") for x in lists], axis=0, weights=weights)
        np.testing.assert_allclose(got, exact, rtol=1e-13)
    many = [np.full(which % 7, comm.rank + which, "f4") for which in range(300)]
    for which, array in enumerate(comm.all_reduce(many)):
        equal(array, np.full(which % 7, last * comm.size / 2 + comm.size * which, "f4"))


def check_long_arrays(comm: Communicator) -> None:
    """Long arrays, too, are reduced to what NumPy gives, and to the same bits on all ranks."""
    length = 300_000
    for dtype in ("i1", ">i4", "i8", "f2", "f4", "c16"):
        # Small integers, of which every order of operands gives the same.
        parts = [(np.arange(length) % 5 + rank % 3 - 2).astype(dtype) for rank in range(comm.size)]
        for op in ("sum", "max", "prod", *(["avg"] if np.dtype(dtype).kind in "fc" else [])):
            expected = folded(parts, op)
            np.testing.assert_array_equal(comm.all_reduce(parts[comm.rank], op), expected)
            askew = np.zeros(expected.nbytes + 1, np.uint8)[1:].view(dtype)
            askew[...] = parts[comm.rank]
            assert comm.all_reduce(askew, op, out=askew) is askew
            np.testing.assert_array_equal(askew, expected)
            to_root = comm.reduce(parts[comm.rank], op, comm.size - 1)
            assert to_root is None or np.array_equal(to_root, expected)
    special = np.tile([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0], length // 6)
    parts = [np.roll(special, rank) for rank in range(comm.size)]
    with np.errstate(all="ignore"):
        for op in ("sum", "min", "max", "avg"):
            equal(comm.all_reduce(parts[comm.rank], op), folded(parts, op))


def check_overflow(comm: Communicator) -> None:
    """What NumPy is asked to raise is raised here too, with a complete result, in step."""
    if comm.size == 1:
        return
    x = np.array([3e38, 1.0, 2.0], "f4")
    for op in ("sum", "avg", "prod"):
        with np.errstate(all="ignore"):
            expected = folded([x] * comm.size, op)
        for turn in range(6):
            asks = turn % 3 != comm.rank % 3  # not all ranks do
            out = np.zeros(3, "f4")
            with np.errstate(over="raise" if asks else "ignore"):
                if asks:
                    raises(FloatingPointError, "overflow", lambda: comm.all_reduce(x, op, out=out))  # noqa: B023
                else:
                    comm.all_reduce(x, op, out=out)
            equal(out, expected)
    big = np.full((comm.ordered_bytes or 1_200_000) // 4, 3e38, "f4")
    with np.errstate(over="raise"):
        raises(FloatingPointError, "overflow", lambda: comm.all_reduce(big))
        raises(FloatingPointError, "overflow", lambda: comm.all_reduce([x, big, x]))
        raises(FloatingPointError, "overflow", lambda: comm.reduce_scatter([x] * comm.size))


REDUCE: list[Check] = [
    check_every_op_and_dtype,
    check_special_values,
    check_booleans,
    check_layouts_and_outs,
    check_reduce_to_root,
    check_lists,
    check_lists_that_overlap,
    check_who_contributes,
    check_weights,
    check_same_bits,
    check_long_arrays,
    check_lengths,
    check_reduce_scatter,
    check_overflow,
]
