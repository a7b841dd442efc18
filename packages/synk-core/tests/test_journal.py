"""What an order may write into: never what somebody still has, or may get back."""

from __future__ import annotations

import numpy as np
import pytest

from synk_core._rank.undo import Journal


@pytest.fixture
def journal():
    made = Journal()
    made.begin()
    return made


def collective(journal, storage, number=0, fill=0.0):
    room = journal.room(number, storage)
    room[...] = fill
    if room is not storage[0]:
        journal.keep([storage])
        storage[0] = room
    return room


def test_two_arrays_take_turns(journal):
    storage = [np.zeros(3)]
    places = []
    for _ in range(6):
        collective(journal, storage)
        journal.begin()
        places.append(storage[0].ctypes.data)
    assert places[:2] * 3 == places
    assert len(set(places)) == 2


def test_an_array_made_in_this_order_is_used_again(journal):
    storage = [np.zeros(3)]
    journal.keep([storage])
    storage[0] = made = np.ones(3)
    assert journal.room(0, storage) is made


def test_a_value_that_an_act_has_left_as_it_was_is_not_written_to(journal):
    """As on a rank without rows: the function that was to change the variable did not run."""
    storage = [before := np.zeros(3)]
    journal.keep([storage])
    collective(journal, storage, fill=5.0)
    journal.undo()
    assert storage[0] is before
    assert before.tolist() == [0.0] * 3


@pytest.mark.parametrize("taken", [lambda array: array, lambda array: array[1:]])
def test_the_former_array_of_another_variable_is_not_written_to(journal, taken):
    """As after ``updates=[(last, w), (w, w + 1)]``: Theano makes no copy for `last`."""
    w, last = [before := np.arange(3.0)], [taken(np.zeros(3))]
    for _ in range(2):
        journal.keep([w, last])
        last[0], w[0] = taken(w[0]), w[0] + 1
        collective(journal, last, fill=-1.0)
        journal.undo()
        journal.begin()
        for _ in range(2):
            collective(journal, last, fill=-1.0)
            journal.begin()
        assert w[0] is before
        assert before.tolist() == [0.0, 1.0, 2.0]


def test_an_array_in_use_is_no_spare(journal):
    storage = [np.zeros(3)]
    mine, view = storage[0], None
    for _ in range(4):
        collective(journal, storage, fill=7.0)
        journal.begin()
        if view is None:
            view = storage[0][:2]
            view[...] = 3.0
    assert mine.tolist() == [0.0] * 3
    assert view.tolist() == [3.0] * 2
