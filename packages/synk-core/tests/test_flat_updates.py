"""Updates of many variables as one computation: the same numbers, whatever happens to a value.

No order of operations rounds multiples of powers of two.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
import theano
import theano.tensor as T
from _ops import picky

from synk_core import Runtime, WorkerFailed, flat_updates
from synk_core._graph import flat_updates as implementation
from synk_core._graph.flat_updates import ALIGNMENT, Flatten, Unflatten

WIDE = ALIGNMENT // 8
SHAPES = [(WIDE, 3), (2 * WIDE,), (1, WIDE), (3, 5)]
RATE, KEPT = 0.25, 0.5


class Model:
    def __init__(self, runtime):
        random = np.random.RandomState(7)
        self.runtime = runtime
        self.values = [random.randint(-64, 64, shape) / 8 for shape in SHAPES]
        self.velocities = [np.zeros(shape) for shape in SHAPES]
        self.params = [theano.shared(v, f"w{i}") for i, v in enumerate(self.values)]
        states = [theano.shared(v, f"v{i}") for i, v in enumerate(self.velocities)]
        x = T.dmatrix("x")
        self.flat = theano.shared(np.zeros(sum(v.size for v in self.values)), "flat")
        self.gradient = runtime.function([x], updates=[(self.flat, (x * 1.0).sum(axis=0), "sum")])
        updates, start = [], 0
        for param, state, shape in zip(self.params, states, SHAPES):
            stop = start + int(np.prod(shape))
            grad = T.patternbroadcast(self.flat[start:stop].reshape(shape), param.broadcastable)
            moved = KEPT * state - RATE * grad
            updates += [(state, moved), (param, param + moved)]
            start = stop
        self.together = flat_updates(updates, 2)
        self.update = runtime.function([], updates=self.together, name="update")

    def step(self):
        random = np.random.RandomState(3)
        rows = random.randint(-8, 8, (self.runtime.size + 1, self.flat.get_value().size)) * 1.0
        self.gradient(rows)
        self.runtime.collectives.all_reduce(self.flat, "sum")
        self.update()
        self.move(rows.sum(axis=0))

    def move(self, gradient):
        parts = np.split(gradient, np.cumsum([v.size for v in self.values])[:-1])
        for i, part in enumerate(parts):
            self.velocities[i] = KEPT * self.velocities[i] - RATE * part.reshape(SHAPES[i])
            self.values[i] = self.values[i] + self.velocities[i]

    def require(self):
        for param, value in zip(self.params, self.values):
            held = self.runtime.collectives.gather(param, nd_up=1)
            np.testing.assert_array_equal(held, [value] * self.runtime.size)

    @property
    def arrays(self):
        return [param.get_value(borrow=True) for param in self.params]

    @property
    def are_parts(self):
        return len({id(array.base) for array in self.arrays}) == 1


@pytest.fixture
def model(trio):
    with theano.configparser.change_flags(mode="FAST_COMPILE"):
        yield Model(trio)


def unflattened(updates):
    return sum(v.owner is not None and isinstance(v.owner.op, Unflatten) for _, v in updates)


def test_a_rules_updates_are_computed_together_whatever_happens_to_values(model):
    params, collectives = model.params, model.runtime.collectives
    assert unflattened(model.together) == 2 * len(SHAPES)
    nodes = model.update._plain.maker.fgraph.apply_nodes
    assert sum(isinstance(node.op, Flatten) for node in nodes) == 2

    def go_on():
        model.require()
        for _ in range(2):
            model.step()
            model.require()
            assert model.are_parts

    go_on()
    model.values[1] = model.values[1] * 2
    collectives.broadcast(params[1], model.values[1])
    go_on()
    # On processors, `get_value(borrow=True)` returns the value itself.
    params[2].get_value(borrow=True)[...] = 4.0
    collectives.broadcast(params[2])
    model.values[2] = np.full(SHAPES[2], 4.0)
    go_on()
    first = params[0].get_value()
    collectives.broadcast(params[0], first + 1)
    collectives.broadcast(params[0], first)
    go_on()
    collectives.all_reduce(params, "sum")
    model.values = [value * model.runtime.size for value in model.values]
    go_on()
    model.runtime.step(model.update.delayed(), model.runtime.delayed.all_reduce(params, "max"))
    model.move(model.flat.get_value())
    go_on()
    read, kept = params[0].get_value(), model.values[0]
    model.step()
    np.testing.assert_array_equal(read, kept)
    read[...] = -1
    model.require()


def test_a_failed_step_changes_nothing(model):
    x = T.dvector("x")
    fails = model.runtime.function([x], (picky(x), "gather"))
    for culprit, error in ((0, ValueError), (2, WorkerFailed)):
        model.step()
        values = np.zeros(3)
        values[culprit] = 101
        with pytest.raises(error, match="not this"):
            model.runtime.step(model.update.delayed(), fails.delayed(values))
        model.require()
    model.step()
    model.require()


def test_a_runtime_that_overwrites():
    """Theano works in place there, and keeps memory for the next call."""
    with theano.configparser.change_flags(allow_gc=False), Runtime(2, atomic=False) as runtime:
        model = Model(runtime)
        for _ in range(3):
            model.step()
            model.require()


def test_results_that_are_kept_for_the_next_call_are_not_values(trio):
    mode = theano.compile.mode.get_default_mode().clone(link_kwargs={"allow_gc": False})
    with theano.configparser.change_flags(mode="FAST_RUN"):
        model = Model(trio)
        model.update = trio.function([], updates=model.together, mode=mode)
        before = []
        for _ in range(3):
            model.step()
            model.require()
            before.append((model.arrays[0], model.values[0]))
        for array, value in before:
            np.testing.assert_array_equal(array, value)


def test_a_shape_that_has_changed_is_named(model):
    model.runtime.collectives.broadcast(model.params[3], np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"got a variable of shape \(2, 2\), expected \(3, 5\)"):
        model.update()


@pytest.mark.feature("proof")
def test_verify_and_check_take_such_functions(model):
    model.step()
    assert model.update.verify().ok
    assert {one.verdict for one in model.runtime.check(model.update).updates} == {"exact"}


def test_forgotten_variables_leave_no_memory():
    known = set(implementation._wholes)
    with Runtime(1) as runtime:
        model = Model(runtime)
        model.step()
        assert set(implementation._wholes) - known
        del model
    for _ in range(2):  # the first frees the engine's machine in C, and so what that has
        gc.collect()
    assert not set(implementation._wholes) - known


def shared(shape, value=1.0, **options):
    return theano.shared(np.full(shape, value), **options)


def of_all(make, shape=(WIDE,), count=3):
    targets = [shared(shape) for _ in range(count)]
    return [(target, make(target, place)) for place, target in enumerate(targets)]


SCALE, VECTOR, OTHER = shared(()), shared((6 * WIDE,)), shared((6 * WIDE,))


def test_updates_that_are_computed_together():
    for make, together in (
        (lambda w, i: w * SCALE + 2 ** (SCALE + 1), 3),
        (lambda w, i: T.switch(T.gt(w, 0), w, -w), 3),
        (lambda w, i: w + VECTOR[i * WIDE : (i + 1) * WIDE], 3),
        (lambda w, i: w + (VECTOR * SCALE)[i * WIDE : (i + 1) * WIDE], 0),  # of vectors of its own
        (lambda w, i: w + VECTOR[2 * i * WIDE : (2 * i + 1) * WIDE], 0),  # with gaps
        (lambda w, i: w + (VECTOR, OTHER)[i % 2][i * WIDE : (i + 1) * WIDE], 0),
        (lambda w, i: w * i, 0),  # not by the same number
        (lambda w, i: w / w.sum(), 0),
        (lambda w, i: shared((WIDE,)), 0),  # nothing to compute
        (lambda w, i: T.cast(w, "float32"), 0),
        (lambda w, i: w + shared((1,), broadcastable=(True,)), 0),
        (lambda w, i: (w * 2) if i else (w + 2), 2),
    ):
        updates = of_all(make)
        before = list(updates)
        found = flat_updates(updates, 2)
        assert unflattened(found) == together
        assert updates == before
        assert [target for target, _ in found] == [target for target, _ in updates]


def test_parts_begin_where_libraries_like_it():
    """Only the last part may have an odd length."""
    for shapes, together in (
        ([(WIDE,), (WIDE,), (5,)], [3]),
        ([(WIDE,), (5,), (WIDE,), (WIDE,)], [2, 2]),
        ([(5,), (WIDE,)], []),
        ([(0,), (0,)], []),
    ):
        updates = [(w, w * 2.0) for w in map(shared, shapes)]
        found = {v.owner for _, v in flat_updates(updates, 2) if isinstance(v.owner.op, Unflatten)}
        assert sorted(len(node.outputs) for node in found) == together


def test_few_are_quicker_one_by_one_and_others_stay_as_they_are():
    def deep(w, _place):
        for _ in range(200):
            w = w * 2.0
        return w

    def double(w, _place):
        return w * 2.0

    assert unflattened(flat_updates(of_all(double, count=63))) == 0
    assert unflattened(flat_updates(of_all(double, count=64))) == 64
    assert unflattened(flat_updates(of_all(deep), 2)) == 0
    with theano.configparser.change_flags(mode="DebugMode"):
        assert unflattened(flat_updates(of_all(double), 2)) == 0


def test_different_dtypes_are_apart():
    kinds = ["float32", "float64"] * 2
    updates = [(w, w * w) for w in (theano.shared(np.ones(WIDE * 2, kind)) for kind in kinds)]
    found = flat_updates(updates, 2)
    assert unflattened(found) == 4
    assert len({value.owner for _, value in found}) == 2


def test_no_two_variables_share_their_elements(trio):
    """Theano computes equal values once; functions of flat updates take no operations in place."""
    first, second = ([shared((WIDE,), 3.0) for _ in range(2)] for _ in "ab")
    third = [shared((1, WIDE), 3.0) for _ in range(2)]
    updates = [(w, v * 2.0) for w, v in zip(second, first)]
    updates += [(w, w * 2.0) for w in first]
    updates += [(w, w * 1.0) for w in third]
    together = flat_updates(updates, 2)
    assert unflattened(together) == 6
    f = trio.function([], updates=together, mode="FAST_RUN")
    f()
    arrays = [w.get_value(borrow=True) for w in (*first, *second, *third)]
    for i, array in enumerate(arrays):
        assert np.all(array == (3.0 if i > 3 else 6.0))
        assert not any(np.may_share_memory(array, other) for other in arrays[i + 1 :])
    nodes = f._plain.maker.fgraph.apply_nodes
    assert not any(getattr(node.op, "destroy_map", None) for node in nodes)
