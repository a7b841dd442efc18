"""Checks of the reductions: all_reduce, reduce and reduce_scatter."""

from __future__ import annotations

from typing import Any

import numpy as np

from synk_comm._core.ops import Array, ReduceOp
from synk_comm.abc import Communicator
from synk_comm.exceptions import MismatchError

from .steps import REDUCTIONS, check, table
from .tools import FOLDS, Check, data, edges, equal, equal_reduced, everywhere, folded, raises


def _parts(comm: Communicator, shape: tuple[int, ...], dtype: Any) -> list[Array]:
    return [data(rank, shape, dtype) for rank in range(comm.size)]


def check_table(comm: Communicator) -> None:
    for step in table(comm.size):
        for _ in range((step.kind in REDUCTIONS) * (3 if step.shapes == ((),) else 1)):
            check(comm, step)
    last = comm.size - 1
    equal(comm.all_reduce(comm.rank, ReduceOp.MAX), last)
    many = [np.full(which % 7, comm.rank + which, "f4") for which in range(300)]
    for which, array in enumerate(comm.all_reduce(many)):
        equal(array, np.full(which % 7, last * comm.size / 2 + comm.size * which, "f4"))
    out: Any = "ignored on others than the root" if comm.rank else np.zeros(5)
    assert comm.reduce(np.ones(5), out=out) is (None if comm.rank else out)


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
    for length in (100, 100_000):
        a, b = np.full(length, 1.0), np.full(length, 2.0)
        comm.all_reduce([a, b], out=[b, a])
        equal(b, np.full(length, 1.0 * comm.size))
        equal(a, np.full(length, 2.0 * comm.size))


def check_who_contributes(comm: Communicator) -> None:
    """An array of weight 0 may be anything; one rank at least has to contribute."""
    nan = np.full(4, np.nan)
    weighted = nan if comm.rank else np.arange(4.0)
    equal(comm.all_reduce(weighted, "avg", weight=float(not comm.rank)), np.arange(4.0))
    everybody_none = raises(MismatchError, "no rank contributes", lambda: comm.all_reduce(None))
    assert list(everybody_none.calls) == list(range(comm.size))
    raises(MismatchError, "no rank contributes", lambda: comm.gather(None))
    raises(MismatchError, "no rank contributes", lambda: comm.all_reduce(None, out=np.ones(3)))
    raises(MismatchError, "no rank", lambda: comm.all_reduce(nan, "avg", weight=0.0))


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
    """The own block may be written over any row of x; blocks of any length are whole."""
    size, rank = comm.size, comm.rank
    x = data(rank, (size, 50_000), "f4")
    expected = folded(_parts(comm, (size, 50_000), "f4"), "sum")[rank]
    for row in (rank, size - 1 - rank):
        again = x.copy()
        comm.reduce_scatter(again, out=again[row][None])
        equal(again[row], expected)
    for nbytes in edges(size)[::3]:
        base = np.tile(np.arange(nbytes, dtype="u4").astype("u1"), (size, 1))
        got = comm.reduce_scatter(base * np.uint8(rank + 1))
        wanted = base[:1] * np.uint8(size * (size + 1) // 2)
        assert np.array_equal(got, wanted), nbytes


def check_outs_on_x(comm: Communicator) -> None:
    """``out`` may lie on x, as it is, shifted or backwards."""
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
    """An overflow that NumPy raises is raised here too, with a complete result, in step."""
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
    check_table,
    check_special_values,
    check_booleans,
    check_outs_on_x,
    check_lists_that_overlap,
    check_who_contributes,
    check_same_bits,
    check_long_arrays,
    check_lengths,
    check_reduce_scatter,
    check_overflow,
]
