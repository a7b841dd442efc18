"""Workers in states from which Python does not get them out, and pools that have such workers."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from contextlib import contextmanager

import cloudpickle
import numpy as np
import pytest
from _features import UNPROVED
from _leaks import no_ranks_left

from synk_core import Runtime
from synk_testing.engine import T, as_op

# Workers do not find the folder of the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def hold_the_lock():
    """Never return, in C, with the interpreter's lock held."""
    reading, _ = os.pipe()
    ctypes.PyDLL(None).read(reading, ctypes.create_string_buffer(1), 1)


def sleep_beside_a_thread():
    """Run bytecodes of Python's, of which each takes long."""
    threading.Thread(target=sleep_in_a_thread, daemon=True).start()
    time.sleep(300)


def sleep_in_a_thread():
    time.sleep(300)


@contextmanager
def computing(act, size=2):
    """Yield a pool whose last worker computes `act`, while the others wait for it."""

    @as_op([T.dvector], [T.dvector])
    def behave(values):
        if values.size and values.max() > 0:
            act()
        return values

    x = T.dvector("x")
    with no_ranks_left():
        runtime = Runtime(size)
        f = runtime.function([x], (behave(x), "gather"), mode="FAST_COMPILE", **UNPROVED)
        f(np.zeros(size))
        pool = runtime._lifecycle.pool

        def call():
            # Something kills the pool before the worker is done.
            with pytest.raises(Exception, match=r"rank|closed|group"):
                f(np.append(np.zeros(size - 1), 1.0))

        caller = threading.Thread(target=call)
        caller.start()
        try:
            await_stacks(pool, size - 1, act.__name__)
            yield pool
        finally:
            pool.kill()
            caller.join(30)
            runtime.close()
            assert not caller.is_alive()


@contextmanager
def calling_in_threads(functions):
    """Call each function in a thread of its own; none may have raised at the end."""
    errors = []

    def call(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(each,), daemon=True) for each in functions]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert not any(thread.is_alive() for thread in threads)


def await_stacks(pool, rank, word, timeout_s=30.0):
    """Wait until `word` is in the stacks of `rank`; return those of all workers."""
    deadline = time.monotonic() + timeout_s
    while True:
        stacks = pool.stacks()
        if word in stacks[rank] and "has not written all" not in stacks[rank]:
            return stacks
        assert time.monotonic() < deadline, stacks[rank]
        time.sleep(0.02)
