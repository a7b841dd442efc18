"""The search for the rows to blame, without ranks."""

from __future__ import annotations

import doctest

from hypothesis import given
from hypothesis import strategies as st

from synk_core._rank import finite
from synk_core._rank.finite import Found, search


def test_the_example():
    assert doctest.testmod(finite).failed == 0


@given(
    st.integers(1, 3000).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1))))
)
def test_the_first_bad_row_is_found(case):
    count, bad = case
    looks = []

    def is_bad(start, stop):
        assert 0 <= start < stop <= count
        looks.append((start, stop))
        return any(start <= row < stop for row in bad)

    found = search(is_bad, count)
    assert len(looks) <= count.bit_length() + 5
    if not bad:
        assert found is None
        assert looks == [(0, count)]
        return
    first = min(bad)
    others = {count // 2, count - 1} - {0}
    assert found == Found(first + 1, True, first == 0 and bool(others) and others <= bad)


@given(st.integers(2, 500).flatmap(lambda n: st.tuples(st.just(n), st.integers(2, n))))
def test_rows_that_do_it_together_are_found_as_the_smallest_beginning(case):
    count, needed = case
    assert search(lambda start, stop: stop - start >= needed, count) == Found(needed, False, False)


def test_what_every_row_does_is_no_rows_fault():
    for count in (1, 2, 3, 7):
        assert search(lambda start, stop: True, count) == Found(1, True, count > 1)


def test_no_rows():
    assert search(lambda start, stop: True, 0) is None
