"""What the program lets go of, all ranks let go of; what it still has in some way stays."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
import warnings
from collections import deque

import numpy as np
import pytest
from _ops import picky

from synk_core import Runtime
from synk_core._graph.shared import VariableRegistry
from synk_core._weakqueue import QueuedRef
from synk_core.engine import SharedVariable
from synk_core.exceptions import ReplicaWarning, WorkerFailed
from synk_testing.engine import T, as_op, engine

x = T.dvector("x")

ALL = os.environ.get("SYNK_TESTS") == "all"

# What one process has differs from what each rank has.
pytestmark = pytest.mark.usefixtures("unproved")


@as_op([T.dvector], [T.dvector])
def count_variables(x):
    """Return, for each row, how many shared variables this process has."""
    # By its type: what is asked itself may be a weak proxy.
    found = sum(issubclass(type(one), SharedVariable) for one in gc.get_objects())
    return np.full(len(x), float(found))


@pytest.fixture
def settled(pair):
    """Forget all that is gone; return what the master and the worker have."""
    f = pair.function([x], (count_variables(x), "gather"))

    def settle():
        # Functions go with an order; what they had is garbage then, and goes with another one.
        for _ in range(4):
            gc.collect()
            f([1.0, 2.0])
        return (*known(pair), f([1.0, 2.0])[1])

    return settle


def train(runtime, seed=0):
    """A model of its own, trained for a step and let go of; its loss, and what NumPy has for it."""
    rng = np.random.RandomState(seed)
    given, start = rng.randn(8, 3), rng.randn(3)
    x, w = T.dmatrix("x"), engine.shared(start.copy(), "w")
    loss = (x.dot(w) ** 2).mean()
    f = runtime.function([x], loss, updates=[(w, w - 0.1 * T.grad(loss, w))])
    f(given)
    runtime.collectives.all_reduce(w)
    steps = [start - 0.2 * part.T.dot(part.dot(start)) / 4 for part in np.split(given, 2)]
    return float(f(given)), float((given.dot(np.mean(steps, axis=0)) ** 2).mean())


def known(runtime):
    rank = runtime._rank
    return len(runtime.specs), len(rank.functions), len(rank.registry.variables)


def test_models_that_are_gone_take_no_memory_on_any_rank(pair, settled):
    train(pair)
    before = settled()
    for seed in range(3):
        got, expected = train(pair, seed)
        assert got == pytest.approx(expected, rel=1e-12)
    assert settled() == before


@pytest.mark.feature("stats")
def test_figures_of_functions_without_a_name_become_one_line(pair, settled):
    pair.stats(reset=True)
    x = T.dmatrix("x")
    kept = pair.function([x], (x.sum(), "sum"), name="kept")
    for rows in range(1, 5):
        f = pair.function([x], x.mean())
        f(np.ones((rows, 3)))
        pair.function([x], x.mean(), name="named")(np.ones((rows, 3)))
        kept(np.ones((rows, 3)))
        del f
    settled()
    stats = pair.stats()
    assert set(stats) >= {"kept", "named", "(gone)"}
    assert sum(name.startswith("function ") for name in stats) == 1  # what settles it
    gone = stats["(gone)"]
    assert (gone.calls, sum(gone.slowest), gone.input_bytes) == (4, 4, 3 * 8 * (1 + 2 + 3 + 4))
    assert stats["named"].calls == stats["kept"].calls == 4
    assert 0 < gone.compute_s < gone.total_s
    pair.stats(reset=True)
    settled()
    assert "(gone)" not in pair.stats()


@pytest.mark.parametrize("holder", ["clone", "plain function"])
def test_a_variable_that_others_hold_stays(pair, settled, holder):
    if holder == "plain function" and engine.config.linker == "numba":
        pytest.skip("Numba keeps what PyTensor's own functions have used")
    x, w = T.dvector("x"), engine.shared(np.arange(3.0), "w")
    pair.function([x], (x.mean() * w).sum())([1.0, 1.0])
    kept = w.clone() if holder == "clone" else engine.function([], [], updates=[(w, w + 5)])
    number = pair._rank.registry.known_number(w.container.storage)
    del w
    settled()
    assert number in pair._rank.registry.variables
    variable = kept if holder == "clone" else kept.get_shared()[0]
    pair.collectives.broadcast(variable, np.full(3, 4.0))
    f = pair.function([x], (x.mean() * variable).sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReplicaWarning)
        assert f([1.0, 1.0]) == pytest.approx(12.0)
    del kept, variable, f
    settled()
    assert number not in pair._rank.registry.variables


def test_the_next_order_forgets_for_one_that_failed(pair, settled):
    train(pair)
    before = settled()
    failing = pair.function([x], (picky(x).sum(), "sum"))
    failing([1.0, 2.0])
    train(pair, 1)
    for _ in range(2):
        gc.collect()
        with pytest.raises(WorkerFailed):
            failing([1.0, 200.0])
    del failing
    assert settled() == before


def test_numbers_are_never_given_twice():
    registry, seen = VariableRegistry(), set()
    for i in range(200):
        variable = engine.shared(np.full(2, float(i)), f"v{i}")
        number = registry.number_of(variable)
        assert number not in seen
        assert registry.number_of(variable.clone()) == number
        assert registry.unused() == []
        seen.add(number)
        storage = id(variable.container.storage)
        del variable
        assert len(registry.gone) == 1
        assert registry.unused() == [number]
        registry.let_go([number])
        registry.forget_gone(1)
        assert number not in registry.variables
        # Until the ranks know, no other variable can lie there.
        assert storage != id(engine.shared(np.zeros(2)).container.storage)
        registry.forget(number)
    assert registry.variables == {}
    assert registry.end == 200


def test_functions_gone_before_they_were_sent_are_never_sent(pair, settled):
    def build():
        w = engine.shared(np.arange(3.0), "w")
        return pair.function([x], (x.mean() * w).sum(), updates=[(w, w + 1)])

    build()([1.0, 2.0])
    before = settled()
    for _ in range(2):
        build()
        gc.collect()
        pair.distribute()
        build()
        gc.collect()
        build()([1.0, 2.0])
    assert settled() == before
    assert {number for number, _ in pair.orders.distributor._forms} == set(pair._rank.functions)


def test_a_variable_that_an_operation_changes_on_all_ranks_is_no_news(pair):
    x, w = T.dvector("x"), engine.shared(np.zeros(3), "w")

    @as_op([T.dvector], [T.dvector])
    def change(given):
        w.set_value(w.get_value() + 1)
        return given.copy()

    f = pair.function([x], [(change(x).sum(), "sum"), (x.mean() * w).sum()])
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReplicaWarning)
        for _ in range(3):
            f([1.0, 2.0])
    np.testing.assert_array_equal(pair.collectives.gather(w), np.full((2, 3), 3.0))


def test_one_rank_has_no_replicas_that_could_differ():
    with Runtime(1) as runtime:
        x, w = T.dvector("x"), engine.shared(np.zeros(3), "w")
        f = runtime.function([x], (x.mean() * w).sum())
        f([1.0, 2.0])
        w.set_value(np.ones(3))
        with warnings.catch_warnings():
            warnings.simplefilter("error", ReplicaWarning)
            assert f([1.0, 1.0]) == pytest.approx(3.0)


@pytest.mark.nightly
def test_no_signal_loses_the_end_of_an_object():
    """A finalizer that is written in Python is lost if a signal's exception comes in it."""
    gone, kept, armed = deque(), [], False
    deadline = time.monotonic() + 2

    class Thing:
        pass

    def strike(*_):
        nonlocal armed
        if armed and time.monotonic() < deadline:
            armed = False  # not once more before what it interrupts goes on
            raise KeyboardInterrupt

    def work():  # in Python 3.13 a loop's own `try` misses what is raised where it begins again
        while time.monotonic() < deadline:
            thing = Thing()
            thing.itself = thing  # it takes a look for garbage to end it
            kept.append(QueuedRef(thing, gone, len(kept)))
            del thing
            if len(kept) % 50 == 0:
                gc.collect(0)

    callbacks, gc.callbacks[:] = gc.callbacks[:], []  # hypothesis has one, which would be struck
    before = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        while time.monotonic() < deadline:
            try:
                armed = True
                work()
            except KeyboardInterrupt:
                pass
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks[:] = callbacks
    gc.collect()
    assert len(gone) == len(kept) > 100
    assert {id(one) for one in gone} == set(map(id, kept))


