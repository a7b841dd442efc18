"""Any array, drawn by hypothesis, is attached as it was shared."""

from __future__ import annotations

import itertools
import pickle
import secrets
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import synk_shm as shm

POINT = np.dtype([("x", "<f8"), ("n", ">i2"), ("tag", "S3")])
TEXTS = "? i1 u8 <f2 >f4 f8 >i4 c8 >c16 g S5 U3 >U2 V7 M8[ns] <M8[25s] >m8[D] m8"
DTYPES = [
    *map(np.dtype, TEXTS.split()),
    POINT,
    np.dtype([("a", "i1"), ("b", "f8")], align=True),
    np.dtype({"names": ["hi", "lo"], "formats": ["u1", "u2"], "offsets": [0, 0], "itemsize": 9}),
    np.dtype([(("a title", "name"), "f4"), ("inner", POINT, (2, 2))]),
]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether shapes, dtypes and bits are equal, without padding between fields."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.names:
        return all(same(a[name], b[name]) for name in a.dtype.names)
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    count = int(np.prod(shape)) * dtype.itemsize
    bits = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, count, np.uint8)
    array = np.ndarray(shape, dtype, bits.tobytes(), order=draw(st.sampled_from("CF")))
    return array[view_index(draw, shape)] if draw(st.booleans()) else array


def view_index(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple:
    """Draw slices with any start, stop and step, negative ones too; never a scalar."""
    return (*(draw(st.slices(length)) for length in shape), ...)


@settings(max_examples=80, deadline=None)
@given(arrays(), st.sampled_from(["shm", "memfd"]))
@example(np.asfortranarray(np.arange(6.0).reshape(2, 3)), "shm")
@example(np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True)), "shm")
def test_share_and_attach(source, backend):
    shared = shm.share(source, backend=backend)
    assert type(shared) is np.ndarray
    assert same(shared, source)
    assert shared.dtype.isalignedstruct == source.dtype.isalignedstruct
    assert not np.shares_memory(shared, source)
    seen = shm.attach(shm.handle(shared), readonly=True)  # a second mapping of the memory
    assert same(seen, source)
    assert seen.strides == shared.strides or not seen.size
    assert seen.dtype.isalignedstruct == source.dtype.isalignedstruct
    shared[...] = np.zeros((), source.dtype)
    assert same(seen, np.zeros_like(source))


@settings(max_examples=80, deadline=None)
@given(arrays(), st.data())
def test_handles_of_views(source, data):
    shared = shm.share(source)
    view = shared[view_index(data.draw, shared.shape)]
    view = view.transpose(data.draw(st.permutations(range(view.ndim))))
    if view.dtype.names and data.draw(st.booleans()):
        view = view[data.draw(st.sampled_from(view.dtype.names))]
    address = pickle.loads(pickle.dumps(shm.handle(view)))
    assert address == shm.handle(view)
    assert hash(address) == hash(shm.handle(view))
    assert address.nbytes == view.nbytes
    seen = address.attach(readonly=True)
    assert same(seen, view)
    here = address.attach()
    if view.size:
        assert here.ctypes.data == view.ctypes.data
        here[...] = np.zeros((), view.dtype)
        assert same(seen, np.zeros_like(view))


@pytest.mark.parametrize("order", ["C", "F"])
def test_makers_agree_with_numpy(order):
    for dtype, shape in itertools.product(DTYPES, [(), (0,), (3, 0, 2), (4,), (2, 3, 4)]):
        expected = np.zeros(shape, dtype, order=order)
        for made in (
            shm.empty(shape, dtype, order=order),
            shm.zeros(shape, dtype, order=order),
            shm.zeros_like(expected),
        ):
            assert same(made, expected)
            assert made.strides == expected.strides or not made.size
        by_name = shm.attach(shm.segment(made).name)
        assert same(by_name, expected)
        assert by_name.strides == expected.strides or not made.size


SOURCES = {
    "C": lambda: shm.zeros((50, 40), "f4"),
    "room": lambda: shm.zeros((50, 40), "f4", capacity=1 << 30),
    "memfd": lambda: shm.zeros((50, 40), "f4", backend="memfd"),
    "name": lambda: shm.zeros((50, 40), "f4", name=secrets.token_hex(11)),
}
VIEWS = [
    lambda a: a[3, 4, ...],
    lambda a: a,
    lambda a: a.T[5:, 1::3],
    lambda a: a.reshape(10, 20, 10)[1:, ::2, ::-1],
    lambda a: np.broadcast_to(a[0], (1000, 40)),
    lambda a: a[:0],
    lambda a: a.view("M8[25s]"),
]
STRUCTS = [lambda a: a[::2], lambda a: a["n"][1::3]]


@pytest.mark.parametrize(
    ("make", "views"),
    [*((make, VIEWS) for make in SOURCES.values()), (lambda: shm.zeros(100, POINT), STRUCTS)],
    ids=[*SOURCES, "struct"],
)
def test_handles_and_messages_are_small(make, views):
    for view in views:
        a = view(make())
        address, message = shm.handle(a), bytes(ForkingPickler.dumps(a))
        protocols = range(2, pickle.HIGHEST_PROTOCOL + 1)
        pickled = [pickle.dumps(address, protocol) for protocol in protocols]
        assert {pickle.loads(text) for text in pickled} == {address}
        seen = address.attach(readonly=True)
        assert seen.strides == a.strides or not a.size
        assert same(seen, a)
        assert same(pickle.loads(message), a)
        assert max(map(len, (*pickled[2:], message))) <= 120
