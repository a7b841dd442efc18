"""Wait for a word of shared memory: look, then yield, then sleep in slices.

To be woken costs 10 to 20 us, a look 0.1 us, and a yield 0.5 us if nobody else wants the core. If a
program does, it keeps the core for its whole time slice, whatever its priority; but a rank that
sleeps gets the core back at once when it is woken.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Callable

from synk_comm._core.fabric import SLICE_S
from synk_comm._system.cores import available_cores, current_core
from synk_comm._system.futex import Futex

from .block import ALERT, WAKER, Block

_LOOKS = 400
_YIELDS = 1000
_YIELDS_CROWDED = 50

_SLOW_S = 0.0001
"""Seconds of a yield that has given the core to somebody else."""

_FEWEST_SLEEPS, _MOST_SLEEPS = 64, 4096
"""Waits that do not yield after a slow one; each slow try doubles them."""

_QUICK = 50
"""Yields, one after the other, that show that no program wants the core any more."""


class Waiter:
    """One rank's waiting and waking."""

    def __init__(self, block: Block, rank: int) -> None:
        self._block = block
        self._sleeping = ALERT + 1 + rank
        size = block.size
        # Words that are not zero while the group is aborted, or some rank sleeps.
        self.alerts = list(range(ALERT // 8, (ALERT + size) // 8 + 1))
        self._futex = Futex()
        self._crowded = False
        self.spins = _LOOKS  # looks at a word before ``until`` is worth a call
        self._sleeps = 0  # waits to come that do not yield
        self._backoff = _FEWEST_SLEEPS
        self._quick = 0  # yields since the latest slow one
        if available_cores() < size:
            self.give_way()

    def give_way(self) -> None:
        """Yield at once from now on, and sleep soon: the cores are fewer than the ranks."""
        self._crowded = True
        self.spins = 0

    def until(
        self,
        index: int,
        here: Callable[[int], bool],
        check: Callable[[float], None],
        deadline: float,
    ) -> None:
        """Wait until ``here`` of a word is true.

        ``check`` raises an error that ends the wait, also at the deadline; it gets, between slices
        of sleep, the time when the wait began.
        """
        words = self._block.words
        began = time.monotonic()
        yields = _YIELDS_CROWDED if self._crowded else 0 if self._sleeps else _YIELDS
        self._sleeps -= self._sleeps > 0
        while not here(words[index]):
            if yields:
                yields = self._yield() and yields - 1
                continue
            check(began)
            self._block.bytes[self._sleeping] = 1
            try:
                seen = words[index]
                if not here(seen):
                    slice_s = min(SLICE_S, max(deadline - time.monotonic(), 1e-4))
                    self._futex.wait(self._block.word_address(index), seen, slice_s)
            finally:
                self._block.bytes[self._sleeping] = 0
            self._leave_the_waker()

    def _yield(self) -> bool:
        """Yield the core; return whether to do that again."""
        before = time.monotonic()
        os.sched_yield()
        if self._crowded or time.monotonic() - before < _SLOW_S:
            self._quick += 1
            if self._quick == _QUICK:
                self._backoff = _FEWEST_SLEEPS
            return True
        self._quick, self._sleeps = 0, self._backoff
        self._backoff = min(2 * self._backoff, _MOST_SLEEPS)
        return False

    def _leave_the_waker(self) -> None:
        """Move to another core if this one is the waker's: the scheduler would leave both there for
        some milliseconds."""
        core = current_core()
        if self._crowded or self._block.words[WAKER] != core + 1:
            return
        with contextlib.suppress(OSError):  # the cores that are allowed have changed meanwhile
            allowed = os.sched_getaffinity(0)
            if len(allowed) > 1:
                os.sched_setaffinity(0, allowed - {core})
                os.sched_setaffinity(0, allowed)

    def wake_sleepers(self, index: int) -> None:
        """Wake the ranks that sleep on a word, if any rank sleeps at all."""
        for alert in self.alerts:
            if self._block.words[alert]:
                self.wake(index)
                return

    def wake(self, index: int) -> None:
        """Wake the ranks that sleep on a word."""
        self._block.words[WAKER] = current_core() + 1
        self._futex.wake(self._block.word_address(index))
