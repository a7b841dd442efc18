"""The little that a backend must do: slots and rounds.

Each rank owns a *slot* of ``chunk_bytes``. A *round* is: fill the own slot, ``sync``, then read
the slots of peers. Everything else (``_rounds.py``) is built on rounds, once for all backends::

    rank 0                              rank 1
    slot()[:n] = my bytes               slot()[:n] = my bytes
    sync(head, n)   <--- all meet --->  sync(head, n)
    read(1, 0, n)                       read(0, 0, n)

The first round of a collective carries its head (``_call.py``); further rounds, when the data
exceed a slot, carry none. What ``read`` returned is valid until this rank's next ``sync``: slots
are double-buffered, and a peer that posts round k+1 has finished reading round k, so that one
synchronisation a round is enough.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Callable

from ._call import decode
from ._ops import Array
from .exceptions import AbortedError, CommError, CommTimeout, PeerLost

Watch = Callable[[], None]

SLICE_S = 0.015
"""Time between two looks at the watch, the peers and the clock while waiting."""


def chunk_bytes(size: int) -> int:
    """Return the slot length for a group: 512 KB stay in the caches; large groups get less."""
    return max(1 << 16, min(1 << 19, (1 << 23) // size // 4096 * 4096))


class Fabric(ABC):
    """One rank's slots and rounds.

    Attributes:
        rank, size, backend: as in ``Communicator``.
        chunk_bytes: length of a slot.
        watch: called at least every ``SLICE_S`` seconds while ``sync`` waits.
    """

    backend: str

    def __init__(self, rank: int, size: int, watch: Watch | None) -> None:
        self.rank = rank
        self.size = size
        self.chunk_bytes = chunk_bytes(size)
        self.watch = watch

    @abstractmethod
    def meet(self, deadline: float) -> None:
        """Wait until every rank is there; to be called once, before any round."""

    @abstractmethod
    def slot(self) -> Array:
        """Return the own slot of the next round: writeable bytes."""

    @abstractmethod
    def sync(
        self,
        head: bytes | None,
        nbytes: int,
        deadline: float,
        *,
        to: int | None = None,
        part: int = 0,
    ) -> None:
        """Post the own slot and wait until all ranks have posted theirs.

        Args:
            head: the encoded call, in the first round of a collective.
            nbytes: how much of the slot is filled.
            deadline: on the clock of ``time.monotonic``.
            to: the only rank that will read this slot; None if all may.
            part: if not 0, rank r will read bytes r*part to (r+1)*part only.

        Raises:
            AbortedError, PeerLost, CommTimeout, or what ``watch`` raises.
        """

    @abstractmethod
    def all_said(self, head: bytes) -> bool:
        """Tell whether all heads of the round just synchronised are equal to this, the own."""

    @abstractmethod
    def heads(self) -> list[bytes]:
        """Return the heads of the round just synchronised, by rank."""

    @abstractmethod
    def read(self, rank: int, start: int, stop: int) -> Array:
        """Return bytes of a rank's slot (also of the own), not to be written or kept."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Tell all ranks that the group is given up; from any thread, without blocking."""

    @abstractmethod
    def lose(self, rank: int) -> None:
        """Tell the others that this rank found a peer gone, so that they need not find out."""

    @abstractmethod
    def failure(self) -> CommError | None:
        """Return what ended the group, if it is known to have ended; cheap."""

    @abstractmethod
    def close(self) -> None:
        """Tell peers that this rank leaves, and free everything. Called once."""

    @abstractmethod
    def drop(self) -> None:
        """Free this process's handles without a word to the peers: for a forked child."""

    @abstractmethod
    def last_seen(self, rank: int) -> str:
        """Say what a rank was last seen doing."""

    def timeout(self, missing: list[int], waited_s: float, doing: str) -> CommTimeout:
        """Return the error that names the ranks that did not come."""
        seen: dict[int, str] = {rank: self.last_seen(rank) for rank in missing}
        lines = "".join(f"\n  rank {rank}: {text}" for rank, text in seen.items())
        ranks = ", ".join(map(str, missing))
        message = f"rank {self.rank} waited {waited_s:.3g} s in {doing} for rank(s) {ranks}:{lines}"
        return CommTimeout(message, missing=seen)


def describe(head: bytes, turn: int, entered: float) -> str:
    """Say in words what a rank did last: its call, which turn that was, and how long ago."""
    try:
        what = str(decode(head)) if head else "joining"
    except (ValueError, TypeError):
        what = "a call that is being written right now"
    ago = max(0.0, time.monotonic() - entered)
    return f"last entered call #{turn}, {what}, {ago:.3g} s ago"


def aborted(rank: int, reason: str) -> AbortedError:
    """Return the error for a group that a rank gave up."""
    return AbortedError(f"the group was aborted by rank {rank}: {reason}", rank=rank, reason=reason)


def lost(rank: int, how: str) -> PeerLost:
    """Return the error for a peer that is gone."""
    return PeerLost(f"rank {rank} is lost: {how}", rank=rank)
