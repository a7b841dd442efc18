"""Averages that begin while a function still computes: with a stand-in for NCCL, on processors.

It takes arrays in host memory for arrays on devices, and reduces a part at once where NCCL would do
so later. What only GPUs show is in `integration/multi_gpu`.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import theano
import theano.tensor as T
from _ops import picky
from theano.compile.ops import as_op

from synk_comm._collectives.communicator import RoundCommunicator
from synk_core import DecompositionWarning, InputValueError, Runtime, WorkerFailed
from synk_core._plan.rows import split_rows
from synk_core.device import Device
from synk_theano._gpu import parts
from synk_theano._gpu.parts import in_parts

OPEN = []
"""Reductions of this rank that were begun, and whose end it has not said."""

EVENTS = []
"""What has been reduced on this rank: 1 for a piece in the vector, 2 for one elsewhere; then -n
for the n pieces that are left at the end."""


class Reduction:
    """As synk_comm's. Even ranks read a piece when it is ready, odd ones as late as they may."""

    def __init__(self, comm, out, op, *, bounds, weight):
        said = comm.all_gather_object((op, out.shape, str(out.dtype), bounds))
        assert said == [said[0]] * comm.size
        self.comm, self.out, self.bounds, self.weight = comm, out, list(bounds), weight
        self.pieces = []
        OPEN.append(self)

    def ready(self, x=None):
        begin, end = self.bounds[len(self.pieces)]
        piece = self.out[begin:end] if x is None else x
        assert (piece.shape, piece.dtype) == ((end - begin,), self.out.dtype)
        self.pieces.append(piece if self.comm.rank % 2 else piece.copy())
        EVENTS.append(1 if x is None else 2)

    def wait(self):
        OPEN.remove(self)
        EVENTS.append(len(self.pieces) - len(self.bounds))
        while len(self.pieces) < len(self.bounds):
            self.ready()
        for (begin, end), piece in zip(self.bounds, self.pieces):
            self.out[begin:end] = self.comm.all_reduce(piece.copy(), "avg", weight=self.weight)


def _begin(comm, *arguments, **named):
    return Reduction(comm, *arguments, **named)


def _takes(_self, values, reducible=False):
    return all(isinstance(value, np.ndarray) for value in values)


def copy_part(vector, begin, part):
    vector[begin : begin + part.size] = part


def changes():
    """What makes the processor a device whose collectives may overlap: (owner, name, value)."""
    return [
        (RoundCommunicator, "partitioned_all_reduce", _begin),
        (Device, "is_gpu", True),
        (Device, "takes_collectives", True),
        (Device, "takes", _takes),
        (Device, "in_parts", lambda _, f, storage: in_parts(f, storage, copy_part)),
        (parts, "SMALLEST_PIECE", 64),
    ]


RoundCommunicator.partitioned_all_reduce = None  # so that it can be replaced on all ranks


@as_op([T.dvector], [T.dvector])
def overlap_here(values):
    for owner, name, value in changes():
        setattr(owner, name, value)
    return values


@as_op([T.dvector], [T.dvector])
def events(values):
    """Return what has happened on this rank since it was asked last."""
    told = np.array(EVENTS, float)
    EVENTS.clear()
    return told


@as_op([T.dvector], [T.dvector])
def left_open(values):
    return values + len(OPEN)


class Overlapping:
    """A runtime whose ranks overlap."""

    def __init__(self, runtime):
        self.runtime = runtime
        x = T.dvector("x")
        runtime.function([x], (overlap_here(x), "gather"))(np.zeros(runtime.size))
        self._events = runtime.function([x], (events(x), None))
        self._left_open = runtime.function([x], (left_open(x), "gather"))

    def require_all_ended(self):
        """Others' devices would wait for a rank that has not said the end of a reduction."""
        assert not self._left_open(np.zeros(self.runtime.size)).any()

    def events(self):
        return [int(n) for n in self._events(np.zeros(self.runtime.size))]


@pytest.fixture(scope="module")
def ranks():
    """Three ranks that overlap until the end; this process does as ever after that."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, _ in changes():
            patch.setattr(owner, name, getattr(owner, name))  # to be restored
        with Runtime(3) as runtime:
            yield Overlapping(runtime)


@pytest.fixture
def overlapping(ranks):
    ranks.events()
    return ranks


OVERLAPPED = [*4 * [2], 1, *3 * [2], 0]
LEFT = [*4 * [2], 1, -3, *3 * [1]]
"""Events of the function of `chain`: pieces of the last part, of the middle one, of the first; and
if it fails before the first."""


def chain(runtime):
    """A function that joins a vector from parts, the last one computed first; and NumPy's."""
    x = T.dmatrix("x")
    first = T.dot(T.ones_like(x[0]), x.T).sum() + T.zeros((30,), "float64") + picky(x[:, 0]).mean()
    second = T.tanh(first[:1].sum() / 100) + T.zeros((3,), "float64")
    late = picky(x[:, 1] + 1e-30 * second[0])  # so it comes after the second part
    third = second[0] * 2 + late.mean() + T.arange(20.0)
    v = theano.shared(np.zeros(53), "v")
    made = T.concatenate([third, second, first])
    f = runtime.function([x], x.mean(), updates=[(v, made)], name="chain", proof=False)

    def numpy_share(rows):
        a = rows.sum() + rows[:, 0].mean()
        b = np.tanh(a / 100)
        c = b * 2 + rows[:, 1].mean() + np.arange(20.0)
        return np.concatenate([c, np.full(3, b), np.full(30, a)])

    return f, v, numpy_share


