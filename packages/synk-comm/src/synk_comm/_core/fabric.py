"""The interface of a back-end: each rank owns a *slot*; collectives are made of *rounds*::

    rank 0                              rank 1
    slot()[:n] = my bytes               slot()[:n] = my bytes
    sync(head, n)   <--- all meet --->  sync(head, n)
    read(1, 0, n)                       read(0, 0, n)

The first round of a collective carries its head (``calls.py``). The result of ``read`` is valid
until this rank's next ``sync``: slots are double-buffered, and a peer that posts round k+1 has
finished reading round k, so that one synchronisation a round is enough.

A slot holds up to ``size`` *parts*, each for one rank, and then bytes for all ranks. Between two
ranks alone travel *pieces*, in channels: only ``attend`` waits for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any, Callable, NamedTuple, Protocol, TypeVar

import numpy as np

from synk_comm.exceptions import (
    AbortedError,
    CommError,
    CommTimeout,
    MismatchError,
    PeerDeclined,
    PeerLost,
)

from .bulk import Bulk
from .calls import CollectiveCall, decode
from .ops import OVER, Array

Watch = Callable[[], None]
_Error = TypeVar("_Error", bound=BaseException)

SLICE_S = 0.015
"""Seconds between two checks of the watch, the peers and the clock while waiting."""

_OF_WATCH = "_of_watch"


def is_of_watch(exc: BaseException) -> bool:
    """Return whether the user's watch raised it: then it is not about this group."""
    return _OF_WATCH in exc.__dict__


class NoMemory(MemoryError):
    """This rank has no memory left; the others have been informed."""


def is_in_step(exc: BaseException) -> bool:
    """Return whether it was raised by all ranks after a complete round, or after all rounds."""
    return isinstance(exc, (MismatchError, PeerDeclined, NoMemory)) or OVER in exc.__dict__


PART_BYTES = 1 << 18
PIECE_HEAD_BYTES = 1024
"""Room for a piece's header."""


