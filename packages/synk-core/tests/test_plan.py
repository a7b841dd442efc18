"""The plan against NumPy's own indexing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synk_core._plan.rows import kept, select, selection_for, split_rows
from synk_core.exceptions import BatchError, InputValueError


def rows_of(selection):
    """The row numbers that a selection stands for, from its definition."""
    if selection.index is not None:
        return selection.index.tolist()
    return [selection.start + i * selection.step for i in range(selection.count)]


@given(st.integers(0, 1000), st.integers(1, 40))
def test_shares_are_contiguous_and_even_with_larger_ones_first(count, parts):
    shares = split_rows(count, parts)
    assert [row for start, stop in shares for row in range(start, stop)] == list(range(count))
    sizes = [stop - start for start, stop in shares]
    assert len(sizes) == parts
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@given(st.data(), st.integers(1, 50))
def test_slices_select_numpys_rows(data, length):
    bound = st.none() | st.integers(-length, length)
    step = st.none() | st.integers(-7, 7).filter(bool)
    batch = slice(data.draw(bound), data.draw(bound), data.draw(step))
    selection = select(batch, length)
    expected = np.arange(length)[batch].tolist()
    assert rows_of(selection) == expected
    if expected:
        assert (selection.lowest, selection.highest) == (min(expected), max(expected))


@given(st.data(), st.integers(1, 50))
def test_indexes_select_numpys_rows(data, length):
    index = data.draw(st.lists(st.integers(-length, length - 1)))
    for batch in (index, np.array(index, dtype=np.int32)):
        assert rows_of(select(batch, length)) == np.arange(length)[np.array(index, int)].tolist()


@given(st.lists(st.booleans(), min_size=1), st.integers(0, 20))
def test_masks_and_first_rows_select_numpys_rows(mask, count):
    assert rows_of(select(np.array(mask), len(mask))) == np.flatnonzero(mask).tolist()
    assert rows_of(select(count, 20)) == list(range(count))


def test_rows_that_are_not_there_are_refused():
    huge = np.array([2**64 - 1], np.uint64)
    for batch in (11, -11, slice(0, 11), slice(-11, None), [10], [-11], np.ones(9, bool), huge):
        with pytest.raises(BatchError, match="10"):
            select(batch, 10)


def test_other_objects_are_no_selection():
    for batch in (1.5, "abc", [[1, 2]], np.array([0.5]), slice("a", None), True):
        with pytest.raises((InputValueError, TypeError)):
            select(batch, 10)
    endless = []
    endless.append(endless)
    assert kept(endless)[0][0] is endless


def test_different_lengths_need_a_batch():
    with pytest.raises(InputValueError, match=r"x: 5, y: 7"):
        selection_for(None, [5, 7], [False, False], ["x", "y"])
    assert rows_of(selection_for([1, 4], [5, 7], [False, False], ["x", "y"])) == [1, 4]
    with pytest.raises(BatchError, match="input x is too short"):
        selection_for([1, 5], [5, 7], [False, False], ["x", "y"])
    with pytest.raises(InputValueError, match="different lengths"):
        selection_for([-1], [5, 7], [False, False], ["x", "y"])


def test_a_minibatch_has_a_row_for_each_entry_or_begins_at_the_lowest():
    selection = selection_for([12, 9, 12], [20, 3], [False, True], ["x", "y"])
    assert rows_of(selection) == [12, 9, 12]
    with pytest.raises(BatchError, match="input y is too short"):
        selection_for([12, 9, 12, 9], [20, 3], [False, True], ["x", "y"])
    assert selection_for(slice(10, 13), [20, 3], [False, True], ["x", "y"]).lowest == 10
    with pytest.raises(BatchError, match="input y is too short"):
        selection_for(slice(9, 13), [20, 3], [False, True], ["x", "y"])
    assert selection_for(slice(100, 103), [3], [True], ["y"]).count == 3


def test_where_all_inputs_are_minibatches_nothing_counts_from_the_end():
    def chosen(batch):
        return rows_of(selection_for(batch, [8], [True], ["y"]))

    assert chosen(slice(None)) == list(range(8))
    assert chosen(slice(2, None)) == list(range(2, 10))
    assert chosen(slice(100, None, 4)) == [100, 104]
    assert chosen([107, 100]) == [107, 100]
    assert chosen(np.array([False, True])) == [1]
    for batch in (slice(-4, None), slice(None, None, -1), slice(0, -1)):
        with pytest.raises(InputValueError, match="counts from the end"):
            chosen(batch)
    with pytest.raises(BatchError, match="cannot be counted from the end"):
        chosen([-1])
    with pytest.raises(BatchError, match="too short"):
        chosen([100] * 9)
