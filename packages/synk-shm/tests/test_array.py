"""Shared arrays behave as NumPy's own."""

from __future__ import annotations

import copy
import io
import itertools
import pickle

import numpy as np
import pytest

import synk_shm as shm


def test_ones_and_full():
    assert np.array_equal(shm.ones((2, 3), "i2"), np.ones((2, 3), "i2"))
    assert shm.full(3, 7).dtype == np.full(3, 7).dtype
    assert np.array_equal(shm.full((2, 2), 2.5), np.full((2, 2), 2.5))
    assert np.array_equal(shm.ones_like([1, 2]), [1, 1])
    assert np.array_equal(shm.full_like([1.0, 2.0], 9), [9.0, 9.0])
    assert shm.empty_like([1.0], "u1").dtype == np.uint8


def test_arrays_like_others_keep_the_order_of_their_axes():
    base = np.arange(120, dtype="f4").reshape(2, 3, 4, 5)
    for axes in itertools.permutations(range(4)):
        for selected in ((), slice(None, None, -1), (..., slice(None, None, 2)), slice(0, 1)):
            x = base.transpose(axes)[selected]
            for source in (x, np.broadcast_to(x[:1], (3, *x.shape[1:]))):
                for make in ("zeros_like", "ones_like", "empty_like"):
                    made, expected = getattr(shm, make)(source), getattr(np, make)(source)
                    assert made.strides == expected.strides
                    assert make == "empty_like" or np.array_equal(made, expected)
    askew = base.transpose(1, 0, 3, 2)
    made = shm.full_like(askew, askew)
    np.testing.assert_array_equal(made, askew)
    np.testing.assert_array_equal(shm.attach(shm.handle(made)), askew)
    assert shm.zeros_like(askew, order="C").flags.c_contiguous
    assert shm.zeros_like(askew, capacity=9).flags.c_contiguous


def test_results_are_plain_arrays():
    a = shm.ones((5, 5))
    assert type(a) is np.ndarray
    assert type(a + a) is np.ndarray
    assert not shm.is_shared(a + a)
    assert shm.is_shared(a[1:, ::2].T)
    assert not shm.is_shared(np.ones(3))
    assert not shm.is_shared("text")


def test_data_are_aligned():
    for shape in [1, 100, 1 << 20]:
        assert shm.empty(shape).ctypes.data % 64 == 0


def test_share_of_a_shared_array():
    a = shm.ones(3)
    assert shm.share(a) is a
    assert shm.share(a, copy=True) is not a
    with pytest.raises(ValueError, match="copy=False"):
        shm.share(np.ones(3), copy=False)
    readonly = shm.attach(shm.handle(a), readonly=True)
    assert not np.shares_memory(shm.share(readonly), a)


def test_second_attach_reuses_the_mapping():
    a = shm.ones(3)
    b = shm.attach(shm.segment(a).name)
    assert b.ctypes.data == a.ctypes.data
    assert shm.segment(b) is shm.segment(a)
    first = shm.attach(shm.handle(a), readonly=True)
    assert shm.attach(shm.handle(a), readonly=True).ctypes.data == first.ctypes.data


@pytest.mark.parametrize("backend", ["shm", "memfd"])
def test_writes_to_readonly(backend):
    a = shm.share([3.0, 1.0, 2.0], backend=backend)
    b = shm.attach(shm.handle(a), readonly=True)
    view = b[::-1][1:]
    for write in (
        lambda: b.__setitem__(0, 1),
        lambda: np.copyto(b, 0),
        lambda: np.add(b, 1, out=b),
        b.sort,
        lambda: view.fill(0),
        lambda: np.frombuffer(memoryview(b), "u1").__setitem__(0, 1),
        lambda: memoryview(b).__setitem__(0, 1.0),
        lambda: setattr(b.flags, "writeable", True),
        lambda: b.setflags(write=True),
        lambda: setattr(view.flags, "writeable", True),
        lambda: shm.resize(b, 2),
        lambda: shm.share(b, copy=False),
    ):
        with pytest.raises((ValueError, TypeError, BufferError)):
            write()
    assert a.tolist() == b.tolist() == [3, 1, 2]


def test_ordinary_copies_are_by_value():
    a = shm.share(np.arange(10.0))
    stored = io.BytesIO()
    np.save(stored, a)
    copies = [copy.copy(a), copy.deepcopy(a), pickle.loads(pickle.dumps(a)), a.copy()]
    assert not any(shm.is_shared(other) for other in copies)
    assert all(np.array_equal(other, a) for other in copies)
    stored.seek(0)
    assert np.array_equal(np.load(stored), a)


def test_names(given):
    name = given("1.first")
    a = shm.ones(3, name=name)
    assert shm.segment(a).owner
    assert np.array_equal(shm.attach(name), a)
    assert name in [info.name for info in shm.list()]
    shm.unlink(name)
    with pytest.raises(FileNotFoundError):
        shm.attach(name)
    with pytest.raises(FileNotFoundError):
        shm.unlink(name)
    shm.unlink(name, missing_ok=True)
    assert a.sum() == 3  # processes that map the memory keep it


def test_close_and_unlink():
    a = shm.ones(3)
    found, address = shm.segment(a), shm.handle(a)
    view = a[1:]
    with pytest.raises(BufferError, match="1 other array lies"):
        shm.close(a)
    del view
    shm.close(a)
    shm.close(a)
    assert found.closed
    assert "closed" in repr(found)
    assert a.sum() == 3
    with pytest.raises(ValueError, match="closed"):
        shm.handle(a)
    with pytest.raises(FileNotFoundError):
        address.attach()
    b = shm.ones(3)
    shm.unlink(b)
    with pytest.raises(FileNotFoundError):
        shm.unlink(b)
    shm.unlink(b, missing_ok=True)
    with pytest.raises(ValueError, match="unlinked"):
        shm.handle(b)
    for other in (a, b):  # share() copies what others cannot attach
        assert shm.share(other).tolist() == other.tolist()
        assert not np.shares_memory(shm.share(other), other)
        with pytest.raises(ValueError, match="copy=False"):
            shm.share(other, copy=False)
    with pytest.raises(ValueError, match="closed"):
        shm.resize(a, 5)


def test_segment_shows_its_state():
    a = shm.zeros((2, 3), "f4", capacity=5)
    found = shm.segment(a)
    assert (found.shape, found.nbytes, found.capacity) == ((2, 3), 24, 60)
    assert (found.backend, found.readonly, found.owner) == ("shm", False, True)
    assert "(2, 3) float32, 24 of 60 bytes, read-write, owner" in repr(found)
    assert shm.segment(shm.zeros(1, backend="memfd")).backend == "memfd"
    del a
    assert found.closed
    with pytest.raises(ValueError, match="closed"):
        _ = found.shape
