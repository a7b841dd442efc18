"""Wait for a word of shared memory: spin, then yield, then sleep in slices.

To be woken costs 10 to 20 us, a spin 0.1 us; but with more ranks than cores every spin takes time
from the other ranks.
"""

from __future__ import annotations

import os
import time
from typing import Callable

from synk_comm._core.fabric import SLICE_S
from synk_comm._system.cores import available_cores
from synk_comm._system.futex import Futex

from .block import ALERT, Block

_SPINS = 400
_SPIN_S = 0.0003
_YIELD_S = 0.001
_YIELDS_CROWDED = 50


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
        self.spins = _SPINS  # looks at a word before ``until`` is worth a call
        if available_cores() < size:
            self.give_way()

    def give_way(self) -> None:
        """Yield at once from now on, and sleep soon."""
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

        Args:
            index: of the word.
            check: raises an error that ends the wait, also at the deadline; called between the
                slices of sleep with the time when the wait began.
        """
        words = self._block.words
        began = time.monotonic()
        yields = 0
        while not here(words[index]):
            waited = time.monotonic() - began
            if yields < _YIELDS_CROWDED if self._crowded else waited < _YIELD_S:
                if self._crowded or waited > _SPIN_S:
                    os.sched_yield()
                    yields += 1
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

    def wake_sleepers(self, index: int) -> None:
        """Wake the ranks that sleep on a word, if any rank sleeps at all."""
        for alert in self.alerts:
            if self._block.words[alert]:
                self.wake(index)
                return

    def wake(self, index: int) -> None:
        """Wake the ranks that sleep on a word."""
        self._futex.wake(self._block.word_address(index))
