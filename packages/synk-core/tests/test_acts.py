"""The table of acts, and orders that repeat."""

from __future__ import annotations

import numpy as np

from synk_core._master.acts import LIMIT, ActTable, Prepared
from synk_core._wire.messages import ArrayRef, Call, Collective, Form, Stop
from synk_testing.engine import T, engine


def test_a_call_that_repeats_sends_nothing_new(pair, monkeypatch):
    x, y = T.matrix("x"), T.vector("y")
    f = pair.function([x], (x.sum(axis=1), "gather"), bcast_inputs=[y], on_unused_input="ignore")
    data, small = pair.data(np.arange(24.0).reshape(8, 3)), np.ones(2)
    sent = []
    pair.distribute()
    give = pair._rank.line.give

    def spy(order, *rest):
        sent.append(order.extras)
        give(order, *rest)

    monkeypatch.setattr(pair._rank.line, "give", spy)
    random = np.random.RandomState(0)

    def calls():
        for start in range(3):
            f(data, small, batch=slice(start, start + 4))
            f(data, small, batch=random.permutation(8)[:5])
            f(data.data.copy(), small, batch=random.permutation(8)[:5])
            f(data, small)
            pair.collectives.all_reduce(s)

    s = engine.shared(np.ones(3))
    calls()
    del sent[:]
    calls()
    assert sent == [None] * 15
    data[:] = random.randn(8, 3)
    rows = random.permutation(8)[:5]
    np.testing.assert_array_equal(f(data, small, batch=rows), data[rows].sum(axis=1))
    assert sent[-1] is None
    data.set_length(9)
    data[:] = random.randn(9, 3)
    np.testing.assert_array_equal(f(data, small), data.data.sum(axis=1))
    assert sent[-1] is not None


def call_of(*keys):
    refs = tuple(ArrayRef(key, f"handle {key}") for key in keys)
    return Prepared(Call(0, Form(), None, (), refs, None, 1, ()))


def test_acts_are_forgotten_when_their_arrays_lie_elsewhere():
    table = ActTable()
    first, second = table.enter(call_of(1, 2), "a"), table.enter(call_of(2, 3), "b")
    numbers = [first.number, second.number]
    extras = table.extras()
    assert list(extras.acts) == numbers
    assert list(table.extras().acts) == numbers, "nobody has said that they were sent"
    table.sent(extras)
    assert table.extras() is None
    table.forget_arrays([1])
    extras = table.extras()
    assert (extras.acts, extras.forget_acts, extras.forget_arrays) == ({}, (numbers[0],), (1,))
    assert table.find("a") is None
    assert first.number == 0
    assert table.find("b") is second
    table.forget_arrays([3])
    assert table.find("b") is None


def test_acts_with_a_key_are_kept_and_others_are_for_one_order():
    table = ActTable()
    kept = table.enter(Prepared(Collective("gather", (1,))), ("gather", 1))
    once = table.enter(Prepared(Collective("scatter", (1,))))
    stop = table.enter(Prepared(Stop()))
    numbers = {once.number, stop.number}
    assert table.find(("gather", 1)) is kept
    table.sent(table.extras())
    table.end([kept, once, stop])
    assert [act.number > 0 for act in (kept, once, stop)] == [True, False, False]
    assert set(table.extras().forget_acts) == numbers


def test_the_table_does_not_grow_without_end():
    table = ActTable()
    acts = [table.enter(call_of(i), i) for i in range(LIMIT + 50)]
    assert all(act.number for act in acts), "they may be part of one step"
    table.end([])
    assert sum(act.number > 0 for act in acts) == LIMIT
    assert table.find(0) is None
    assert table.find(LIMIT + 49) is acts[-1]


def test_acts_that_travelled_with_an_order_that_failed_travel_again():
    table = ActTable()
    act = table.enter(call_of(1), "call")
    table.failed(table.extras())
    assert table.find("call") is None
    assert act.number == 0
    again = table.enter(call_of(1), "call")
    assert list(table.extras().acts) == [again.number]
