"""Anything for arguments: a clear error or the right result, and no harm either way."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from _fuzz import anything, arrays, fuzzing, mostly
from hypothesis import given
from hypothesis import strategies as st

import synk_shm
from synk_core._plan.collectives import COLLECTIVES
from synk_core.engine import MissingInputError
from synk_testing.engine import T, engine

RANKS = 3


@pytest.fixture(scope="module")
def f(house):
    x, v, y = T.dmatrix("x"), T.dvector("v"), T.dvector("y")
    return house.runtime.function(
        [x, v],
        [(x.sum() * y.sum(), "sum"), (v, "gather")],
        bcast_inputs=[y],
        name="f",
        mode="FAST_COMPILE",
    )


def among(*good):
    return mostly(st.sampled_from(good))


GOOD_X = arrays(dtypes=["f8", "f4", "i4"], shapes=[(4, 3)])
GOOD_V = arrays(dtypes=["f8", "f4", "i4"], shapes=[(4,), (6,), (4,)])


def rows_of(batch, *values):
    """The rows that NumPy takes of each, for any batch that a call has taken."""
    arrays = [np.asarray(value) for value in values]
    if batch is None:
        return arrays
    if isinstance(batch, (int, np.integer)):
        return [a[:batch] for a in arrays]
    if not isinstance(batch, slice):
        batch = np.asarray(batch)
        batch = batch if batch.size else np.empty(0, int)
    return [a[batch] for a in arrays]


BATCHES = st.one_of(
    st.none(),
    st.integers(-5, 5),
    st.lists(st.integers(-4, 3), max_size=6),
    st.sampled_from([slice(1, None), slice(None, None, -1), range(1, 4), range(3, -1, -1)]),
    st.just(np.array([True, False, True, True])),
)


@fuzzing(350)
@given(data=st.data())
def test_calls(house, f, data):
    draw = data.draw
    x, v, y = draw(mostly(GOOD_X)), draw(mostly(GOOD_V)), draw(mostly(st.just([1.0, 2.0])))
    options = {}
    if draw(st.booleans()):
        options["batch"] = draw(mostly(BATCHES))
    if draw(st.integers(0, 3)) == 0:
        options["num_slices"] = draw(mostly(st.integers(1, 6)))
    if draw(st.integers(0, 3)) == 0:
        options["output_subset"] = draw(among([0], [1, 0], []))
    if draw(st.integers(0, 9)) == 0:
        options["batch_s"] = draw(anything())
    came, result = house.attempt(lambda: f(x, v, y, **options))
    if came:
        with np.errstate(all="ignore"):
            xs, vs = rows_of(options.get("batch"), x, v)
            expected = [np.asarray(xs, float).sum() * np.asarray(y, float).sum(), vs]
        wanted = options.get("output_subset")
        for i, value in zip(range(len(result)) if wanted is None else wanted, result):
            np.testing.assert_allclose(value, np.asarray(expected[i], float))
    house.check()


@fuzzing(120)
@given(data=st.data())
def test_functions_of_anything(house, data):
    draw, runtime = data.draw, house.runtime
    x, y = T.dmatrix("x"), T.dvector("y")
    options = {
        "bcast_inputs": among([y], (y,)),
        "updates": among([(house.vector, house.vector)], {house.vector: house.vector}, []),
        "givens": among([], {}),
        "sliceable_shareds": among([], None),
        "name": among("f", None),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(options)), max_size=2, unique=True))
    given = {name: draw(options[name]) for name in chosen}
    inputs = draw(among([x], (x,)))
    outputs = draw(among((x.sum(), "sum"), [(x.sum(), "sum")], ((x.sum(), "sum"),)))
    before, unused = len(runtime._rank.functions), engine.compile.UnusedInputError
    # What Theano says of a graph is Theano's, and is handed on.
    came, made = house.attempt(
        lambda: runtime.function(
            inputs, outputs, on_unused_input="ignore", mode="FAST_COMPILE", **given
        ),
        (TypeError, ValueError, AttributeError, NotImplementedError, MissingInputError, unused),
    )
    if came and outputs == [(x.sum(), "sum")]:
        assert made is not None
    if not came:
        assert len(runtime._rank.functions) == before
    house.check()


OPS = ["sum", "max", "min", "prod", "avg"]
VALUES = st.one_of(
    arrays(dtypes=["f8", "f4", "i4", "i8"], shapes=[(3,), (5, 3), (0,), ()]),
    st.lists(arrays(dtypes=["f8", "f4", "i8"], shapes=[(3,), (5, 3), ()]), max_size=3),
)


@fuzzing(300)
@given(data=st.data())
def test_collectives(house, data):
    draw, collectives = data.draw, house.runtime.collectives
    kind = draw(st.sampled_from([*list(COLLECTIVES)[:-1], "get_lengths"]))
    several = st.lists(st.sampled_from(house.variables), min_size=1, max_size=3)
    arguments = [draw(mostly(st.sampled_from(house.variables) | several))]
    options = {}
    if kind in ("set_value", "get_value"):
        arguments.insert(0, draw(mostly(st.integers(0, RANKS - 1))))
    if kind in ("scatter", "set_value") or (kind == "broadcast" and draw(st.booleans())):
        arguments.append(draw(mostly(VALUES)))
    if kind in ("scatter", "set_value") and draw(st.booleans()):
        options["batch"] = draw(among(slice(0, 2), [0, 1], 2, None))
    if kind == "gather" and draw(st.booleans()):
        options["nd_up"] = draw(mostly(st.integers(0, 1)))
    if kind in ("reduce", "all_reduce") and draw(st.booleans()):
        options["op"] = draw(among(*OPS))
    if kind == "reduce" and draw(st.booleans()):
        options["in_place"] = draw(st.booleans())
    if kind == "all_reduce" and draw(st.booleans()):
        weights = st.lists(st.sampled_from([0, 1, 2.5]), min_size=RANKS, max_size=RANKS)
        options["weights"] = draw(mostly(weights))
    delayed = draw(st.integers(0, 3)) == 0
    maker = house.runtime.delayed if delayed else collectives

    def act():
        made = getattr(maker, kind)(*arguments, **options)
        return house.runtime.step(made) if delayed else made

    came, _ = house.attempt(act)
    house.check(unchanged=not came)


GOOD = arrays(dtypes=["f8", "f4", "i4", "?"], shapes=[(4, 3), (0, 3), (2, 3)])
DTYPES = st.sampled_from(["float64", "float32", "int8", np.dtype(">f8"), bool])
FULL = (synk_shm.ShmFullError,)


@fuzzing(400)
@given(data=st.data())
def test_making_data(house, data):
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
def test_changing_data(house, data):
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
        np.testing.assert_array_equal(held.data, expected)
        if held.shape[1] == 3:
            np.testing.assert_array_equal(house.witness(held, 0.0)[1], expected)
    house.check()


@fuzzing(150)
@given(key=anything(), value=anything())
def test_items_of_data_are_as_those_of_arrays(house, key, value):
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
