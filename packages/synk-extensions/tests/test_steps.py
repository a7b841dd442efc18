"""`train.steps`: the steps of a loop of calls, with rows or arrays that are taken ahead."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest
from _programs import zygote
from _training import FEATURES, Model, assert_same, dataset
from hypothesis import given, settings
from hypothesis import strategies as st

import synkhronos as synk
from synk_core import InputTypeError
from synk_testing import nothing_left
from synk_testing.engine import T, engine
from synk_testing.files import KINDS, StandIn, in_file
from synkhronos.extensions import updates
from synkhronos.extensions.batches import index_batches
from synkhronos.extensions.train import (
    Callback,
    Trainer,
    make_train_function,
    make_train_function_theano,
)
from synkhronos.extensions.train._batches import drawn_batches

SIZE = 16  # of batches; 50 rows make three and a smaller one
CUTS = [slice(0, 16), slice(16, 18), slice(18, 50), slice(3, 30), slice(49, 50)]


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, marks=pytest.mark.nightly), 2],
    ids=lambda n: f"{n}-processes",
)
def processes(request):
    synk.fork(request.param, use_gpu=False, verbose=False)
    yield request.param
    synk.close()


@pytest.fixture
def twins(processes):
    return Model(make_train_function), Model(make_train_function), dataset()


SERIAL = functools.cache(Model)


@pytest.mark.parametrize("num_slices", [1, 3])
def test_steps_are_those_of_calls(twins, num_slices):
    one, other, (x, y) = twins
    shared = synk.data(x), synk.data(y)
    for data in ((x, y), shared, (x, shared[1])):
        losses = [
            one.train(x, y, batch=rows, num_slices=num_slices)
            for rows in index_batches(len(x), SIZE, np.random.RandomState(1))
        ]
        batches = index_batches(len(x), SIZE, np.random.RandomState(1))
        np.testing.assert_array_equal(
            list(other.train.steps(*data, batches, num_slices=num_slices)), losses
        )
        assert_same(one.values(), other.values())
    losses = [one.train(x[rows], y[rows]) for rows in CUTS]
    drawn = list(other.train.steps((x[rows], y[rows].tolist()) for rows in CUTS))
    np.testing.assert_array_equal(drawn, losses)
    assert_same(one.values(), other.values())
    for arguments in [(), (1,), (x, [1]), (x, y, 3), (x, y, y, [1])]:
        for train in (one.train, SERIAL().train):
            with pytest.raises(TypeError, match=rf"steps\(\): got {len(arguments)} arg.* 2 inp"):
                train.steps(*arguments)


@pytest.mark.parametrize("form", ["rows", "arrays"])
def test_drawn_batches_are_computed_before_a_wait_for_more(twins, form):
    """A program may decide by a step's loss what to draw next."""
    model, other, (x, y) = twins
    losses, got = SimpleQueue(), []

    def batches():
        for place, rows in enumerate(CUTS):
            if place > 1 or (place and form == "rows"):
                losses.get(timeout=60)
            yield (x[rows], y[rows]) if form == "arrays" else rows

    for loss in model.train.steps(*((x, y) if form == "rows" else ()), batches()):
        got.append(loss)
        losses.put(loss)
    np.testing.assert_array_equal(got, [other.train(x, y, batch=rows) for rows in CUTS])


def test_arrays_are_drawn_in_a_thread_while_the_ranks_compute(twins):
    model, _, (x, y) = twins
    started, release, threads = threading.Event(), threading.Event(), set()

    def batches():
        for place, rows in enumerate(CUTS):
            threads.add(threading.current_thread())
            if place == 2:
                started.set()
                assert release.wait(60)
            yield x[rows], y[rows]

    steps = model.train.steps(batches())
    next(steps)  # returns while the third batch is being drawn
    assert started.wait(60)
    release.set()
    assert len(list(steps)) == len(CUTS) - 1
    (thread,) = threads
    assert thread is not threading.main_thread()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_file_are_those_of_arrays(twins, kind, tmp_path):
    one, other, (x, y) = twins
    source, labels = in_file(kind, x, tmp_path), synk.data(y)
    for batches in (CUTS, [[3, 49, 3, 0], np.arange(50) % 2 == 0, 7]):
        losses = [one.train(x, y, batch=rows) for rows in batches]
        np.testing.assert_array_equal(list(other.train.steps(source, labels, batches)), losses)
        assert_same(one.values(), other.values())


def refilled(kind, chosen, x):
    """Yield row numbers, or rows, in an object that is filled anew for each, and spoilt before."""
    index, shuffled = np.empty(0, int), np.array(x)
    for rows in chosen:
        if kind == "index":
            index.resize(len(rows), refcheck=False)
            index[:] = rows
            yield index
            index[:] = 0
        else:
            shuffled[: len(rows)] = x[rows]
            yield shuffled[: len(rows)]
            shuffled[:] = shuffled[::-1].copy()


