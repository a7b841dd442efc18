"""One order at a time: and none within another, whatever interrupts."""

from __future__ import annotations

import random
import signal
import threading

import pytest

from synk_core._master.acts import OrderLock
from synk_core.exceptions import NestedCall

STRIKES = 5000


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
        lock.several = True
        with lock:
            order.append("inner")
        lock.several = False
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
