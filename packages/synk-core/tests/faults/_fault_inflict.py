"""What is done to a process, and when: shipped to workers by value, used in masters as well.

A process lies in *ambush* for itself: it waits until its flight recorder enters a given phase, says
at what time that was, and does something to itself there.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, Callable, NamedTuple, Optional

import cloudpickle
import numpy as np

# Workers do not find the folder of the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MARK = "SYNK_THEANO_FAULTS_MARK"
"""Variable of the environment: the file that tells when a fault was inflicted."""

ROOM = 64 << 20
"""Bytes that a process which runs out of memory has left."""


class Injected(ValueError):
    """The error of user code."""


def fail(_argument: float) -> None:
    raise Injected("injected here")


def kill(number: float) -> None:
    os.kill(os.getpid(), int(number))
    # Not at once, maybe: another thread may have been given the signal.
    time.sleep(0.05)


def sleep(seconds: float) -> None:
    """Be late."""
    time.sleep(seconds)


def hold(_argument: float) -> None:
    """Compute in C with the interpreter's lock held: Python's handlers of signals do not run."""
    sum(range(1 << 40))


def run_out_of_memory(_argument: float) -> None:
    """Allocate more than a limit on the process's memory leaves."""
    import resource

    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, before[1]))
    try:
        np.ones(4 * ROOM, np.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def ask_for_too_much(_argument: float) -> None:
    """Allocate more than any machine has."""
    np.ones(1 << 60, np.uint8)


DEEDS = (fail, kill, sleep, hold, run_out_of_memory, ask_for_too_much)

NAMES = [deed.__name__ for deed in DEEDS]


def mark() -> None:
    """Tell the others when it was."""
    draft = f"{os.environ[MARK]}.{os.getpid()}"
    with open(draft, "w") as file:
        file.write(repr(time.monotonic()))
    os.replace(draft, os.environ[MARK])


def read_mark() -> Optional[float]:
    """When the fault was inflicted, by the clock that all processes share; None if it was not."""
    try:
        with open(os.environ[MARK]) as file:
            return float(file.read())
    except FileNotFoundError:
        return None


def forget_mark() -> None:
    for path in (os.environ[MARK], _laid()):
        if os.path.exists(path):
            os.unlink(path)


def _laid() -> str:
    return os.environ[MARK] + ".laid"


def tell_laid() -> None:
    """Let a worker that strikes between orders do so: all that it sent before has arrived."""
    with open(_laid(), "w"):
        pass


class Place(NamedTuple):
    """Where in an order: a phase, its detail (0 for any), and how often it is let pass before."""

    phase: int
    detail: int = 0
    skip: int = 0


def lie_in_ambush(place: Place, deed: Callable[[], Any], now: bool) -> None:
    """Do this at this place of the next order, once.

    Args:
        now: the order has not begun; else it is the one after the one under way.
    """
    from synk_core._watch.flight import Flight, Phase

    enter_phase = Flight.enter
    left = [place.skip, now]

    def enter(self: Any, phase: int, detail: int = 0) -> None:
        enter_phase(self, phase, detail)
        if phase == Phase.IDLE:
            left[1] = True
        if not left[1] or phase != place.phase or place.detail not in {0, detail}:
            return
        if left[0]:
            left[0] -= 1
            return
        Flight.enter = enter_phase  # type: ignore[method-assign]
        if phase == Phase.IDLE and not now:
            wait_until(lambda: os.path.exists(_laid()))
        mark()
        deed()

    Flight.enter = enter  # type: ignore[method-assign]


def arm(order: np.ndarray) -> None:
    """In a worker: phase, detail, skip, number of the deed and its argument, as floats."""
    phase, detail, skip, number = (int(word) for word in order[:4])
    argument = float(order[4])
    lie_in_ambush(Place(phase, detail, skip), lambda: DEEDS[number](argument), now=False)


def wait_until(condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """What `condition` returns, once it is true."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s} s in vain")
        time.sleep(0.002)
    return value


def strike(number: int, times: int = 1, pause_s: float = 0.3) -> None:
    """Signals to this process, once the fault was inflicted."""
    wait_until(read_mark)
    time.sleep(0.05)
    for i in range(times):
        if i:
            time.sleep(pause_s)
        os.kill(os.getpid(), number)
        mark()


CTRL_C = int(signal.SIGINT)
