"""Shortcuts, which repeat a small call if all ranks repeat it.

A shortcut is a closure over everything that then stays the same: the slots, the expected posted
words, the ufunc. It takes a few microseconds instead of fifty, and continues in the general way
(``repeated.otherwise``) if some rank makes another call.

What is checked is the same: the posted word carries a signature of the head, so that one
comparison shows that a peer has come *and* repeats its call.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Callable, Protocol

from synk_comm._core.fabric import IN_STEP, RepeatedCall, Shortcut
from synk_comm._core.repeats import Finish, Views, WholeSlots, parts_of

from .block import ROUND, signature
from .waiting import Waiter


class SharedSlots(WholeSlots, Protocol):
    """The part of ``ShmFabric`` that shortcuts work on."""

    rank: int
    seq: int
    me: int
    peers: list[tuple[int, int]]
    words: memoryview
    said: list[bytes]
    waiter: Waiter
    fence: Callable[[], object] | None

    def own_text(self, head: bytes) -> tuple[memoryview, bytes, tuple[slice, slice]]:
        """Return where this rank writes a head, and what."""

    def await_round(self, page: int, seq: int, posted: int, deadline: float) -> bool:
        """Wait for one rank's round."""

    def have_said(self, seq: int, heads: Sequence[bytes]) -> bool:
        """Compare the heads of a round."""

    def heed_alert(self) -> None:
        """Raise if the group was aborted; else wake the sleepers."""


def make(fabric: SharedSlots, repeated: RepeatedCall) -> Shortcut | None:
    """Return the shortcut for a call; None in a group of one."""
    if fabric.size < 2:
        return None
    mine, finish = parts_of(fabric, repeated.calls, fabric.rank)
    return _round(fabric, repeated, mine, finish)


# One function, however long: every call of another one would cost a tenth of the whole.
def _round(  # noqa: C901, PLR0915
    fabric: SharedSlots, repeated: RepeatedCall, mine: Views | None, finish: Finish
) -> Shortcut:
    guard, heads, otherwise = repeated.guard, list(repeated.heads), repeated.otherwise
    head, timeout_s = heads[fabric.rank], repeated.timeout_s
    lock, said, words, me = guard.lock, fabric.said, fabric.words, fabric.me
    pages = [(page, signature(heads[rank])) for rank, page in fabric.peers]
    alerts, spins, fence = fabric.waiter.alerts, fabric.waiter.spins, fabric.fence
    signed = signature(head)
    texts, text, places = fabric.own_text(head)
    monotonic = time.monotonic

    def shortcut(x: Any, out: Any) -> Any:  # noqa: C901, PLR0912
        if not lock:
            raise guard.refusal()
        entered = synced = False
        try:
            lock.pop()
            entered = True
            seq = fabric.seq + 1
            parity = seq & 1
            if said[parity] is not head:
                texts[places[parity]] = text
                said[parity] = head
            if mine is not None:
                mine[parity][...] = x
            number = seq & ROUND
            if fence is not None:
                fence()
            fabric.seq = seq
            words[me] = signed | number
            for index in alerts:
                if words[index]:
                    fabric.heed_alert()
            agreed = True
            for page, signature_there in pages:
                expected = signature_there | number
                left = spins
                while words[page] != expected:
                    if not left:
                        deadline = monotonic() + timeout_s
                        agreed &= fabric.await_round(page, seq, expected, deadline)
                        break
                    left -= 1
            if fence is not None:
                fence()
            if agreed or fabric.have_said(seq, heads):
                synced = True
                result = finish(x, out, parity)
            else:
                result, accident = otherwise(x, out, timeout_s)
                synced = True
                if accident is not None:
                    raise accident
        except BaseException as exc:
            if not entered and isinstance(exc, IndexError):  # another thread was quicker
                raise guard.refusal() from None
            guard.leave(exc, in_step=synced or isinstance(exc, IN_STEP))
            raise
        lock.append(None)
        return result

    return shortcut