def shares(rows, size):
    return [rows[begin:end] for begin, end in split_rows(len(rows), size)]


def expected(numpy_share, rows, size):
    split = shares(rows, size)
    return sum(len(part) * numpy_share(part) for part in split if len(part)) / len(rows)


def step(runtime, f, v, rows):
    return runtime.step(f.delayed(rows), runtime.delayed.all_reduce(v, "avg", weights=f))


def require_everywhere(runtime, v, want):
    held = runtime.collectives.gather(v, nd_up=1)
    np.testing.assert_allclose(held, [want] * runtime.size, rtol=1e-12)


def test_the_average_begins_amid_the_function_and_is_exact(overlapping):
    runtime = overlapping.runtime
    f, v, numpy_share = chain(runtime)
    random = np.random.RandomState(0)
    for call, rows in enumerate([7, 7, 12, 5]):
        data = random.randn(rows, 4)
        loss, nothing = step(runtime, f, v, data)
        assert nothing is None
        np.testing.assert_allclose(loss, data.mean(), rtol=1e-12)
        require_everywhere(runtime, v, expected(numpy_share, data, runtime.size))
        # The first 30 elements are there when the others are not; nothing is left at the end.
        assert overlapping.events() == (OVERLAPPED if call else [])


def test_what_cannot_overlap_is_as_ever(overlapping):
    runtime, size = overlapping.runtime, overlapping.runtime.size
    f, v, numpy_share = chain(runtime)
    all_reduce = runtime.delayed.all_reduce
    data = np.random.RandomState(0).randn(9, 4)

    def check(rows):
        require_everywhere(runtime, v, expected(numpy_share, rows, size))
        assert overlapping.events() == []

    for _ in range(2):
        f(data)
        runtime.collectives.all_reduce(v, weights=f)
        check(data)
    step(runtime, f, v, data)
    overlapping.events()
    step(runtime, f, v, data[: size - 1])  # the last rank has none
    check(data[: size - 1])
    runtime.step(f.delayed(data), f.delayed(data), all_reduce(v, weights=f))
    assert overlapping.events() == OVERLAPPED
    runtime.step(f.delayed(data), all_reduce(v))
    assert overlapping.events() == []
    runtime.step(f.delayed(data), all_reduce(v, "c_avg", weights=f))
    check(data)
    runtime.step(f.delayed(data), all_reduce(v, "sum", weights=f))
    require_everywhere(runtime, v, sum(numpy_share(rows) for rows in shares(data, size)))
    assert overlapping.events() == []
    runtime.watch_finite()
    step(runtime, f, v, data)
    check(data)
    runtime.watch_finite(False)
    step(runtime, f, v, data)
    assert overlapping.events() == OVERLAPPED