SEVERAL = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 9)).map(lambda one: np.arange(one[1]) + one[0]),
    min_size=1,
    max_size=7,
)


@pytest.fixture(scope="module")
def lines(processes):
    """Values, and steps by which a parameter approaches the mean of an input or resident rows."""
    x, resident = T.dvector("x"), engine.shared(np.random.RandomState(0).randn(50))
    made = []
    for rows, inputs, more in ((x, [x], {}), (resident, [], {"sliceable_shareds": [resident]})):
        for make in (make_train_function, make_train_function_theano):
            w = engine.shared(0.0)
            train = make(T.mean((rows - w) ** 2), [w], inputs, updates.sgd, 0.1, **more)
            made.append((train, w))
    synk.broadcast(resident)
    return resident.get_value(), made


def trained(train, batches):
    losses = []
    callback = Callback()
    callback.on_step_end = lambda trainer, loss: losses.append(loss)
    Trainer(train, lambda epoch: batches, callbacks=[callback], verbose=False).run(1)
    return losses


@pytest.mark.parametrize("kind", ["index", "view"])
@given(chosen=SEVERAL)
@settings(max_examples=5, deadline=None)
def test_batches_are_taken_when_they_are_drawn(lines, processes, kind, chosen):
    x, made = lines
    for train, w in made if kind == "index" else made[:2]:
        ways = [train.steps, partial(trained, train)]
        if train.n_scattered and kind == "index":
            ways = [partial(train.steps, x)]
        elif train is made[2][0]:
            ways.append(lambda rows: made[2][0].steps([each] * processes for each in rows))
        for way in ways:
            value, expected = float(w.get_value()), []
            for rows in chosen:
                expected.append(((x[rows] - value) ** 2).mean())
                value -= 0.2 * (value - x[rows].mean())
            got = list(way(refilled(kind, chosen, x)))
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", ["rows", "file", "arrays"])
def test_a_loop_that_is_left_and_one_that_fails_leave_all_usable(twins, form):
    model, other, (x, y) = twins
    arguments = {"rows": (x, y), "file": (StandIn(x), y), "arrays": ()}[form]
    wrong = (x[:4, :2], y[:4]) if form == "arrays" else [999]

    def batches(then=None):
        for rows in CUTS[:3]:
            yield (x[rows], y[rows]) if form == "arrays" else rows
        if then is not None:
            yield then
        raise OSError("the disk is gone")

    for _ in model.train.steps(*arguments, batches()):
        break
    other.train(x, y, batch=CUTS[0])
    assert_same(model.values(), other.values())
    for then, errors in [(None, OSError), (wrong, (InputTypeError, ValueError, IndexError))]:
        losses = []
        with pytest.raises(errors):
            losses.extend(model.train.steps(*arguments, batches(then)))
        np.testing.assert_array_equal(losses, [other.train(x, y, batch=rows) for rows in CUTS[:3]])
        assert_same(model.values(), other.values())


def test_stop_iteration_of_a_source_is_an_error(twins):
    model, _, (x, y) = twins

    class Ended(StandIn):
        def __getitem__(self, rows):
            return next(iter(()))

        def __array__(self, dtype=None, copy=None):
            return next(iter(()))

    before = model.values()
    for arguments in ([Ended(x), y, CUTS], [[(x, Ended(y))]]):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            next(model.train.steps(*arguments))
    assert_same(model.values(), before)


def test_rows_of_resident_data_are_selected_on_each_rank(processes):
    rows = np.arange(8.0 * processes).reshape(-1, 2)
    data, x = engine.shared(rows[:1], "data"), T.dmatrix("x")
    w = engine.shared(np.zeros(2), "w")
    how = {"givens": {x: data}, "sliceable_shareds": [data]}
    train = make_train_function(T.sqr(x - w).mean(), [w], [], updates.sgd, 0.1, **how)
    synk.scatter(data, rows)
    expected = np.zeros(2)
    for chosen, got in zip(([0, 1], slice(1, 3)), train.steps([[0, 1], slice(1, 3)])):
        taken = np.concatenate([part[chosen] for part in np.split(rows, processes)])
        np.testing.assert_allclose(got, ((taken - expected) ** 2).mean())
        expected = expected + 0.1 * (taken - expected).mean(axis=0)
    np.testing.assert_allclose(w.get_value(), expected)
    w.set_value(np.zeros(2))
    synk.broadcast(w)
    none_but_of_the_last = [*[[]] * (processes - 1), [0, 1]]
    taken = np.split(rows, processes)[-1][:2]
    np.testing.assert_allclose(trained(train, [none_but_of_the_last]), (taken**2).mean())


