"""Every test ends."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from typing import Any, Iterator, Optional

from .processes import descendants, kill

GRACE_S = 30.0
"""From a test's failure for want of time until all tests are ended."""


def hard_limit(limit_s: float, slow_s: Optional[float] = None, last_resort: bool = False) -> Any:
    """Make a fixture that fails every test that takes longer, at the place where it waits.

    Write ``_limit = hard_limit(300)`` into a conftest.py. The stacks of all threads are told.

    Args:
        slow_s: for tests that are marked ``slow``.
        last_resort: end the whole run, with all its processes, should a test not even listen
            to that. It takes a thread.
    """
    import pytest

    @pytest.fixture(autouse=True)
    def limit(request: Any) -> Iterator[None]:
        seconds = (request.node.get_closest_marker("slow") and slow_s) or limit_s

        def late(_number: int, _frame: Any) -> None:
            tell_stacks()
            pytest.fail(f"the test took longer than {seconds} s")

        capture = request.config.pluginmanager.getplugin("capturemanager")
        timer = threading.Timer(seconds + GRACE_S, _end_all, [capture])
        timer.daemon = True
        before = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        if last_resort:
            timer.start()
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            timer.cancel()

    return limit


def tell_stacks() -> None:
    """Write the stacks of all threads to the standard error that this process began with."""
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)


def _end_all(capture: Any) -> None:
    with capture.global_and_fixture_disabled():
        tell_stacks()
    kill(descendants(os.getpid()))
    os._exit(70)
