"""How a rank waits for a word of shared memory: it spins, then yields, then sleeps in slices.

Blocking costs 10 to 20 us of waking up, a spin 0.1 us; but with more ranks than cores every spin
is time taken from the rank that is waited for.
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
    """One rank's waiting and waking.

    Attributes:
        spins: how often to look at a word before ``until`` is worth a call.
        alerts: words that are not zero while the group is aborted or some rank sleeps.
    """

    def __init__(self, block: Block, rank: int) -> None:
        self._block = block
        self._sleeping = ALERT + 1 + rank
        size = block.size
        self.alerts = list(range(ALERT // 8, (ALERT + size) // 8 + 1))
        self._futex = Futex()
        self._crowded = False
        self.spins = _SPINS
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
        """Wait until a word is as it should be.

        Args:
            index: of the word.
            here: returns whether its value is right.
            check: raises what ends the wait; called between the slices of sleep with the time when
                the wait began.
            deadline: shortens the last slice; it is for ``check`` to raise.
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