def drawn_from(batches, place, sources=(), prefetches=False):
    """Batches drawn in a thread; as a device does that takes inputs ahead, or as a processor."""
    runtime = synk._default.default().orders
    executor = SimpleNamespace(prefetches=prefetches, await_thread=runtime.await_thread)
    return drawn_batches(batches, place, executor, sources, SimpleQueue())


@pytest.mark.parametrize("prefetches", [False, True])
def test_places_are_kept_until_they_are_needed_again(processes, prefetches):
    made = []

    def place(*arrays):
        made.append(arrays)
        return tuple(synk.data(array) for array in arrays)

    lengths = [4, 4, 4, 4, 3, 4, 9, 4, 2]
    source = [(np.full((n, FEATURES), i), np.full(n, i)) for i, n in enumerate(lengths)]
    held = []
    for i, (x, y) in enumerate(drawn_from(source, place, prefetches=prefetches)):
        held = [*held, (x, y)][-1 - prefetches :]  # what is computed, and what lies ahead
        time.sleep(0.02)  # the thread would overwrite them now
        for j, (first, second) in zip(range(i - len(held) + 1, i + 1), held):
            np.testing.assert_array_equal(first.data, source[j][0])
            np.testing.assert_array_equal(second.data, source[j][1])
    assert i == len(lengths) - 1
    assert len(made) == 3  # three sets, which grow where they have to


LIMIT_S = 60

BEGIN = """
import ctypes, os, sys, threading, warnings
import numpy as np
import synkhronos as synk
from synk_testing.engine import T, engine
from synkhronos.exceptions import Closed
from synkhronos.extensions import updates
from synkhronos.extensions.train import make_train_function

warnings.simplefilter("ignore", DeprecationWarning)  # of fork() beside threads
warnings.showwarning = lambda text, kind, *_: print(kind.__name__, str(text), flush=True)
stall_s = 0.2 if "Ctrl-C" in sys.argv else 60
synk.fork(2, use_gpu=False, verbose=False, stall_s=stall_s)
x, w = T.dmatrix("x"), engine.shared(np.zeros(3), "w")
train = make_train_function(T.mean(x.dot(w) ** 2), [w], [x], updates.sgd, learning_rate=0.1)
"""

WAITING = """
way, waits = sys.argv[1], threading.Event()

def batches():
    yield np.ones((4, 3))
    waits.set()
    if way == "a call in C":
        ctypes.CDLL(None).pause()
    wait_for_ever = threading.Event().wait
    wait_for_ever()

def close():
    waits.wait()
    synk.close()

try:
    if way == "close":
        threading.Thread(target=close).start()
    for loss in train.steps(batches()):
        waits.wait()
        if way == "a call in C":
            break
    print("done", flush=True)
except (Closed, KeyboardInterrupt) as error:
    print(type(error).__name__, flush=True)
"""


@pytest.mark.parametrize(
    "way, says",
    [
        ("a call in C", "done"),
        ("Ctrl-C", "KeyboardInterrupt"),
        pytest.param("close", "Closed", marks=pytest.mark.nightly),
    ],
)
def test_the_program_ends_as_after_a_loop_of_calls(way, says):
    warm = zygote()
    with nothing_left(), warm.start(BEGIN + WAITING, way, limit_s=LIMIT_S) as process:
        if way == "Ctrl-C":
            said = ""
            while "the master has been waiting for a batch" not in said:
                said = process.line()
            while "Still waiting" not in said:
                said += process.line()
            assert ", in batches" in said
            os.kill(process.pid, signal.SIGINT)
        done = process.finish()
    assert (done.status, done.out.splitlines()[-1]) == (0, says), done.err
    assert "Traceback" not in done.err


CHILDREN = """
def in_child(act):
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except Closed:
            os._exit(7)
        os._exit(8)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def batches():
    for place in range(5):
        if place == 2:
            print(in_child(lambda: train(np.ones((4, 3)))), flush=True)
        if place == 3:
            child = os.fork()
            if child:
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        yield np.full((4, 3), place + 1.0 if place != 3 or child else np.nan)

w.set_value([1.0, 1.0, 1.0])
synk.broadcast(w)
steps, losses = train.steps(batches()), []
for loss in steps:
    losses.append(float(loss))
    if len(losses) == 2:
        print(in_child(lambda: next(steps)), flush=True)
expected, value = [], np.ones(3)
for place in range(1, 6):
    total = place * value.sum()
    expected.append(total**2)
    value = value - 0.1 * 2 * total * place
np.testing.assert_allclose(losses, expected)
"""


def test_a_child_is_refused_at_once_and_the_parent_goes_on():
    warm = zygote()
    with nothing_left():
        done = warm.run(BEGIN + CHILDREN, limit_s=LIMIT_S)
    assert done.status == 0, done.err
    assert sorted(done.out.split()) == ["0", "7", "7"]
    assert "Closed: this runtime belongs to process" in done.err
