"""`train.steps`: the steps of a loop of calls, with rows or arrays that are taken ahead."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from _training import FEATURES, Model, dataset

import synkhronos as synk
from synk_core import InputTypeError, RowSource
from synk_testing.engine import T, engine
from synk_testing.files import KINDS, StandIn, in_file
from synkhronos.extensions import updates
from synkhronos.extensions.batches import index_batches
from synkhronos.extensions.train import make_train_function
from synkhronos.extensions.train._batches import DrawnBatches, with_next

SIZE = 16  # of batches; 50 rows make three and a smaller one
CUTS = [slice(0, 16), slice(16, 18), slice(18, 50), slice(3, 30), slice(49, 50)]


@pytest.fixture(scope="module", params=[1, 2], ids=lambda n: f"{n}-processes")
def processes(request):
    synk.fork(request.param, use_gpu=False, verbose=False)
    yield request.param
    synk.close()


@pytest.fixture
def twins(processes):
    """Two equal models with the same data."""
    return Model(make_train_function), Model(make_train_function), dataset()


def values(model):
    return [param.get_value() for param in model.params]


def require_same(model, other):
    for one, two in zip(values(model), values(other)):
        np.testing.assert_array_equal(one, two)


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
        require_same(one, other)


def test_batches_may_be_arrays_from_a_generator(twins):
    one, other, (x, y) = twins
    for _ in range(2):
        losses = [one.train(x[rows], y[rows]) for rows in CUTS]
        drawn = list(other.train.steps((x[rows], y[rows].tolist()) for rows in CUTS))
        np.testing.assert_array_equal(drawn, losses)
        require_same(one, other)


def test_a_step_is_taken_before_the_next_but_one_batch_is_asked_for(twins):
    """So a program that decides by the losses what to draw is one batch late, not more."""
    model, _, (x, y) = twins
    drawn = []

    def batches():
        for rows in CUTS:
            drawn.append(rows)
            yield rows

    steps = model.train.steps(x, y, batches())
    for place, _ in enumerate(steps):
        assert len(drawn) == min(place + 2, len(CUTS))


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
    assert threading.main_thread() not in threads
    release.set()
    assert len(list(steps)) == len(CUTS) - 1
    (thread,) = threads
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_file_are_those_of_arrays(twins, kind, tmp_path):
    one, other, (x, y) = twins
    source, labels = in_file(kind, x, tmp_path), synk.data(y)
    for batches in (CUTS, [[3, 49, 3, 0], np.arange(50) % 2 == 0, 7]):
        losses = [one.train(x, y, batch=rows) for rows in batches]
        np.testing.assert_array_equal(list(other.train.steps(source, labels, batches)), losses)
        require_same(one, other)


def test_rows_of_a_file_are_read_in_a_thread_while_the_ranks_compute(twins):
    model, _, (x, y) = twins
    third, release, threads = threading.Event(), threading.Event(), set()

    class Slow(StandIn):
        def __getitem__(self, rows):
            threads.add(threading.current_thread())
            if len(self.read) == 2:
                third.set()
                assert release.wait(60)
            return super().__getitem__(rows)

    source = Slow(x)
    steps = model.train.steps(source, y, CUTS)
    next(steps)  # returns while rows of the third batch are being read
    assert third.wait(60)
    assert threading.main_thread() not in threads
    release.set()
    assert len(list(steps)) == len(CUTS) - 1
    assert source.read == [rows.stop - rows.start for rows in CUTS]


def test_bytes_of_a_file_are_converted_on_each_rank(processes):
    pixels = np.random.RandomState(1).randint(0, 256, (9, 3)).astype("uint8")
    x, scale = T.dmatrix("x"), T.dscalar("scale")
    w = engine.shared(np.zeros(3), "w")
    loss = T.sqr(x / scale - w).mean()
    train = make_train_function(loss, [w], [x], updates.sgd, 0.1, bcast_inputs=[scale])
    (got,) = train.steps(StandIn(pixels), 255.0, [[8, 0, 5]])
    np.testing.assert_allclose(got, ((pixels[[8, 0, 5]] / 255) ** 2).mean())


@pytest.mark.parametrize("form", ["rows", "file", "arrays"])
def test_an_error_of_the_batches_comes_after_the_steps_before_it(twins, form):
    model, other, (x, y) = twins

    def batches():
        for rows in CUTS[:3]:
            yield (x[rows], y[rows]) if form == "arrays" else rows
        raise OSError("the disk is gone")

    arguments = {"rows": (x, y), "file": (StandIn(x), y), "arrays": ()}[form]
    losses = []
    with pytest.raises(OSError, match="the disk is gone"):
        losses.extend(model.train.steps(*arguments, batches()))
    np.testing.assert_array_equal(losses, [other.train(x, y, batch=rows) for rows in CUTS[:3]])
    require_same(model, other)


@pytest.mark.parametrize("form", ["rows", "file", "arrays"])
def test_a_loop_that_is_left_and_a_step_that_fails_leave_all_usable(twins, form):
    model, other, (x, y) = twins

    def batches(wrong=False):
        for rows in CUTS:
            yield (x[rows], y[rows]) if form == "arrays" else rows
            if wrong:
                yield (x[:4, :2], y[:4]) if form == "arrays" else [999]

    arguments = {"rows": (x, y), "file": (StandIn(x), y), "arrays": ()}[form]
    for _ in model.train.steps(*arguments, batches()):
        break
    other.train(x, y, batch=CUTS[0])
    require_same(model, other)
    steps = model.train.steps(*arguments, batches(wrong=True))
    next(steps)
    other.train(x, y, batch=CUTS[0])
    with pytest.raises((InputTypeError, ValueError, IndexError)):
        next(steps)
    require_same(model, other)
    losses = list(model.train.steps(*arguments, batches()))
    np.testing.assert_array_equal(losses, [other.train(x, y, batch=rows) for rows in CUTS])
    require_same(model, other)


def test_the_serial_function_takes_the_same_steps(twins):
    model, _, (x, y) = twins
    serial = Model()
    for batches in ((x, y, CUTS), (StandIn(x), y, CUTS), (([x[rows], y[rows]] for rows in CUTS),)):
        expected = list(serial.train.steps(*batches))
        if len(batches) == 1:
            batches = (((x[rows], y[rows]) for rows in CUTS),)
        np.testing.assert_allclose(list(model.train.steps(*batches)), expected, rtol=1e-12)
    for one, two in zip(values(model), values(serial)):
        np.testing.assert_allclose(one, two, rtol=1e-12)


def test_rows_of_resident_data_are_selected_on_each_rank(processes):
    rows = np.arange(8.0 * processes).reshape(-1, 2)
    data = engine.shared(rows[:1], "data")
    w = engine.shared(np.zeros(2), "w")
    loss = T.sqr(data - w).mean()
    train = make_train_function(loss, [w], [], updates.sgd, 0.1, sliceable_shareds=[data])
    synk.scatter(data, rows)
    expected = np.zeros(2)
    for chosen, got in zip(([0, 1], slice(1, 3)), train.steps([[0, 1], slice(1, 3)])):
        taken = np.concatenate([part[chosen] for part in np.split(rows, processes)])
        np.testing.assert_allclose(got, ((taken - expected) ** 2).mean())
        expected = expected + 0.1 * (taken - expected).mean(axis=0)
    np.testing.assert_allclose(w.get_value(), expected)


@pytest.mark.parametrize("arguments", [(), (1,), ("x", [1]), ("x", "y", 3), ("x", "y", "z", [1])])
def test_other_arguments_are_refused_at_once(twins, arguments):
    model, _, (x, y) = twins
    given = [{"x": x, "y": y, "z": y}.get(item, item) for item in map(_hashable, arguments)]
    for train in (model.train, Model().train):
        with pytest.raises(TypeError, match=rf"steps\(\): got {len(arguments)} arguments.* 2 inp"):
            train.steps(*given)


def _hashable(item):
    return tuple(item) if isinstance(item, list) else item


def test_pairs_with_the_next():
    assert list(with_next(iter([]))) == []
    assert list(with_next(iter("abc"))) == [("a", "b"), ("b", "c"), ("c", None)]


def test_places_are_kept_until_they_are_needed_again(processes):
    made = []

    def place(*arrays):
        made.append(arrays)
        return tuple(synk.data(array) for array in arrays)

    lengths = [4, 4, 4, 4, 3, 4, 9, 4, 2]
    source = [(np.full((n, FEATURES), i), np.full(n, i)) for i, n in enumerate(lengths)]
    drawn, held = DrawnBatches(source, place), []
    for i, (x, y) in enumerate(drawn):
        held = [*held, (x, y)][-2:]  # the one that is computed, and the one ahead
        for j, (first, second) in zip(range(i - len(held) + 1, i + 1), held):
            np.testing.assert_array_equal(first.data, source[j][0])
            np.testing.assert_array_equal(second.data, source[j][1])
    assert i == len(lengths) - 1
    assert len(made) == 3  # three sets, which grow where they have to
    drawn.close()


def test_rows_of_a_file_are_read_to_where_they_are_to_lie(processes):
    values = np.arange(40.0).reshape(20, 2)
    source, targets = RowSource(values), []
    read = source.read

    def noted(chosen, target):
        targets.append(target)
        read(chosen, target)

    source.read = noted
    batches = np.random.RandomState(0).permutation(20).reshape(5, 4)

    drawn = DrawnBatches(batches, lambda array: (synk.data(array),), [source])
    for batch, (data,) in zip(batches, drawn):
        np.testing.assert_array_equal(data.data, values[batch])
    assert any(np.shares_memory(target, data.data) for target in targets)
    drawn.close()
