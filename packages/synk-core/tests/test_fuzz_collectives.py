"""Collectives with anything for arguments: an error that changes nothing, or what NumPy gives."""

from __future__ import annotations

from functools import partial

import numpy as np
from _fuzz import anything, arrays, fuzzing, mostly
from hypothesis import given
from hypothesis import strategies as st

from synk_core._plan.collectives import COLLECTIVES

RANKS = 3
OPS = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "avg": np.mean}


def chosen(house, draw):
    """One of the house's variables, several, or something else."""
    good = st.one_of(
        st.sampled_from(house.variables),
        st.lists(st.sampled_from(house.variables), min_size=1, max_size=3),
    )
    return draw(mostly(good))


VALUES = st.one_of(
    arrays(dtypes=["f8", "f4", "i4", "i8"], shapes=[(3,), (5, 3), (0,), ()]),
    st.lists(arrays(dtypes=["f8", "f4", "i8"], shapes=[(3,), (5, 3), ()]), max_size=3),
)


@fuzzing(300)
@given(data=st.data())
def test_collectives(house, data):
    draw, collectives = data.draw, house.runtime.collectives
    kind = draw(st.sampled_from([*COLLECTIVES, "get_lengths"]))
    variables = chosen(house, draw)
    arguments = [variables]
    options = {}
    if kind in ("set_value", "get_value"):
        arguments.insert(0, draw(mostly(st.integers(0, RANKS - 1))))
    if kind in ("scatter", "set_value") or (kind == "broadcast" and draw(st.booleans())):
        arguments.append(draw(mostly(VALUES)))
    if kind in ("scatter", "set_value") and draw(st.booleans()):
        batch = st.sampled_from([slice(0, 2), [0, 1], 2, None])
        options["batch"] = draw(mostly(batch))
    if kind == "gather" and draw(st.booleans()):
        options["nd_up"] = draw(mostly(st.integers(0, 1)))
    if kind in ("reduce", "all_reduce") and draw(st.booleans()):
        options["op"] = draw(mostly(st.sampled_from(sorted(OPS))))
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
    # Nothing is half done: what failed has changed nothing on any rank.
    house.check(unchanged=not came)


@fuzzing(150)
@given(
    values=st.lists(arrays(dtypes=["f8"], shapes=[(3,)]), min_size=RANKS, max_size=RANKS),
    op=mostly(st.sampled_from(sorted(OPS)), st.sampled_from(["c_sum", "mean", None, 5, "SUM", ""])),
    weights=st.one_of(
        st.none(),
        mostly(
            st.lists(st.sampled_from([0, 1, 2, 0.5]), min_size=RANKS, max_size=RANKS),
            st.sampled_from([[1, 1], [0, 0, 0], [1, -1, 1], [np.nan, 1, 1], [np.inf, 1, 1], "abc"]),
        ),
    ),
)
def test_reductions_that_come_to_a_result_are_right(house, values, op, weights):
    values = [np.asarray(v) for v in values]
    if any(isinstance(v, np.ma.MaskedArray) for v in values) or not np.isfinite(values).all():
        values = [np.arange(3.0) + rank for rank in range(RANKS)]
    for rank, value in enumerate(values):
        house.runtime.collectives.set_value(rank, house.vector, value)
    came, _ = house.attempt(
        lambda: house.runtime.collectives.all_reduce(house.vector, op, weights=weights)
    )
    found = house.runtime.collectives.gather(house.vector)
    if came:
        plain = op[2:] if op.startswith("c_") else op
        counted = np.ones(RANKS) if weights is None else np.array(weights, float)
        part = np.array(values)[counted > 0]
        if plain == "avg":
            expected = np.average(np.array(values), axis=0, weights=counted)
        else:
            expected = OPS[plain](part, axis=0)
        np.testing.assert_allclose(found, [expected] * RANKS)
    else:
        np.testing.assert_array_equal(found, values)
    house.restore()
    house.check()


def test_weights_that_are_no_numbers_to_divide_by(house):
    reduce = house.runtime.collectives.all_reduce
    for weights in ([np.inf, 1, 1], [1e308, 1e308, 1e308], [10**400, 1, 1]):
        came, error = house.attempt(partial(reduce, house.vector, "avg", weights=weights))
        assert not came
        assert "weights" in str(error)


def test_ranks_are_ints(house):
    for rank in (True, np.True_, 1.0, "1", -1, RANKS, None):
        get_value = house.runtime.collectives.get_value
        came, error = house.attempt(partial(get_value, rank, house.vector))
        assert not came
        assert "expected an int from 0 to 2" in str(error)


@fuzzing(80)
@given(first=anything(), second=anything())
def test_no_more_variables_than_before(house, first, second):
    """What is refused leaves nothing in the registry that all ranks share."""
    before = house.runtime._rank.registry.end
    house.attempt(lambda: house.runtime.collectives.broadcast([house.vector, first], second))
    assert house.runtime._rank.registry.end == before
