"""One order at a time: whose turn it is, whatever interrupts."""

from __future__ import annotations

import random
import signal
import threading

import pytest

from synk_theano._master.lock import Turn
from synk_theano.exceptions import NestedCall

STRIKES = 5000


def test_one_thread_at_a_time_and_none_within_itself():
    turn, order = Turn(), []
    with turn:
        assert turn.began > 0

        def other():
            with turn:
                order.append("other")

        thread = threading.Thread(target=other)
        thread.start()
        with pytest.raises(NestedCall, match="a call inside a call"), turn:
            pass
        turn.several = True
        with turn:
            order.append("inner")
        turn.several = False
    thread.join(10)
    assert order == ["inner", "other"]


def test_ctrl_c_leaves_nobody_inside():
    turn, armed = Turn(), False

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
                    with turn:
                        pass
            except KeyboardInterrupt:
                pass
            armed = False
            assert not turn._is_owned()
            with turn:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
