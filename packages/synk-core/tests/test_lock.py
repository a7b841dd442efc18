"""One order at a time: and none within another, whatever interrupts. One end of a runtime."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from _busy import calling_in_threads
from _leaks import no_ranks_left

from synk_comm import local_group
from synk_core import Runtime
from synk_core._master.orders import OrderLock
from synk_core._wire.flight import OWN_WORK
from synk_core._workers.interrupts import SIGNAL, obey
from synk_core.exceptions import Closed, Interrupted, NestedCall
from synk_testing.engine import T, engine

STRIKES = 1000


def test_one_thread_at_a_time_and_none_within_itself():
    lock, order = OrderLock(), []
    with lock:
        assert lock.began > 0

        def other():
            with lock:
                order.append("other")

        thread = threading.Thread(target=other)
        thread.start()
        with pytest.raises(NestedCall, match="a call inside a call"), lock:
            pass
        order.append("inner")
    thread.join(10)
    assert order == ["inner", "other"]


def test_ctrl_c_leaves_nobody_inside():
    lock, armed = OrderLock(), False

    def strike(*_arguments):
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        for _ in range(STRIKES):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 6e-5))
                for _ in range(5000):
                    with lock:
                        pass
            except KeyboardInterrupt:
                pass
            armed = False
            assert not lock._is_owned()
            with lock:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def nested(depth, act):
    return act() if depth == 0 else nested(depth - 1, act)


def test_near_the_recursion_limit_nothing_begins_that_could_not_end():
    limit, x = sys.getrecursionlimit(), T.dvector("x")
    with no_ranks_left():
        with pytest.raises(RecursionError, match="nothing was done"):
            nested(limit - 150, lambda: Runtime(2, use_gpu=False))
        with Runtime(2, use_gpu=False) as runtime:
            w, data = engine.shared(np.zeros(1)), runtime.data(np.arange(6.0))
            f = runtime.function([x], (x.sum(), "sum"), updates=[(w, w + 1)])
            numbers = iter(range(1000))
            acts = [
                lambda: f(np.ones(next(numbers))),
                lambda: runtime.step(f.delayed(data), f.delayed(data, batch=[1, 2])),
                lambda: runtime.collectives.broadcast(w),
                lambda: runtime.function([x], x.mean() + next(numbers))(np.ones(3)),
                runtime.distribute,
            ]
            for act in acts:
                refused = 0
                for depth in range(limit - 250, limit, 7):
                    before = float(w.get_value()[0])
                    try:
                        nested(depth, act)
                    except RecursionError:
                        refused += 1
                        assert w.get_value()[0] == before
                assert 0 < refused < 36
                assert f(data) == 15
            with pytest.raises(RecursionError):
                nested(limit - 150, runtime.close)
            assert f(data) == 15
            counts = runtime.collectives.gather(w)
            assert counts[0] == counts[1] > 0


def test_threads_may_close_at_once_while_others_work():
    x, before = T.dvector("x"), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(2):
            with no_ranks_left():
                runtime = Runtime(2, use_gpu=False)
                f = runtime.function([x], x.mean())
                f(np.ones(4))
                kept = [runtime.data(np.ones(3)) for _ in range(300)]
                together = threading.Barrier(6)

                def close(runtime=runtime, together=together):
                    together.wait(30)
                    runtime.close()
                    assert runtime.closed

                def work(runtime=runtime, together=together, f=f):
                    together.wait(30)
                    with pytest.raises(Closed):
                        while True:
                            f(np.ones(np.random.randint(1, 9)))
                            runtime.data(np.ones(3))

                with calling_in_threads([close] * 4 + [work] * 2):
                    pass
                del kept
    finally:
        sys.setswitchinterval(before)


@pytest.fixture
def computing():
    """A rank that computes an order which is to be given up."""
    before = signal.getsignal(SIGNAL)
    rank = SimpleNamespace(serial=1, flight=SimpleNamespace(interrupted=1, phase=[OWN_WORK[0]]))
    obey(rank)
    yield rank
    signal.signal(SIGNAL, before if before is not signal.SIG_DFL else signal.SIG_IGN)


def test_a_guard_lets_the_next_call_in_after_any_interrupt(computing):
    (comm,) = local_group(1)
    guard = comm._guard
    armed = threading.Event()
    ended = threading.Event()

    def strike():
        while armed.wait() and not ended.is_set():
            armed.clear()
            time.sleep(random.random() * 2e-4)
            signal.pthread_kill(threading.main_thread().ident, SIGNAL)

    def enter_for_ever():
        armed.set()
        while True:
            with guard:
                pass

    striker = threading.Thread(target=strike)
    striker.start()
    try:
        for _ in range(12):
            with pytest.raises(Interrupted):
                enter_for_ever()
    finally:
        computing.flight.interrupted = 0
        ended.set()
        armed.set()
        striker.join()
    assert guard.lock == [None]
