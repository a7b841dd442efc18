"""Digests: equal where all bits are, and surely different where one is not."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from synk_core._graph.digest import NARROW, WIDE, digest

EXAMPLES = 2000 if os.environ.get("SYNK_TESTS") == "all" else 150
DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
# Around the ends of rows, which other code takes care of: in bytes.
SIZES = [
    8 * words + extra
    for words in (0, NARROW, WIDE, WIDE + NARROW, 3 * WIDE + 2 * NARROW)
    for extra in (-8, -1, 0, 1, 7, 8)
    if 8 * words + extra >= 0
]


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_side=9, min_side=0))
    )
)
def test_equal_arrays_have_equal_digests(value):
    named = digest(value)
    assert digest(value.copy()) == named
    assert digest(value.copy(order="F")) == named
    spread = np.zeros((*value.shape, 2), value.dtype)
    spread[..., 0] = value
    assert digest(spread[..., 0]) == named


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_a_flipped_bit_is_always_seen(data):
    size = data.draw(st.sampled_from(SIZES[1:]) | st.integers(1, 5 * 8 * NARROW), "bytes")
    seed = data.draw(st.integers(0, 99), "seed")
    value = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    flipped = value.copy()
    flipped[data.draw(st.integers(0, size - 1), "byte")] ^= 1 << data.draw(st.integers(0, 7), "bit")
    assert digest(flipped) != digest(value)


def test_differences_that_are_alike_do_not_cancel_out():
    # Signs of many numbers, and rows in another order: sums of words would not see these.
    for shape in ((64, 2048), (4, WIDE), (WIDE + NARROW, 16)):
        value = np.random.default_rng(0).standard_normal(shape)
        seen = {digest(value), digest(-value), digest(value[::-1]), digest(np.roll(value, 1, 0))}
        swapped, negated = value.copy(), value.copy()
        swapped[[0, 1]] = value[[1, 0]]
        negated[:2] *= -1
        zeros = np.zeros(shape)
        seen |= {digest(each) for each in (swapped, negated, zeros, -zeros)}
        assert len(seen) == 8


def test_it_is_bits_that_are_compared():
    nan = np.full(2, np.nan)
    other = nan.copy()
    other.view(np.uint64)[0] ^= np.uint64(1)
    assert np.isnan(other).all()
    assert digest(nan) == digest(nan.copy())
    assert digest(nan) != digest(other)


def test_dtype_and_shape_count():
    zeros = np.zeros((2, 6))
    alike = [zeros, zeros.reshape(3, 4), zeros.reshape(-1), zeros.astype("float32")]
    alike += [zeros.astype("int64"), np.zeros(()), np.zeros(0), np.zeros((0, 3)), np.zeros((3, 0))]
    assert len({digest(value) for value in alike}) == len(alike)
