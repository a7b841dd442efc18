"""A call, a collective or a step that fails on any rank has changed nothing on any."""

from __future__ import annotations

import dis
import gc
import signal
import sys
import time
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
from _features import STAND_INS
from _leaks import no_ranks_left
from _ops import FAST, picky

import synk_shm
from synk_comm.processes import Process
from synk_core import Function, Runtime
from synk_core._master.lifecycle import Lifecycle
from synk_core._master.orders import Orders
from synk_core._rank.call import PreparedCall
from synk_core._rank.collectives import ActVariables
from synk_core._rank.rank import Rank
from synk_core._wire.flight import Flight
from synk_core._workers.interrupts import AGAIN_S, LATER
from synk_core._workers.pool import WorkerPool, start_workers
from synk_core._workers.processes import Worker
from synk_core.exceptions import Interrupted, WorkerFailed
from synk_shm._arrays import segment
from synk_testing.engine import T, as_op, engine
from synk_testing.strikes import struck

x = T.dvector("x")

pytestmark = pytest.mark.c_code


def ranks_of(runtime, *variables):
    return [runtime.collectives.gather(v).tolist() for v in variables]


@pytest.mark.parametrize("num_slices", [1, 2])
def test_a_failed_call_leaves_all_variables_as_they_were(trio, num_slices):
    """The update of `w` is done before the operation that fails: Theano would do it in place."""
    w = engine.shared(np.arange(3.0), name="w")
    v = engine.shared(np.zeros(()), name="v")
    grown = w * 2 + x.sum()
    f = trio.function(
        [x], (picky(x + grown.sum() * 0).sum(), "sum"), updates=[(w, grown), (v, v + 1)]
    )
    rows = np.arange(6.0)
    f(rows, num_slices=num_slices)
    trio.collectives.all_reduce([w, v])
    before = ranks_of(trio, w, v)
    array = w.container.storage[0]
    for culprit in range(3):
        bad = rows.copy()
        bad[2 * culprit + 1] = 200
        with pytest.raises((WorkerFailed, ValueError), match="not this") as caught:
            f(bad, num_slices=num_slices)
        assert getattr(caught.value, "rank", trio.master) == culprit
        assert ranks_of(trio, w, v) == before
        assert w.container.storage[0] is array
    assert f(rows, num_slices=num_slices) == 15.0
    after = np.array(ranks_of(trio, w)[0])
    shares = np.array([1.0, 5.0, 9.0]) / num_slices  # slices are averaged
    np.testing.assert_allclose(after, 2 * np.array(before[0]) + shares[:, None])


@as_op([T.dvector], [T.dvector])
def fail_later(values):
    """Make this rank, if it gets a 1, fail once, at the end of its next collective."""
    if values[0]:
        store = ActVariables.store

        def store_once(*arguments, **options):
            ActVariables.store = store
            store(*arguments, **options)
            raise MemoryError("afterwards")

        ActVariables.store = store_once
    return values


@pytest.mark.skipif(STAND_INS, reason="there, nothing can fail after the ranks have agreed")
@pytest.mark.parametrize("is_known", [True, False])
def test_an_all_reduce_that_a_worker_fails_to_take_is_undone_in_the_master_too(pair, is_known):
    """The master had its result. The next order says so, and all go on from before it."""
    v = engine.shared(np.zeros(3), name="v")
    if is_known:
        pair.collectives.all_reduce(v)
    else:  # the worker takes in the act with the order that it fails to end
        pair.collectives.broadcast(v)
    pair.collectives.set_value(1, v, np.ones(3))
    before = ranks_of(pair, v)
    pair.function([x], (fail_later(x), "gather"))(np.array([0.0, 1.0]))
    pair.collectives.all_reduce(v)
    with pytest.raises(WorkerFailed, match="afterwards"):
        pair.collectives.get_shapes(v)
    assert ranks_of(pair, v) == before
    pair.collectives.all_reduce(v)
    assert ranks_of(pair, v) == [[[0.5] * 3] * 2]


