"""`Data` as the reference has it."""

from __future__ import annotations

import numpy as np
import pytest

from synk_core.exceptions import InputTypeError, InputValueError, SynkError
from synk_testing.engine import T


def test_it_reads_and_writes_like_an_array(pair):
    data = pair.data(np.arange(6.0).reshape(2, 3), name="d")
    assert (data.shape, data.dtype, data.ndim, data.size, len(data)) == ((2, 3), float, 2, 6, 2)
    data[0, ::2] = 9
    np.testing.assert_array_equal(data[:], [[9, 1, 9], [3, 4, 5]])
    np.testing.assert_array_equal(np.asarray(data), data.data)
    assert repr(data) == "<Data 'd' float64 shape=(2, 3)>"


def test_dtype_and_ndim_come_from_value_variable_or_arguments(pair):
    assert pair.data([1, 2]).dtype == np.int64
    assert pair.data(var=T.ftensor3()).ndim == 3
    assert pair.data(dtype="int8", ndim=1).shape == (0,)
    assert pair.data(dtype="int8", shape=(2, 2)).data.tolist() == [[0, 0], [0, 0]]
    assert pair.data([1, 2], var=T.fvector()).dtype == np.float32
    with pytest.raises(TypeError, match="dtype=None"):
        pair.data()
    with pytest.raises(InputTypeError, match="ndim=None"):
        pair.data(dtype="float32")


def test_values_are_converted_only_where_nothing_is_lost(pair):
    data, integers = pair.data(var=T.fvector()), pair.data(var=T.ivector())
    for value in ([1, 2, 3], [0.1], [np.nan, np.inf, 1.5]):
        data.set_value(value)
        np.testing.assert_array_equal(data.data, np.float32(value))
    data.set_value(np.full(3, 0.5), force_cast=True)
    np.testing.assert_array_equal(data.data, np.float32([0.5] * 3))
    assert integers.condition_data([3.0, 4.0]).dtype == np.int32
    numbers = "expected numbers of dtype float32"
    odd = ["abc", ["abc"], None, [None], np.zeros(3, "M8[D]"), np.ones(3, object)]
    for held, value, match in (
        (data, np.zeros(3), "got dtype float64, expected float32"),
        (data, np.zeros((2, 2), "float32"), "got 2 dimensions"),
        (data, [1e300], "."),
        (integers, [1.5], "."),
        *((data, value, numbers) for value in odd),
    ):
        with pytest.raises(InputTypeError, match=match):
            held.set_value(value)
    with pytest.raises(InputTypeError):
        pair.data([300, 5], dtype="int8")


def test_growing_keeps_contents_and_uses_the_allocation(pair):
    data = pair.data(np.arange(4.0), oversize=2)
    assert data.alloc_size == 8
    address = data.data.ctypes.data
    data.set_length(8)
    assert data.data.ctypes.data == address
    np.testing.assert_array_equal(data.data, [0, 1, 2, 3, 0, 0, 0, 0])
    data.set_length(20, oversize=1.5)
    assert data.alloc_size == 30
    np.testing.assert_array_equal(data.data[:4], np.arange(4))
    assert not data.data[4:].any()
    data.set_length(2)
    assert (data.alloc_size, data.data.tolist()) == (30, [0, 1])
    data.set_length(4)  # what was cut off is there again
    assert data.data.tolist() == [0, 1, 2, 3]
    data.set_shape((1,))
    data.set_length(31)  # but not in a new allocation
    assert data.data.tolist() == [0] * 31
    data.free_memory()
    assert (data.alloc_size, data.shape) == (0, (0,))


def test_bad_shapes_and_settings_are_refused(pair):
    data = pair.data(np.zeros((2, 2)))
    for error, match, act in (
        (InputValueError, "non-negative", lambda: data.set_shape((2, -1))),
        (InputValueError, "expected 2", lambda: data.set_shape((2,))),
        (InputValueError, "oversize", lambda: data.set_value(np.zeros((9, 9)), oversize=0.5)),
        (InputValueError, "address space", lambda: data.set_length(10**308, oversize=1e308)),
        (InputTypeError, "scalar", lambda: pair.data(1.0).set_length(3)),
        (SynkError, "a NumPy dtype", lambda: pair.data(dtype="nonsense", ndim=1)),
        (SynkError, "numbers or booleans", lambda: pair.data("abc")),
        (SynkError, "from 0 to 32", lambda: pair.data(dtype=float, ndim=True)),
        (SynkError, "expected a str", lambda: pair.data(1.0, name=5)),
        (SynkError, "True or False", lambda: pair.data([1.0], minibatch="yes")),
        (SynkError, "address space", lambda: pair.data(dtype=float, shape=(2**40, 2**40))),
        (SynkError, "tuple of 1 ints", lambda: pair.data(dtype=float, shape=(2.5,))),
        (SynkError, "cannot be cast", lambda: pair.data("a", dtype=float, ndim=0, force_cast=True)),
    ):
        with pytest.raises(error, match=match):
            act()