def test_a_part_that_is_overwritten_later_is_copied(overlapping):
    runtime = overlapping.runtime
    x = T.dvector("x")
    v, w = theano.shared(np.zeros(40), "v"), theano.shared(np.zeros(20), "w")
    a, b = x.sum() + T.arange(20.0), x.mean() + T.arange(20.0)
    # In place, once it has been joined; so Theano's optimizer does it.
    f = runtime.function([x], x.mean(), updates=[(v, T.concatenate([a, b])), (w, T.exp(a))])
    for n in range(3):
        data = np.arange(6.0) + n
        step(runtime, f, v, data)
        each = np.array([[rows.sum(), rows.mean()] for rows in shares(data, runtime.size)])
        parts_of_all = each[:, :, None] + np.arange(20.0)
        require_everywhere(runtime, v, parts_of_all.mean(axis=0).ravel())
        held = runtime.collectives.gather(w, nd_up=1)
        np.testing.assert_allclose(held, np.exp(parts_of_all[:, 0]), rtol=1e-13)
        told = overlapping.events()
        if n:
            assert sorted(told) == [0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("atomic", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_rank_that_fails_lets_the_others_go(overlapping, monkeypatch, atomic):
    runtime = overlapping.runtime
    f, v, numpy_share = chain(runtime)
    data = np.random.RandomState(0).randn(9, 4)
    want = expected(numpy_share, data, runtime.size)
    monkeypatch.setattr(runtime._rank.journal, "on", atomic)  # as with fork(atomic=)
    before_the_first_part, after_the_second = (0, [-8, *8 * [1]]), (1, LEFT)
    for rank in (0, -1):
        for column, given in (before_the_first_part, after_the_second):
            for _ in range(3):
                step(runtime, f, v, data)
                require_everywhere(runtime, v, want)
            before = runtime.collectives.gather(v)
            assert overlapping.events() == 2 * OVERLAPPED
            bad = data.copy()
            bad[rank, column] = 101
            with pytest.raises(ValueError, match="not this"):
                step(runtime, f, v, bad)
            told = overlapping.events()
            if rank == 0:
                # It gave what it had, and something in place of the rest.
                assert told == given
            overlapping.require_all_ended()
            if atomic:
                np.testing.assert_array_equal(runtime.collectives.gather(v), before)
    step(runtime, f, v, data)
    require_everywhere(runtime, v, want)


def test_parts_of_other_sizes(overlapping):
    runtime, size = overlapping.runtime, overlapping.runtime.size
    x = T.dvector("x")
    a, b = (theano.shared(np.arange(20.0), name) for name in "ab")
    v = theano.shared(np.zeros(0), "v")  # of another size at first
    made = T.concatenate([a * x.mean(), b + x.mean()])
    f = runtime.function([x], x.mean(), updates=[(v, made)], name="sized")
    data = np.arange(float(2 * size))

    def check(n):
        step(runtime, f, v, data)
        parts_of_all = [np.arange(float(n)) * data.mean(), np.arange(20.0) + data.mean()]
        require_everywhere(runtime, v, np.concatenate(parts_of_all))

    for _ in range(3):
        check(20)
    a.set_value(np.arange(25.0))
    runtime.collectives.broadcast(a)
    check(25)  # it notices, and averages afterwards
    overlapping.require_all_ended()
    overlapping.events()
    for _ in range(2):
        check(25)
    assert len(overlapping.events()) >= 4
    # On one rank alone: it is noticed, and forgotten everywhere.
    runtime.collectives.set_value(1, a, np.arange(30.0))
    for _ in range(2):
        with pytest.raises(InputValueError, match="do not fit together"):
            step(runtime, f, v, data)
        overlapping.require_all_ended()
    runtime.collectives.broadcast(a)
    for _ in range(3):
        check(25)


def test_only_the_average_that_follows_is_done(overlapping):
    """Another variable's, and a second one after the value has changed, are done themselves."""
    runtime, size = overlapping.runtime, overlapping.runtime.size
    x = T.dvector("x")
    v, w = theano.shared(np.zeros(40), "v"), theano.shared(0.0, "w")
    a, b = x.sum() + T.arange(20.0), x.mean() + T.arange(20.0)
    f = runtime.function([x], x.mean(), updates=[(v, T.concatenate([a, b])), (w, x.sum())])
    add = runtime.function([x], updates=[(v, v + x.sum())])
    fails = runtime.function([x], (picky(x), "gather")).delayed(101 * np.ones(size))
    average = runtime.delayed.all_reduce
    for n in range(4):
        data, more = np.arange(4.0 * size) + n, np.arange(float(size))
        acts = [average(v, weights=f), add.delayed(more), average(v, weights=f)]
        acts = [*acts, average(w, weights=f)]
        if n == 3:
            with pytest.raises(ValueError, match="not this"):
                runtime.step(f.delayed(data), fails, *acts)
        runtime.step(f.delayed(data), *acts)
        sums = [rows.sum() for rows in shares(data, size)]
        require_everywhere(runtime, w, np.mean(sums))
        ends = [np.mean(sums) + np.arange(20.0), data.mean() + np.arange(20.0)]
        require_everywhere(runtime, v, np.concatenate(ends) + more.mean())


def test_the_value_before_is_passed_on(overlapping):
    runtime = overlapping.runtime
    x = T.dvector("x")
    v, w = (theano.shared(np.zeros(40), name) for name in "vw")
    made = T.concatenate([x.sum() + T.arange(20.0), x.mean() + T.arange(20.0)])
    f = runtime.function([x], [x.mean(), (v, None)], updates=[(v, made), (w, v)])
    before = np.zeros(40)
    for n in range(4):
        result = step(runtime, f, v, np.arange(6.0) + n)[0]
        np.testing.assert_allclose(w.get_value(), before)
        np.testing.assert_allclose(result[1], before)
        before = v.get_value()


def test_an_interrupt_while_the_ranks_begin(overlapping, monkeypatch):
    """This rank gives the order up, but its pieces first: others may have gone on."""
    runtime = overlapping.runtime
    f, v, numpy_share = chain(runtime)
    data = np.random.RandomState(0).randn(9, 4)
    for _ in range(3):
        step(runtime, f, v, data)
    overlapping.events()
    begun = RoundCommunicator.partitioned_all_reduce

    def begin(comm, *arguments, **named):
        reduction = begun(comm, *arguments, **named)
        runtime._rank.flight.interrupted = runtime._rank.serial
        return reduction

    with monkeypatch.context() as patched:
        patched.setattr(RoundCommunicator, "partitioned_all_reduce", begin)
        with pytest.raises(KeyboardInterrupt):
            step(runtime, f, v, data)
    overlapping.require_all_ended()
    assert overlapping.events() == [-8, *8 * [1]]
    for _ in range(2):
        step(runtime, f, v, data)
        require_everywhere(runtime, v, expected(numpy_share, data, runtime.size))


def test_dropped_functions_leave_nothing(overlapping):
    runtime = overlapping.runtime
    f, v, _ = chain(runtime)
    for _ in range(3):
        step(runtime, f, v, np.ones((6, 4)))
    (average,) = (a for a in runtime._rank.functions[f.number].averages.values())
    held, of_v = weakref.ref(average.function.maker), weakref.ref(v.container)
    del f, v, average
    for _ in range(4):
        gc.collect()
        runtime.distribute()
        overlapping.events()
    gc.collect()
    assert held() is None
    assert of_v() is None


def sends_early(runtime, function):
    """Whether its calls send numbers before they are done."""
    acts = [act for act in runtime._rank.acts.values() if act.name == function.name]
    return {act.sends_early for act in acts}


def test_numbers_are_collected_when_all_acts_are_done(overlapping):
    """Also where ranks have other numbers of rows, and an act behind the call fails on one rank."""
    runtime = overlapping.runtime
    x = T.dvector("x")
    ops = ["avg", "sum", "max", "min", "prod", "gather", None]
    numbers = [x.mean(), x.sum(), x.max(), x.min(), x.prod(), x.sum(), x[0]]
    with pytest.warns(DecompositionWarning):  # of the sums of each rank
        f = runtime.function([x], [*zip(numbers, ops), (2 * x, "gather")], name="numbers")
    count = theano.shared(0.0, "count")
    check = runtime.function([x], (picky(x).sum(), "sum"), updates=[(count, count + 1)])
    one, other = np.arange(1.0, 8.0), np.arange(3.0, 14.0)

    def require_right(results, data):
        parts = [share.sum() for share in shares(data, runtime.size)]
        wanted = [data.mean(), data.sum(), data.max(), data.min(), data.prod(), parts, data[0]]
        for result, value in zip(results, [*wanted, 2 * data]):
            np.testing.assert_allclose(result, value, rtol=1e-12)

    require_right(f(one), one)
    first, total, second = runtime.step(f.delayed(one), check.delayed(one), f.delayed(other))
    require_right(first, one)
    require_right(second, other)
    assert total == one.sum()
    bad = np.append(np.zeros(20), 200.0)  # on the last rank
    with pytest.raises(WorkerFailed, match="not this"):
        runtime.step(f.delayed(one), check.delayed(bad))
    assert runtime.collectives.gather(count, nd_up=1).tolist() == [1.0] * runtime.size
    require_right(f(other), other)
    # One rank has two slices, the others have one; no slice's numbers are the call's.
    assert sends_early(runtime, f) == {True}
    parts = runtime.function([x], ((x * 2).sum(), "gather"), name="parts")
    few = np.arange(runtime.size + 1.0)
    np.testing.assert_array_equal(parts(few, num_slices=2), 2 * few)
    assert sends_early(runtime, parts) == {False}


def test_functions_that_cannot_tell_of_parts():
    """Those that do more with the vector, too."""
    x = T.dvector("x")
    v, w = (theano.shared(np.zeros(4), name) for name in "vw")
    made = T.concatenate([x[:2], x[2:4]])
    single = T.concatenate([x[:2].astype("float32"), x[2:4]])  # Join converts it
    quick, c = "FAST_COMPILE", theano.Mode(linker="c")
    for how, results, updates, can in (
        (quick, [], [(v, made)], True),
        (quick, [], [(v, single)], False),
        (quick, [], [(v, made[::-1])], False),
        (quick, [T.sqr(made).sum()], [(v, made)], False),
        (quick, [made], [(v, made)], False),
        (quick, [v.sum()], [(v, made)], False),
        (quick, [], [(v, made), (w, made)], False),
        ("DebugMode", [], [(v, made)], False),
        (c, [], [(v, made)], False),
    ):
        f = theano.function([x], results, updates=updates, mode=how)
        found = in_parts(f, v.container.storage, copy_part)
        assert (found is not None) == can
        if can:
            found[0](np.arange(4.0))
            np.testing.assert_array_equal(v.get_value(), np.arange(4.0))