def test_a_step_is_done_whole_or_not_at_all(trio):
    gradient = engine.shared(np.zeros(2), name="gradient")
    weights = engine.shared(np.ones(2), name="weights")
    f = trio.function([x], updates=[(gradient, T.ones(2) * x.sum())], **FAST)
    h = trio.function(
        [x], updates=[(weights, weights - gradient + picky(x).sum() - x.sum())], name="h", **FAST
    )
    delayed = trio.delayed

    def once(rows, final):
        trio.step(
            f.delayed(rows),
            delayed.all_reduce(gradient),
            h.delayed(final),
            delayed.all_reduce(gradient, op="sum"),
            delayed.broadcast(weights),
        )

    rows = np.arange(3.0)
    once(rows, rows)
    before = ranks_of(trio, gradient, weights)
    assert before == [[[3.0, 3.0]] * 3, [[0.0, 0.0]] * 3]
    for culprit in range(3):
        final = rows.copy()
        final[culprit] = 200
        with pytest.raises((WorkerFailed, ValueError), match="not this") as caught:
            once(rows, final)
        assert culprit == trio.master or "function 'h'" in str(caught.value)
        assert ranks_of(trio, gradient, weights) == before
    # A collective first, on values from before the step.
    with pytest.raises((WorkerFailed, ValueError), match="not this"):
        trio.step(delayed.all_reduce(gradient, op="sum"), h.delayed(np.array([0.0, 0, 200])))
    assert ranks_of(trio, gradient, weights) == before
    once(rows, rows)
    assert ranks_of(trio, weights) == [[[-1.0, -1.0]] * 3]


def test_an_interrupt_after_all_are_done_closes_the_runtime(monkeypatch):
    with no_ranks_left(), Runtime(2) as runtime:
        s = engine.shared(np.zeros(()), name="s")
        f = runtime.function([x], updates=[(s, s + x.sum())], **FAST)
        f(np.ones(2))

        def record(*_arguments):
            raise KeyboardInterrupt

        recorder = SimpleNamespace(performed=record, enter=print, begin=print, end=print)
        monkeypatch.setattr(runtime._rank.flight, "recorder", recorder)
        with pytest.raises(KeyboardInterrupt):
            f(np.ones(2))
        assert runtime.closed


def test_rows_that_were_read_for_a_call_that_was_interrupted_are_no_others(trio):
    """Ctrl-C between two lines: the next call of the first rows must not get the second ones."""
    f = trio.function([x], (x * 1, "gather"), **FAST)
    data = trio.data(np.arange(6.0))
    first, second = slice(0, 3), slice(3, 6)
    assert f(data, batch=first).tolist() == [0.0, 1.0, 2.0]
    code = PreparedCall._compute_whole.__code__
    for line in sorted({line for _, line in dis.findlinestarts(code) if line}):

        def strike(frame, event, _argument, line=line):
            if frame.f_code is code and event == "line" and frame.f_lineno == line:
                sys.settrace(None)
                raise KeyboardInterrupt
            return strike

        before = sys.gettrace()
        sys.settrace(strike)
        try:
            with pytest.raises(KeyboardInterrupt):
                f(data, batch=second)
                raise KeyboardInterrupt  # a line that is not run
        finally:
            sys.settrace(before)
        assert f(data, batch=first).tolist() == [0.0, 1.0, 2.0]
        assert f(data, batch=second).tolist() == [3.0, 4.0, 5.0]
        assert f(data, batch=first).tolist() == [0.0, 1.0, 2.0]


def test_an_error_of_numpy_at_the_end_changes_nothing(trio):
    """The master fails when the workers have done their part, and wait for the next order."""
    s = engine.shared(np.full(2, 1e308), name="s")
    trio.collectives.broadcast(s)
    outputs = [(x.sum(), "sum"), (x.max(), "max")]
    f = trio.function([x], outputs, updates=[(s, s / 2)], **FAST)
    g = trio.function([x], outputs[0], **FAST)
    huge = np.full(6, 8e307)
    for act in (lambda: f(huge), lambda: g(huge), lambda: trio.collectives.all_reduce(s, op="sum")):
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            act()
        assert ranks_of(trio, s) == [[[1e308, 1e308]] * 3]
        assert g(np.ones(7)) == 7.0
    assert f(np.arange(5.0)) == [10.0, 4.0]
    assert ranks_of(trio, s) == [[[5e307, 5e307]] * 3]


def strike_at(place, functions, call):
    """Call with Ctrl-C at a line of these functions; return the line, if there was one, whether the
    call gave its result, and whether the KeyboardInterrupt came."""
    codes = {function.__code__ for function in functions}
    lines, given, interrupted = struck(codes, {place}, call, LATER.is_pending)
    return lines[place - 1 : place], given, interrupted


