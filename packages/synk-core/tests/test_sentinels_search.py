"""The search for the row to blame, without ranks."""

from __future__ import annotations

import doctest

from hypothesis import given
from hypothesis import strategies as st

from synk_core._rank import finite
from synk_core._rank.finite import last_of_bad


def test_the_example():
    assert doctest.testmod(finite).failed == 0


@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_the_first_row_that_makes_it_bad_is_found(case):
    count, first = case
    looks = []

    def is_bad(stop):
        assert 0 < stop <= count
        looks.append(stop)
        return stop > first

    assert last_of_bad(is_bad, count) == (first if first < count else None)
    assert len(looks) <= count.bit_length() + 1
