"""All ranks that were started together: the one loop that feeds, hears, watches and ends them."""

from __future__ import annotations

import selectors
import signal
import time
from typing import Callable

from .process import RankFailure, RankProcess

SETTLE_S = 3.0
"""Seconds for the others to fail by themselves, and report how, once one rank has failed: on a busy
machine it takes more than one."""

_STACKS_S = 0.3  # for late ranks to write their stacks
_LEFTOVERS_S = 1.0  # from SIGTERM to SIGKILL, for children of a rank that has ended
_REAP_S = 5.0  # from SIGKILL until a process is given up: it may be stuck in the kernel
_LONGEST_NAP_S = 0.05


class Crew:
    """All ranks that were started together, and the loop that waits for them.

    Leaving its ``with`` block ends whatever still runs.
    """

    def __init__(self) -> None:
        self.ranks: list[RankProcess] = []
        self._selector = selectors.DefaultSelector()
        self._nap_s = 0.001
        self._ask_until: float | None = None

    def add(self, rank: RankProcess) -> None:
        """Add a rank that has been started."""
        self.ranks.append(rank)
        self.register(rank.fileno_to_hear(), selectors.EVENT_READ, rank.hear)
        if not rank.feed():
            self.register(rank.fileno(), selectors.EVENT_WRITE, rank.feed)

    def register(self, fd: int, event: int, ready: Callable[[], bool]) -> None:
        """Call ``ready`` whenever the descriptor is, until it returns True."""
        self._selector.register(fd, event, ready)

    def running(self) -> list[RankProcess]:
        """Return the ranks that have not ended."""
        return [rank for rank in self.ranks if not rank.has_ended()]

    def step(self, deadline: float | None = None) -> None:
        """Wait for something to happen, but not long: the end of a process shows only on asking."""
        nap = self._nap_s
        if deadline is not None:
            nap = min(nap, max(0.0, deadline - time.monotonic()))
        events = self._selector.select(nap)
        self._nap_s = 0.001 if events else min(self._nap_s * 2, _LONGEST_NAP_S)
        for key, _ in events:
            if key.data():
                self._selector.unregister(key.fd)
        for rank in self.ranks:
            if rank.has_ended():
                rank.signal_group(0)  # to notice when its group is empty

    def failures(self) -> list[RankFailure]:
        """Return all failures: first what has a cause of its own, then its victims, by time."""
        found = [failure for rank in self.ranks for failure in [rank.failure()] if failure]
        return sorted(found, key=lambda failure: (failure.by_others, failure.at))

    def wait(self, deadline: float | None, grace_s: float, *, end_on_failure: bool = True) -> None:
        """Return when all have ended; from the first failure or the deadline on, make them end.

        Args:
            deadline: moment on the monotonic clock; late ranks write their stacks first.
            grace_s: from SIGTERM to SIGKILL.
            end_on_failure: if False, a failure changes nothing for the others.
        """
        settled: float | None = None
        while self.running():
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                for rank in self.ranks:
                    rank.show_stacks()
                self.wait_until(now + _STACKS_S)
                break
            if end_on_failure and settled is None and self.failures():
                settled = now + SETTLE_S
            # Ranks that were asked to end may take their time, each its own.
            end = settled if self._ask_until is None else self._ask_until
            if end is not None and now >= end:
                break
            self.step(min((at for at in (deadline, end) if at is not None), default=None))
        self.stop(signal.SIGTERM, grace_s)

    def wait_until(self, deadline: float) -> None:
        """Return when all have ended, at the latest at the deadline."""
        while self.running() and time.monotonic() < deadline:
            self.step(deadline)

    def ask(self, signum: int, grace_s: float) -> None:
        """Send a signal to all, and let ``wait`` end them after ``grace_s``; a signal handler may.

        How a rank ends then is up to it: it counts as its own doing.
        """
        for rank in self.ranks:
            if rank.exitcode is None:
                rank.signal_group(signum)
        self._ask_until = time.monotonic() + grace_s

    def stop(self, signum: int, grace_s: float) -> None:
        """Make all end: by the signal, after ``grace_s`` by SIGKILL."""
        if self.running():
            for rank in self.ranks:
                rank.stop(signum)
                rank.signal_group(signal.SIGCONT)  # who is stopped hears only this, and SIGKILL
            self.wait_until(time.monotonic() + grace_s)
            self.kill()

    def kill(self) -> None:
        """Kill all that have not ended."""
        for rank in self.ranks:
            rank.stop(signal.SIGKILL)
        self.wait_until(time.monotonic() + _REAP_S)

    def __enter__(self) -> Crew:  # noqa: PYI034 - typing.Self is newer than 3.9
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            if self.running():
                self.kill()
            deadline = time.monotonic() + _LEFTOVERS_S
            while time.monotonic() < deadline and any(rank.has_leftovers() for rank in self.ranks):
                time.sleep(0.005)
        finally:
            for rank in self.ranks:
                rank.kill_leftovers()
                rank.close()
            self._selector.close()
