"""What is done to a process, and when: shipped to workers by value, used in the master as well.

A process waits in *ambush* until its flight recorder enters a given phase, and strikes itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from typing import Any, Callable, NamedTuple, Optional

import cloudpickle
import numpy as np

from synk_testing import Mark

# Workers do not find the folder of the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MARK = "SYNK_FAULTS_MARK"
ROOM = 64 << 20


class Injected(ValueError):
    pass


def fail(_argument: float) -> None:
    raise Injected("injected here")


def kill(number: float) -> None:
    os.kill(os.getpid(), int(number))
    # Not at once, maybe: another thread may have been given the signal.
    time.sleep(0.05)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def end_if_interrupted(seconds: float) -> None:
    try:
        time.sleep(seconds)
    except BaseException:
        os._exit(3)


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


DEEDS = (fail, kill, sleep, end_if_interrupted, hold, run_out_of_memory)

NAMES = [deed.__name__ for deed in DEEDS]


def struck() -> Mark:
    """Return the mark that has the time of the fault, by the clock that all processes share."""
    return Mark(os.environ[MARK])


def laid() -> Mark:
    """Lets a worker that strikes between orders do so: all that it sent before has arrived."""
    return Mark(os.environ[MARK] + ".laid")


def tell_now() -> None:
    struck().set(repr(time.monotonic()))


def when_struck() -> Optional[float]:
    told = struck().read()
    return None if told is None else float(told)


class Place(NamedTuple):
    """Where in an order: a phase, its detail (0 for any), and how often it is let pass before."""

    phase: int
    detail: int = 0
    skip: int = 0


def lie_in_ambush(place: Place, deed: Callable[[], Any], now: bool) -> None:
    """Do this once, at this place of the order that begins `now`, or else of the one after it."""
    from synk_core._wire.flight import Flight, Phase

    left = [place.skip, now]

    def enter(store: Callable[[int], None], word: int) -> None:
        store(word)
        phase, detail = word & 0xFF, word >> 8
        if phase == Phase.IDLE:
            left[1] = True
        if not left[1] or phase != place.phase or place.detail not in {0, detail}:
            return
        if left[0]:
            left[0] -= 1
            return
        del Flight.__getattribute__
        if phase == Phase.IDLE and not now:
            laid().wait()
        tell_now()
        deed()

    def get(self: Any, name: str) -> Any:
        found = object.__getattribute__(self, name)
        return partial(enter, found) if name == "enter" else found

    Flight.__getattribute__ = get  # type: ignore[method-assign,assignment]


def arm(order: np.ndarray) -> None:
    """In a worker: phase, detail, skip, number of the deed and its argument, as floats."""
    phase, detail, skip, number = (int(word) for word in order[:4])
    argument = float(order[4])
    lie_in_ambush(Place(phase, detail, skip), lambda: DEEDS[number](argument), now=False)


def interrupt(times: int) -> None:
    """Press Ctrl-C in this process, once the fault was inflicted."""
    struck().wait()
    time.sleep(0.05)
    for i in range(times):
        if i:
            time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
        tell_now()
