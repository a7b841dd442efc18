"""Time limits of tests."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from typing import Any, Iterator

from .processes import descendants, kill

GRACE_S = 30.0
"""Seconds from the failure of a test that took too long until the whole run is ended."""


def hard_limit(limit_s: float, last_resort: bool = False) -> Any:
    """Make a fixture that fails every test that takes longer, and prints all threads' stacks.

    Write ``_limit = hard_limit(300)`` into a conftest.py. The limit is four times as long if all
    suites run, many at once. With `last_resort` a thread ends the whole run if a test goes on even
    then.
    """
    import pytest

    limit_s *= 4 if os.environ.get("SYNK_TESTS") == "all" else 1

    @pytest.fixture(autouse=True)
    def limit(request: Any) -> Iterator[None]:
        def late(_number: int, _frame: Any) -> None:
            print_stacks()
            pytest.fail(f"the test took longer than {limit_s} s")

        capture = request.config.pluginmanager.getplugin("capturemanager")
        timer = threading.Timer(limit_s + GRACE_S, _end_all, [capture])
        timer.daemon = True
        before = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        if last_resort:
            timer.start()
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            timer.cancel()

    return limit


def print_stacks() -> None:
    """Write the stacks of all threads to the standard error that this process began with."""
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)


def _end_all(capture: Any) -> None:
    with capture.global_and_fixture_disabled():
        print_stacks()
    kill(descendants(os.getpid()))
    os._exit(70)
