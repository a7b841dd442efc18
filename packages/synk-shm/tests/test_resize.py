"""Growing and shrinking along the first axis."""

from __future__ import annotations

import secrets

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import synk_shm as shm


@pytest.mark.parametrize("backend", ["shm", "memfd"])
def test_within_capacity_nothing_moves(backend):
    a = shm.zeros((2, 3), capacity=10, backend=backend)
    a[...] = np.arange(6).reshape(2, 3)
    view, address = a[1], shm.handle(a)
    b = shm.resize(a, 10)
    assert b.ctypes.data == a.ctypes.data
    assert b.shape == (10, 3)
    assert np.array_equal(b[:2], np.arange(6).reshape(2, 3))
    assert not b[2:].any()
    b[1] = 9
    assert (view == 9).all()
    assert address.attach().shape == (2, 3)
    c = shm.resize(b, 1)
    assert c.shape == (1, 3)
    assert shm.segment(a).shape == (1, 3)


def test_beyond_capacity_the_contents_move():
    name = f"grows-{secrets.token_hex(5)}"
    a = shm.zeros((2, 3), capacity=4, name=name, mode=0o640)
    a[...] = 7
    b = shm.resize(a, 5)
    assert (b[:2] == 7).all()
    assert not b[2:].any()
    assert not np.shares_memory(a, b)
    assert shm.segment(b).capacity >= 8 * 3 * 8
    assert shm.segment(b).mode == 0o640
    assert shm.attach(name).ctypes.data == b.ctypes.data
    del a
    assert shm.attach(name).shape == (5, 3)
    assert len([info for info in shm.list() if info.name == name]) == 1


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(0, 20))
def test_any_sequence_keeps_the_rows_that_never_left(lengths, capacity):
    a = shm.zeros((0, 2), "i4", capacity=capacity)
    kept = 0
    for length in lengths:
        a = shm.resize(a, length)
        assert a.shape == (length, 2)
        kept = min(kept, length)
        assert (a[:kept] == np.arange(kept)[:, None]).all()
        a[...] = np.arange(length)[:, None]
        kept = length


def test_arrays_that_cannot_be_resized():
    a = shm.zeros((4, 3), capacity=8)
    for wrong, message in [
        (a[1:], "view"),
        (a[:, 1:], "view"),
        (a.T, "view"),
        (a.view("i8"), "view"),
        (a[:2], "has shape"),
        (np.zeros(3), "share"),
        (shm.zeros((2, 2), order="F"), "C order"),
        (shm.zeros(()), "first axis"),
        (shm.attach(shm.handle(a), readonly=True), "made"),
    ]:
        with pytest.raises(ValueError, match=message):
            shm.resize(wrong, 2)
    a.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        shm.resize(a, 2)
    a.flags.writeable = True
    shm.resize(a, 5)
    with pytest.raises(ValueError, match=r"\(4, 3\), but the segment now \(5, 3\)"):
        shm.resize(a, 6)
