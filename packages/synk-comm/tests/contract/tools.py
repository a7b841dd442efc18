"""What the checks of the contract share: data that every rank can make for all, and comparisons."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import numpy as np

from synk_comm._core.fabric import slot_bytes
from synk_comm._core.ops import Array
from synk_comm.abc import Communicator

PATIENCE_S = 20.0
Check = Callable[[Communicator], None]

FOLDS: dict[str, np.ufunc] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
NUMBERS = ["f2", ">f2", "f4", ">f4", "f8", "g", "c8", ">c16", "i1", "u2", ">i4", "i4", "u8"]
ANYTHING: list[Any] = [
    *NUMBERS,
    "?",
    "m8[s]",
    "M8[ns]",
    ">M8[D]",
    "U5",
    ">U2",
    "S3",
    "V7",
    np.dtype([("a", "i2"), ("b", ">f8", (2,))], align=True),
    np.dtype([("name", "S3"), ("inner", [("x", "u1"), ("y", "c8")])]),
]
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3, 0, 2), (7, 5)]


def data(rank: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return one rank's data, the same wherever it is made."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng([rank, len(shape)])
    values = np.asarray(rng.integers(1, 5, shape))
    if dtype.kind in "fc":
        return np.asarray(values + rng.random(shape), dtype)
    if dtype.kind in "biumM":
        return np.asarray(values % 2 if dtype.kind == "b" else values, "i8").astype(dtype)
    if dtype.kind in "US":
        return np.asarray(values).astype(f"{dtype.kind}1").astype(dtype)
    made = np.zeros(shape, dtype)
    if dtype.names is None:
        return np.frombuffer(rng.bytes(made.nbytes), dtype).reshape(shape) if made.nbytes else made
    for name in dtype.names:
        field = made[name]
        field[...] = data(rank, field.shape, field.dtype)
    return made


def raises(kind: Any, text: str, call: Callable[[], Any]) -> Any:
    """Return the exception that ``call`` must raise, of a kind or of one of several."""
    try:
        call()
    except kind as exc:
        if text not in str(exc):
            raise AssertionError(f"expected {text!r} in: {exc}") from exc
        return exc
    raise AssertionError(f"did not raise {kind} ({text})")


def until(done: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def equal(got: Any, expected: Any) -> None:
    """Raise unless two arrays have the same dtype, shape and values; scalars have no axes."""
    expected = np.asarray(expected)
    if isinstance(got, np.generic):
        got, expected = np.asarray(got), np.asarray(expected[()])
    assert type(got) is np.ndarray, type(got)
    assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    if expected.dtype.names is not None:  # padding between fields may differ
        for name in expected.dtype.names:
            equal(np.asarray(got[name]), expected[name])
    elif expected.dtype.kind in "mMV":
        assert got.tobytes() == expected.tobytes()
    else:
        np.testing.assert_array_equal(got, expected)


def equal_lists(got: list[Any], expected: Sequence[Any]) -> None:
    """Raise unless two lists have equal arrays, or None, at the same places."""
    assert [x is None for x in got] == [x is None for x in expected]
    for x, value in zip(got, expected):
        if value is not None:
            equal(x, value)


def bits(x: Array) -> Any:
    """Return what two arrays share if they are the same to the last bit that counts."""
    if x.dtype.char in "gG":  # padded, with anything
        return repr(x.tolist())
    return x.tobytes()


def layouts(x: Array) -> Iterator[Array]:
    """Yield arrays equal to ``x`` that lie in memory in all kinds of ways."""
    yield x
    fixed = x.copy()
    fixed.flags.writeable = False
    yield fixed
    room = np.zeros(x.nbytes + 1, np.uint8)
    askew = room[1:].view(x.dtype).reshape(x.shape)  # not aligned
    askew[...] = x
    yield askew
    if not x.ndim:
        return
    yield np.array(x, order="F")
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    wide[..., ::2] = x
    yield wide[..., ::2]
    yield x[::-1].copy()[::-1]
    yield np.broadcast_to(x, (1, *x.shape))[0]


def outs_like(x: Array) -> Iterator[Array]:
    """Yield arrays that can receive a result like ``x``, laid out in all kinds of ways."""
    yield np.zeros(x.shape, x.dtype)
    yield np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    if x.ndim:
        yield np.zeros(x.shape, x.dtype, order="F")
        yield np.zeros((*x.shape[:-1], 3 * x.shape[-1]), x.dtype)[..., ::-3]


def folded(parts: Sequence[Array], op: str) -> Array:
    """Reduce arrays of one dtype in rank order, as NumPy does; float16 in float32."""
    dtype, shape = parts[0].dtype, parts[0].shape
    is_half = dtype.str in ("<f2", ">f2")
    wide = np.dtype("f4") if is_half and op in ("sum", "avg", "prod") else dtype
    total = parts[0].astype(wide).reshape(-1)
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            FOLDS[op](total, part.astype(wide).reshape(-1), out=total)
        if op == "avg" and len(parts) > 1:
            np.divide(total, float(len(parts)), out=total)
        return total.astype(dtype).reshape(shape)


def equal_reduced(comm: Communicator, got: Any, expected: Array, nbytes: int | None = None) -> None:
    """Raise unless a reduction gave this: to the last bit, if the operands come in rank order."""
    nbytes = expected.nbytes if nbytes is None else nbytes
    if (
        comm.ordered_bytes is None
        or nbytes <= comm.ordered_bytes
        or expected.dtype.kind not in "fc"
    ):
        equal(got, expected)
        return
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    eps = float(np.finfo(expected.dtype).eps)
    np.testing.assert_allclose(got, expected, rtol=2 * comm.size * eps)


def edges(size: int) -> list[int]:
    """Return lengths in bytes around those where a transport begins to cut arrays up."""
    slot = slot_bytes(size)
    part = slot // (size + 1) // 64 * 64
    dealt = slot // size // 64 * 64
    direct = (1 << 18) // size
    near = {
        length
        for edge in (part, part * size, dealt, slot, direct)
        for length in (edge - 1, edge, edge + 1)
    }
    return [*sorted(near), 2 * part * size + 1, 2 * slot + 1, 3 * slot - 64]


def everywhere(comm: Communicator, said: Any) -> None:
    told = comm.all_gather_object(said)
    assert all(theirs == said for theirs in told), told
