"""`data()` and `Data` with anything for arguments."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from _fuzz import anything, arrays, fuzzing, mostly
from hypothesis import given
from hypothesis import strategies as st

import synk_shm
from synk_core import Data
from synk_core.exceptions import SynkError
from synk_testing.engine import T

GOOD = arrays(dtypes=["f8", "f4", "i4", "?"], shapes=[(4, 3), (0, 3), (2, 3)])
DTYPES = st.sampled_from(["float64", "float32", "int8", np.dtype(">f8"), bool])
FULL = (synk_shm.ShmFullError,)
"""What a size gives that is possible, but not here."""


@fuzzing(400)
@given(data=st.data())
def test_making(house, data):
    draw = data.draw
    settings = {
        "dtype": DTYPES,
        "ndim": st.integers(0, 3),
        "minibatch": st.booleans(),
        "force_cast": st.booleans(),
        "oversize": st.sampled_from([1, 1.5, 3]),
        "name": st.sampled_from([None, "d"]),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(settings)), max_size=3, unique=True))
    options = {name: draw(mostly(settings[name])) for name in chosen}
    value = draw(mostly(GOOD))
    if draw(st.integers(0, 3)) == 0:
        options["var"] = draw(st.sampled_from([T.dmatrix(), T.fmatrix(), T.lvector()]))
    if draw(st.integers(0, 3)) == 0:
        options["shape"] = draw(st.sampled_from([(4, 3), (0, 0), (2,), (-1, 3), (2**40, 2**40)]))
    came, made = house.attempt(lambda: house.runtime.data(value, **options), FULL)
    if came and value is not None and "shape" not in options:
        with np.errstate(all="ignore"):
            expected = np.asarray(value).astype(made.dtype)
        np.testing.assert_array_equal(made.data, expected)
    house.check()


@fuzzing(250)
@given(data=st.data())
def test_changing(house, data):
    draw = data.draw
    held = house.runtime.data(np.arange(12.0).reshape(4, 3))
    expected = held.data.copy()
    ways = {
        "set_value": (mostly(GOOD), ["force_cast", "oversize"]),
        "set_shape": (mostly(st.sampled_from([(4, 3), (2, 3), (9, 3), [3, 4]])), ["oversize"]),
        "set_length": (mostly(st.integers(-1, 9)), ["oversize"]),
        "condition_data": (mostly(GOOD), ["force_cast"]),
    }
    for _ in range(draw(st.integers(1, 3))):
        way = draw(st.sampled_from(sorted(ways)))
        argument, names = ways[way]
        options = {name: draw(anything()) for name in names if draw(st.integers(0, 2)) == 0}
        given = draw(argument)
        came, _ = house.attempt(lambda: getattr(held, way)(given, **options), FULL)  # noqa: B023
        if came:
            expected = held.data.copy()
        # What failed has changed nothing, here and for the ranks.
        np.testing.assert_array_equal(held.data, expected)
        if held.shape[1] == 3:
            np.testing.assert_array_equal(house.witness(held, 0.0)[1], expected)
    house.check()


@fuzzing(150)
@given(key=anything(), value=anything())
def test_items_are_as_those_of_arrays(house, key, value):
    """What NumPy gives or raises for an array, `Data` give or raise."""
    plain = np.arange(12.0).reshape(4, 3)
    held = house.runtime.data(plain)

    def outcome(array):
        try:
            got = np.array(array[key])
            array[key] = value
        except Exception as error:
            return type(error)
        return got.tolist()

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = outcome(plain), outcome(held)
    assert str(first) == str(second)
    np.testing.assert_array_equal(held.data, plain)
    house.check()


def test_wrong_settings_are_told_in_words(house):
    for arguments, words in (
        ({"dtype": "nonsense", "ndim": 1}, "expected a NumPy dtype"),
        ({"value": "abc"}, r"dtype <U3, expected one of numbers or booleans"),
        ({"value": [None, 1.0]}, "dtype object, expected one of numbers"),
        ({"value": np.zeros(2, "M8[D]")}, "expected one of numbers"),
        ({"dtype": "U3", "shape": (2,)}, "expected one of numbers"),
        ({"value": ["a"], "var": T.dvector(), "dtype": "U3"}, "expected one of numbers"),
        ({"dtype": [("a", float)], "ndim": 1}, "expected one of numbers"),
        ({"dtype": float, "ndim": 10**9}, "from 0 to 32"),
        ({"dtype": float, "ndim": True}, "from 0 to 32"),
        ({"dtype": float, "ndim": 1, "name": 5}, "expected a str"),
        ({"dtype": float, "ndim": 1, "minibatch": "yes"}, "True or False"),
        ({"dtype": float, "shape": (2**40, 2**40)}, "address space"),
        ({"dtype": float, "shape": (2.5,)}, "tuple of 1 ints"),
        ({"value": 1.0, "oversize": float("inf")}, "finite"),
        ({"value": 1.0, "oversize": float("nan")}, "at least 1"),
        ({"value": "abc", "dtype": float, "ndim": 0, "force_cast": True}, "cannot be cast"),
    ):
        with pytest.raises(SynkError, match=words):
            house.runtime.data(**arguments)


def test_a_failed_change_keeps_the_value(house):
    held = house.runtime.data(np.arange(3.0))
    before = held.data
    for act in (
        lambda: held.set_shape((2**61,)),
        lambda: held.set_value(np.arange(9.0), oversize=0),
        lambda: held.set_length(2.5),
    ):
        with pytest.raises((SynkError, MemoryError)):
            act()
        assert held.data is before
    assert isinstance(held, Data)