@pytest.mark.parametrize(
    "size, atomic", [(2, True), pytest.param(2, False, marks=pytest.mark.nightly), (1, True)]
)
def test_an_interrupt_out_of_a_call_means_that_it_did_not_happen(size, atomic):
    count = engine.shared(0, "count")
    usual = signal.getsignal(signal.SIGINT)
    with no_ranks_left(), Runtime(size, atomic=atomic) as runtime:
        f = runtime.function([x], (x.sum(), "sum"), updates=[(count, count + 1)])
        f(np.ones(4))
        functions = [Function.__call__, Orders.perform, Rank._perform_acts]
        counts, given, place, line = 1, set(), 0, True
        while line:
            place += 1
            line, got, interrupted = strike_at(place, functions, lambda: f(np.ones(4)))
            assert interrupted == bool(line), line
            given.add(got)
            counts += got
            if not atomic and not got:
                runtime.collectives.broadcast(count)  # ranks may differ, which is told
            values = runtime.collectives.gather(count).tolist()
            assert values == [counts] * size, (line, got)
        assert place > 40
        assert given == {False, True}
        assert not runtime.closed
        assert float(f(np.ones(4))) == 4
    assert signal.getsignal(signal.SIGINT) == usual


def test_an_interrupt_that_comes_when_a_rank_has_failed_loses_no_rank(monkeypatch):
    """The master interrupts workers that compute; one may have failed by then itself."""
    with no_ranks_left(), Runtime(1) as runtime:
        f = runtime.function([x], picky(x).sum(), **FAST)
        plain, given = Flight.phase.fget, []

        def phase(flight):
            if not given:
                given.append(flight)
                raise Interrupted
            return plain(flight)

        monkeypatch.setattr(Flight, "phase", property(phase))
        with pytest.raises(KeyboardInterrupt):
            f(np.full(3, 200.0))
        assert given
        assert not runtime.closed
        assert f(np.ones(3)) == 3


def strike(*_args):
    signal.raise_signal(signal.SIGINT)
    time.sleep(10 * AGAIN_S)  # one that is put off comes again meanwhile


class Gone:
    def __del__(self):
        strike()


class Alike:
    """All have one hash, so that a look for one compares it with another."""

    compared_until_struck = 0

    def __hash__(self):
        return 1

    def __eq__(self, other):
        Alike.compared_until_struck -= 1
        if Alike.compared_until_struck == 0:
            strike()
        return self is other


def await_interrupt():
    late = time.monotonic() + 30
    while time.monotonic() < late:
        time.sleep(0.001)


def await_no_other(pair):
    late = time.monotonic() + 10 * AGAIN_S
    while time.monotonic() < late:
        time.sleep(0.001)
    assert not LATER.is_pending()
    assert float(pair.function([], engine.shared(2.0), **FAST)()) == 2


@pytest.mark.parametrize("number", [1, 2])
def test_ctrl_c_in_a_comparison_of_keys_comes_once_after_it(pair, number):
    """CPython drops what the second comparison raises, and says KeyError."""
    table = OrderedDict.fromkeys([Alike(), Alike()], 1)
    Alike.compared_until_struck = number
    with pytest.raises(KeyboardInterrupt):
        assert list(table.values()) == [1, 1]
        await_interrupt()
    await_no_other(pair)


@pytest.mark.parametrize("kind", ["__del__", "array", "collector"])
def test_ctrl_c_in_a_finalizer_comes_once_after_it(pair, kind, monkeypatch):
    """Python only prints what a finalizer raises, or what the garbage collector calls."""
    if kind == "__del__":
        kept = Gone()
    elif kind == "collector":

        def collecting(phase, _about, struck=[]):  # noqa: B006 - once
            if not struck:
                struck.append(phase)
                strike()

        kept = None
        gc.callbacks.append(collecting)
    else:
        kept = synk_shm.ones(3)
        remove = segment.posix.remove

        def struck_then(*args):
            monkeypatch.undo()
            strike()
            return remove(*args)

        monkeypatch.setattr(segment.posix, "remove", struck_then)
    before = [*gc.callbacks]
    with pytest.raises(KeyboardInterrupt):
        del kept
        gc.collect()
        await_interrupt()
    gc.callbacks[:] = before[:-1] if kind == "collector" else before
    await_no_other(pair)


STARTS = [Runtime.__init__, Lifecycle.__init__, WorkerPool.__init__, Worker.__init__]
STARTS += [Process.__init__, start_workers]


@pytest.mark.parametrize("step", [47, pytest.param(1, marks=pytest.mark.nightly)])
def test_an_interrupt_of_the_start_leaves_nothing_behind(step):
    usual = signal.getsignal(signal.SIGINT)
    place, line, started = 0, True, []
    while line:
        place += step
        with no_ranks_left():
            line, _, interrupted = strike_at(place, STARTS, lambda: started.append(Runtime(2)))
            assert interrupted == bool(line)
            assert not (interrupted and started), line
            for runtime in started:
                runtime.close()
            assert signal.getsignal(signal.SIGINT) == usual
    assert place > 100
    assert len(started) == 1