@pytest.mark.parametrize("seed", [0, 1, 2] if ALL else [0])
def test_whatever_comes_and_goes_values_are_right(pair, seed):
    rng = random.Random(seed)
    variables, functions = {}, {}
    for i in range(60 if ALL else 30):
        act = rng.choice(
            ["make", "make", "build", "call", "call", "drop", "drop", "sum", "collect"]
        )
        if act == "make":
            variables[i] = (engine.shared(np.full(3, float(i)), f"v{i}"), [float(i)])
        elif act == "build" and variables:
            variable, value = variables[rng.choice(list(variables))]
            f = pair.function([x], (x.mean() * variable).sum(), updates=[(variable, variable + 1)])
            functions[i] = (f, value)
        elif act == "call" and functions:
            f, value = functions[rng.choice(list(functions))]
            assert float(f(np.full(8, 2.0))) == pytest.approx(6 * value[0])
            value[0] += 1
        elif act == "drop":
            group = rng.choice([variables, functions])
            if group:
                del group[rng.choice(list(group))]
        elif act == "sum" and variables:
            variable, value = variables[rng.choice(list(variables))]
            pair.collectives.all_reduce(variable, "sum")
            value[0] *= pair.size
        elif act == "collect":
            gc.collect()
        for variable, value in variables.values():
            np.testing.assert_array_equal(variable.get_value(), np.full(3, value[0]))
    for variable, value in variables.values():
        gathered = np.asarray(pair.collectives.gather(variable))
        np.testing.assert_array_equal(gathered.reshape(-1), np.full(3 * pair.size, value[0]))