def slot_bytes(size: int) -> int:
    """Return the length of a slot that keeps a block of data in the caches.

    More than two ranks: a part of up to 256 KB for each, and one more; at most 2.25 MB, and at most
    32 MB for all ranks together.
    """
    if size <= 2:
        return 2 * PART_BYTES
    part = min(PART_BYTES, (1 << 21) // size, (1 << 25) // size // (size + 1))
    return max(part // 64 * 64, 64) * (size + 1)


def piece_bytes(size: int) -> int:
    """Return the length of a piece: 256 KB between two ranks, less among many."""
    return max(1 << 13, min(1 << 18, (1 << 24) // (size * size) // 4096 * 4096))


def part_bytes(slot: int, size: int) -> int:
    """Return the length of the part of a slot that is for one rank, if it is cut into parts."""
    return slot // size // 64 * 64


Share = Callable[[Any], "list[Any]"]
"""Returns the objects of all ranks of the old group: an all_gather of small objects."""

Shortcut = Callable[[Any, Any], Any]
"""``shortcut(x, out)`` repeats the call on arguments like the first ones."""


class RepeatedCall(NamedTuple):
    """The inputs of a shortcut, which repeats a call."""

    guard: Any  # the ``Guard`` to enter first
    calls: Sequence[CollectiveCall]  # of all ranks, the first time
    heads: Sequence[bytes]
    timeout_s: float
    otherwise: Shortcut  # goes on in the general way after the first round, if some head differs


class Endable(Protocol):
    """One rank's end of a group: a fabric, or a link of NCCL."""

    rank: int

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Abort the group for all ranks; from any thread, without blocking."""

    @abstractmethod
    def lose(self, rank: int) -> None:
        """Report a lost peer to all others."""

    @abstractmethod
    def failure(self) -> CommError | None:
        """Return the error that ended the group, if known; cheap."""

    @abstractmethod
    def close(self) -> None:
        """Announce that this rank leaves; free everything. Called once."""

    @abstractmethod
    def drop(self) -> None:
        """Free the handles of a forked child, without a message to the peers."""


class Fabric(Endable, ABC):
    """One rank's slots and rounds, with a method for each difference between back ends."""

    backend: str  # this and ``ordered_bytes`` as in ``Communicator``
    crowded = False  # whether waits give way at once, to ranks that need this core
    ordered_bytes: int | None = None
    longest_posted: int | None = None
    """Bytes of the longest array that goes with the heads, if longer ones go by ``bulk``; None if
    all go in rounds."""

    def __init__(self, rank: int, size: int, watch: Watch | None) -> None:
        self.rank = rank
        self.size = size
        self.slot_bytes = slot_bytes(size)  # a multiple of 64
        self.piece_bytes = piece_bytes(size)
        self.watch = watch  # the user's, called at least every ``SLICE_S`` while ``sync`` waits
        self.also: Watch | None = None  # called with it, while the ranks meet

    def look(self) -> None:
        """Run the watches, which may raise."""
        if self.watch is not None:
            try:
                self.watch()
            except BaseException as exc:
                exc.__dict__[_OF_WATCH] = True
                raise
        if self.also is not None:
            self.also()

    @abstractmethod
    def meet(self, deadline: float) -> None:
        """Wait for all ranks; called once, before any round."""

    @abstractmethod
    def slot(self) -> Array:
        """Return the own slot of the next round."""

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
            to: the only rank that will read this slot; None if all may.
            part: if not 0, rank r will read bytes r*part to (r+1)*part, and all (or ``to``) may
                read those from size*part to ``nbytes``.

        Raises:
            AbortedError, PeerLost, CommTimeout, or an exception of ``watch``.
        """

    @abstractmethod
    def all_said(self, head: bytes) -> bool:
        """Return whether all heads of the latest round are equal to this, the own."""

    def is_posted(self, nbytes: int) -> bool:
        """Return whether the round with the heads begins to move an array of this length."""
        return self.longest_posted is None or nbytes <= self.longest_posted

    def post(self, source: Array | None) -> int:
        """Copy the bytes that go with the head into the own slot; return how many."""
        return 0 if source is None or not self.is_posted(source.nbytes) else self.fill(source, 0)

    def bulk(self) -> AbstractContextManager[Bulk]:
        """Return the mover of large arrays, as a context, after the round with the heads."""
        raise NotImplementedError("this back-end moves all arrays in rounds")

    def fill(self, source: Array | None, start: int) -> int:
        """Copy the next bytes of a flat array into the own slot; return how many."""
        if source is None or start >= source.nbytes:
            return 0
        stop = min(start + self.slot_bytes, source.nbytes)
        np.copyto(self.slot()[: stop - start], source[start:stop])
        return stop - start

    @property
    def is_first_round(self) -> bool:
        """Whether the latest round was the one with the heads."""
        return False

    @abstractmethod
    def heads(self) -> list[bytes]:
        """Return the heads of the latest round, by rank."""

    @abstractmethod
    def read(self, rank: int, start: int, stop: int) -> Array:
        """Return bytes of a rank's slot, also the own; not to be written, valid until ``sync``."""

    @abstractmethod
    def attend(
        self, done: Callable[[], bool], rank: int, deadline: float, *, sending: bool
    ) -> None:
        """Wait until ``done`` returns True, which it may do at once; raise as ``sync``.

        Args:
            done: moves pieces, which nothing else does. Called after each piece to or from the
                rank, and more often.
            rank, sending: which other rank is waited for, and whether it is to receive.
        """

    @abstractmethod
    def has_place(self, dest: int) -> bool:
        """Return whether the channel to another rank has room for a piece."""

    @abstractmethod
    def put(self, dest: int, header: bytes, data: Array) -> None:
        """Send a piece, if ``has_place``: up to ``PIECE_HEAD_BYTES`` and ``piece_bytes``, flat."""

    @abstractmethod
    def has_come(self, source: int) -> bool:
        """Return whether a piece of another rank is here."""

    @abstractmethod
    def piece(self, source: int) -> tuple[bytes, Array]:
        """Return the header and the data of the oldest piece, valid until ``release``."""

    @abstractmethod
    def release(self, source: int) -> None:
        """Return the place of the oldest piece to the channel."""

    @abstractmethod
    def split(self, groups: list[list[int]], mine: int | None, share: Share) -> Fabric | None:
        """Make the fabric of this rank's new group, ``groups[mine]``; every rank calls it.

        Each new group has its ranks in their new order. All ranks call ``share`` equally often.
        """

    def give_way(self) -> None:
        """Stop to spin in waits: another thread of this process is at work."""
        self.crowded = True

    def why_no_thread(self) -> str:
        """Return why another thread cannot use a group split from this one; "" if it can."""
        return ""

    def shortcut(self, repeated: RepeatedCall) -> Shortcut | None:  # noqa: ARG002
        """Return a shortcut for the latest call of all ranks, or None."""
        return None

    @abstractmethod
    def gone(self, ranks: Collection[int]) -> CommError | None:
        """Return what ended the group, or the first of these ranks that is gone; cheap."""

    @abstractmethod
    def has_entered(self, rank: int) -> bool:
        """Return whether another rank is known to have come to meet."""

    @abstractmethod
    def last_seen(self, rank: int) -> str:
        """Describe the last call of a rank."""

    def timeout(self, missing: list[int], waited_s: float, doing: str) -> CommTimeout:
        """Return the error for ranks that did not come."""
        seen = {rank: self.last_seen(rank) for rank in missing}
        lines = "".join(f"\n  rank {rank}: {text}" for rank, text in seen.items())
        ranks = ", ".join(map(str, missing))
        message = f"rank {self.rank} waited {waited_s:.3g} s in {doing} for rank(s) {ranks}:{lines}"
        return CommTimeout(message, missing=seen)


def part_of(stretches: Iterable[tuple[int, Array]], rank: int, start: int, stop: int) -> Array:
    """Return bytes of a rank's slot from the stretches that have come, each after its offset."""
    for offset, data in stretches:
        if offset <= start and stop <= offset + data.nbytes:
            return data[start - offset : stop - offset]
    if start == stop:
        return np.empty(0, np.uint8)
    raise lost(rank, f"it did not send bytes {start} to {stop}, which belong to its call")


def describe(head: bytes, turn: int) -> str:
    """Describe the last call of a rank."""
    return f"last entered call #{turn}, {said(head)}"


def moving(rank: int, sending: bool) -> str:
    """Describe a message."""
    return f"send to rank {rank}" if sending else f"recv from rank {rank}"


def said(head: bytes) -> str:
    """Describe the call of a head."""
    try:
        return str(decode(head)) if head else "joining"
    except (ValueError, TypeError):
        return "a call that is being written right now"


def aborted(rank: int, reason: str) -> AbortedError:
    """Return the error for a group that a rank aborted."""
    return AbortedError(f"the group was aborted by rank {rank}: {reason}", rank=rank, reason=reason)


def again(exc: _Error) -> _Error:
    """Return a fresh copy of an error; a traceback would keep the arrays of its frames alive."""
    try:
        copied = copy(exc)
    except Exception:  # noqa: BLE001 - some cannot be copied
        return exc
    copied.__cause__ = exc.__cause__
    return copied


def lost(rank: int, how: str) -> PeerLost:
    """Return the error for a peer that is gone."""
    return PeerLost(f"rank {rank} is lost: {how}", rank=rank, reason=how)
