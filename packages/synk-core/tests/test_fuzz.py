"""Calls with anything for arguments: a clear error or the right result, and no harm either way."""

from __future__ import annotations

import numpy as np
import pytest
from _fuzz import anything, arrays, fuzzing, mostly
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.fixture(scope="module")
def strict(house):
    i = T.lvector("i")
    b = engine.In(T.fcol("b"), strict=True)
    return house.runtime.function(
        [i, b], [(i.sum(), "sum"), (b.variable, None)], name="strict", mode="FAST_COMPILE"
    )


@pytest.fixture(scope="module")
def g(house):
    s = engine.shared(np.arange(7.0), name="s")
    total = house.runtime.function(
        [], [(s.sum(), "sum")], sliceable_shareds=[s], name="g", mode="FAST_COMPILE"
    )
    house.runtime.collectives.scatter(s, np.arange(7.0))
    return total


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
        options["output_subset"] = draw(mostly(st.sampled_from([[0], [1, 0], []])))
    if draw(st.integers(0, 9)) == 0:
        options["batch_s"] = draw(anything())
    came, result = house.attempt(lambda: f(x, v, y, **options))
    if came:
        with np.errstate(all="ignore"):
            xs, vs = rows_of(options.get("batch"), x, v)
            expected = [np.asarray(xs, float).sum() * np.asarray(y, float).sum(), vs]
        for i, value in zip(options.get("output_subset") or range(len(result)), result):
            np.testing.assert_allclose(value, np.asarray(expected[i], float))
    house.check()


@fuzzing(150)
@given(data=st.data())
def test_arguments_of_any_number_and_name(house, f, data):
    draw = data.draw
    arguments = draw(st.lists(mostly(GOOD_X), max_size=4))
    names = st.sampled_from(["x", "v", "y", "z", "batch", "output_subset", "num_slices"])
    named = draw(st.dictionaries(names, mostly(GOOD_V), max_size=3))
    if draw(st.integers(0, 3)) == 0:
        arguments = [draw(st.dictionaries(names, GOOD_V, max_size=3))]
    house.attempt(lambda: f(*arguments, **named))
    house.check()


@fuzzing(120)
@given(
    i=mostly(arrays(dtypes=["i8", "i1", "?"], shapes=[(3,)])), b=mostly(arrays(["f4"], [(3, 1)]))
)
def test_inputs_that_are_picky(house, strict, i, b):
    came, result = house.attempt(lambda: strict(i, b))
    if came:
        assert result[0] == np.asarray(i).sum()
        np.testing.assert_array_equal(result[1], np.asarray(b)[: len(result[1])])
    house.check()


@fuzzing(150)
@given(
    batch_s=mostly(
        st.one_of(
            st.integers(-2, 2), st.lists(st.lists(st.integers(-2, 1)), min_size=3, max_size=3)
        )
    ),
    num_slices=mostly(st.integers(1, 5)),
)
def test_rows_of_sliceables(house, g, batch_s, num_slices):
    parts = np.array_split(np.arange(7.0), RANKS)
    came, result = house.attempt(lambda: g(batch_s=batch_s, num_slices=num_slices))
    if came:
        listed = isinstance(batch_s, (list, tuple)) and any(
            isinstance(b, (slice, list, tuple, range, np.ndarray)) for b in batch_s
        )
        own = batch_s if listed else [batch_s] * RANKS
        expected = sum(rows_of(b, part)[0].sum() for b, part in zip(own, parts))
        np.testing.assert_allclose(result, [expected])
    house.check()


@fuzzing(100)
@given(data=st.data())
def test_other_methods_of_functions(house, f, data):
    draw = data.draw
    x, v, y = draw(mostly(GOOD_X)), draw(mostly(GOOD_V)), draw(mostly(st.just([1.0, 2.0])))
    way = draw(st.sampled_from(["as_theano", "verify", "build_inputs", "delayed"]))
    options = {}
    if way == "verify" and draw(st.booleans()):
        options["batch"] = draw(anything())
    if way == "build_inputs" and draw(st.booleans()):
        name = draw(st.sampled_from(["force_cast", "oversize", "minibatch"]))
        options[name] = draw(anything())

    def act():
        made = getattr(f, way)(x, v, y, **options)
        return house.runtime.step(made) if way == "delayed" else made

    # What Theano says of an argument is Theano's, and is handed on.
    also = (TypeError, ValueError, AttributeError) if way == "as_theano" else ()
    house.attempt(act, also)
    house.check()


@fuzzing(80)
@given(acts=st.lists(anything(), max_size=3))
def test_steps_of_anything(house, acts):
    house.attempt(lambda: house.runtime.step(*acts))
    house.check()


@fuzzing(100)
@given(value=anything())
def test_questions_about_anything(house, value):
    house.attempt(lambda: house.runtime.check(value))
    house.attempt(lambda: str(house.runtime.stats(value)))
    house.check()


def wrong_or(*good):
    return mostly(st.sampled_from(good))


@fuzzing(120)
@given(data=st.data())
def test_functions_of_anything(house, data):
    """What is built computes; what is refused leaves nothing behind."""
    draw, runtime = data.draw, house.runtime
    x, y = T.dmatrix("x"), T.dvector("y")
    options = {
        "bcast_inputs": wrong_or([y], (y,)),
        "updates": wrong_or([(house.vector, house.vector)], {house.vector: house.vector}, []),
        "givens": wrong_or([], {}),
        "sliceable_shareds": wrong_or([], None),
        "name": wrong_or("f", None),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(options)), max_size=2, unique=True))
    given = {name: draw(options[name]) for name in chosen}
    inputs = draw(wrong_or([x], (x,)))
    outputs = draw(wrong_or((x.sum(), "sum"), [(x.sum(), "sum")], ((x.sum(), "sum"),)))
    before = len(runtime._rank.functions)
    # What Theano says of a graph is Theano's, and is handed on.
    came, made = house.attempt(
        lambda: runtime.function(
            inputs, outputs, on_unused_input="ignore", mode="FAST_COMPILE", **given
        ),
        (TypeError, ValueError, AttributeError, NotImplementedError, MissingInputError),
    )
    if came and outputs == [(x.sum(), "sum")]:
        assert made is not None
    if not came:
        assert len(runtime._rank.functions) == before
    house.check()
