"""Batches that do not come: nothing waits for the thread that draws them, but what asks for one."""

from __future__ import annotations

import os
import signal

import pytest
from _programs import zygote

from synk_testing import nothing_left

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
    # 7 where it gets Closed.
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
    """Forked in the loop, in the generator, and in one whose batch it then wants to be taken."""
    warm = zygote()
    with nothing_left():
        done = warm.run(BEGIN + CHILDREN, limit_s=LIMIT_S)
    assert done.status == 0, done.err
    assert sorted(done.out.split()) == ["0", "7", "7"]
    assert "Closed: this runtime belongs to process" in done.err
