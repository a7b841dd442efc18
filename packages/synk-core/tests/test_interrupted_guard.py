"""No interrupt of a computation loses the key of a communicator's guard."""

from __future__ import annotations

import random
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from synk_comm import local_group
from synk_core._wire.flight import OWN_WORK
from synk_core._workers.interrupts import SIGNAL, obey
from synk_core.exceptions import Interrupted


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
