"""What happens between calls: failures, memory that moves, many acts, interrupts, threads."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from _busy import calling_in_threads
from _ops import FAST, picky

import synk_shm
from synk_core import Runtime
from synk_core.exceptions import InputTypeError, InputValueError, NestedCall, WorkerFailed
from synk_testing.engine import T, engine

x = T.dvector("x")


@pytest.mark.feature("proof")
def test_weights_are_those_of_the_last_call_that_succeeded(pair):
    w = engine.shared(np.zeros(1))
    for between in ("failure", "verify"):
        y = T.dvector("y")
        f = pair.function([y], (picky(y), "gather"), **FAST)
        f(np.arange(9.0))
        if between == "verify":
            f.verify(np.arange(2.0)).raise_if_wrong()
        else:
            with pytest.raises(WorkerFailed):
                f(np.array([1.0, 200.0]))
        assert f.rows == (5, 4)
        for reduce in (
            pair.collectives.all_reduce,
            lambda *args, **more: pair.step(pair.delayed.all_reduce(*args, **more)),
        ):
            pair.collectives.set_value(1, w, np.array([9.0]))
            w.set_value(np.zeros(1))
            reduce(w, "avg", weights=f)
            np.testing.assert_allclose(w.get_value(), 4.0)


def test_a_call_while_another_is_prepared_is_refused(pair):
    y = T.dvector("y")
    f = pair.function([y], (y.sum(), "sum"), **FAST)
    f(np.ones(5))

    class Lazy:
        def __array__(self, dtype=None, copy=None):
            f(np.full(5, 1000.0))
            return np.ones(3)

    with pytest.raises(NestedCall, match="inside a call"):
        pair.step(f.delayed(np.ones(5)), f.delayed(Lazy()))
    assert pair.step(f.delayed(np.ones(5)), f.delayed(np.ones(3))) == [5.0, 3.0]


def test_no_room_for_one_input_does_no_harm_to_the_next_call(pair, monkeypatch):
    y, z = T.dvector("y"), T.dvector("z")
    f = pair.function([y, z], ((y + z).sum(), "sum"), **FAST)
    small, large = np.ones(10), np.ones(1000)
    assert f(small, small) == 20
    empty, calls = synk_shm.empty, []

    def full(*arguments, **named):
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError("no room")
        return empty(*arguments, **named)

    monkeypatch.setattr(synk_shm, "empty", full)
    with pytest.raises(MemoryError):
        f(large, large)
    monkeypatch.undo()
    assert f(small, small) == 20
    assert f(large, large) == 2000


def test_delayed_collectives_read_their_values_when_the_step_begins(pair):
    w = engine.shared(np.zeros(2))
    data = pair.data(np.arange(4.0))
    scatter = pair.delayed.scatter(w, data)
    chosen = pair.delayed.set_value(1, w, data, batch=slice(1, None))
    data.set_value(np.arange(8.0))
    pair.step(scatter)
    np.testing.assert_array_equal(pair.collectives.gather(w, nd_up=0), np.arange(8.0))
    pair.step(chosen)
    np.testing.assert_array_equal(pair.collectives.get_value(1, w), np.arange(1.0, 8.0))
    data.free_memory()
    pair.step(scatter)
    assert pair.collectives.get_lengths(w) == (0, 0)


def test_neither_data_nor_functions_are_copied_by_accident(pair):
    data, f = pair.data(np.arange(4.0)), pair.function([x], (x.sum(), "sum"), name="total", **FAST)
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="copy its array"):
            way(data)
        with pytest.raises(TypeError, match=r"function total.*build it again with"):
            way(f)


def test_one_row_by_type_stays_one_row(pair):
    row = T.row("row")
    f = pair.function([row], (row.sum(axis=0), "sum"))
    values = np.array([[1.0, 2.0]], engine.config.floatX)
    np.testing.assert_array_equal(f(values, batch=[0]), [1, 2])
    with pytest.raises(InputValueError, match="6 rows are selected"):
        f(values, batch=[0] * 6)


def test_a_broadcast_after_an_act_that_changes_the_shape(pair):
    w = engine.shared(np.arange(4.0))
    double = pair.function([], [], updates=[(w, T.concatenate([w, w]))], **FAST)
    pair.step(double, pair.delayed.broadcast(w))
    assert pair.collectives.get_lengths(w) == (8, 8)
    pair.step(pair.delayed.all_gather(w), pair.delayed.broadcast(w))
    assert pair.collectives.get_lengths(w) == (16, 16)


def mapped_by(runtime, f):
    f(np.zeros(2))  # an order, with which they forget
    with open(f"/proc/{runtime.worker_pids[0]}/maps") as maps:
        return sum("synk" in line for line in maps)


def test_data_of_another_runtime_are_forgotten_too(pair):
    f = pair.function([x], (x.sum(), "sum"), **FAST)
    with Runtime(1) as other:
        before = mapped_by(pair, f)
        for n in range(10):
            data = other.data(np.ones(5000 + n))
            assert f(data) == 5000 + n
            data.set_value(np.ones(6000 * (n + 1)))
            assert f(data) == 6000 * (n + 1)
        with pytest.raises(InputTypeError):
            pair.step(f.delayed(other.data(np.ones(9))), f.delayed("nonsense"))
        del data
        assert mapped_by(pair, f) <= before + 1


def test_threads_that_distribute_at_the_start_take_turns():
    with Runtime(2) as runtime, calling_in_threads([runtime.distribute] * 3):
        pass
