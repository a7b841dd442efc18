"""The common part of zmq and mpi, which differ in their rounds and carriers.

Messages between two ranks stay in order. A rank that aborts the group, leaves it, or finds another
one gone sends that to all others.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Collection
from typing import Callable, Generic, TypeVar, Union

from synk_comm._core.fabric import SLICE_S, Fabric, Watch, aborted, again, lost, moving, said
from synk_comm.exceptions import AbortedError, CommError, PeerLost

ABORT, LOST, CLOSE = b"A", b"L", b"C"
"""Kinds of messages."""
CLOSED = "it has closed its communicator"
End = Union[AbortedError, PeerLost]


class Peer:
    """Another rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.gone = ""  # how it has left, in words
        self.pushed = self.released = 0  # pieces sent to it; released of those that it has sent


P = TypeVar("P", bound=Peer)


class MessageFabric(Fabric, Generic[P]):
    """One rank's messages to and from all others. Most of its methods are those of ``Fabric``."""

    def __init__(self, rank: int, size: int, watch: Watch | None) -> None:
        super().__init__(rank, size, watch)
        self.peers: dict[int, P] = {}
        self.io = threading.Lock()  # held while messages move: ``abort`` comes from any thread
        self.turn = 0  # number of this rank's last call
        self.own_head = b""
        self.ended: End | None = None
        self._own: End | None = None  # how this rank ends the group, which it may not have sent yet

    @abstractmethod
    def _send(self, peer: P, kind: bytes, number: int = 0, text: bytes = b"") -> None:
        """Send without waiting, unless the rank is gone."""

    @abstractmethod
    def _receive(self) -> bool:
        """Accept all messages that have come; return whether any has."""

    @abstractmethod
    def _pause(self, waited_s: float, left_s: float) -> None:
        """Accept messages; wait a moment if none has come."""

    def _accept(self, peer: P, kind: bytes, number: int, text: bytes) -> None:
        if kind == CLOSE:
            peer.gone = peer.gone or CLOSED
        elif kind == ABORT:
            cause = number - 1 if number else peer.rank  # it may forward another rank's abort
            self.ended = self.ended or aborted(cause, text.decode("utf-8", "replace"))
        elif kind == LOST:
            self._lose(number, "another rank found it gone")

    def _enter(self) -> None:
        """Accept all messages that have come; raise if the group has ended."""
        self._receive()
        if self.ended is not None:
            raise again(self.ended)

    def _wait(self, late: Callable[[], list[int]], deadline: float, doing: str = "") -> None:
        """Wait until no rank is ``late``; ``doing`` describes the wait, "" the call under way."""
        began = time.monotonic()
        looked = 0.0
        obstructed: float | None = None
        while True:
            missing = late()
            if not missing:
                return
            now = time.monotonic()
            failure, patience_s = self._obstacle(missing, doing)
            if failure is not None:
                obstructed = obstructed or now
                if now >= obstructed + patience_s:
                    raise again(failure)
            if now - looked >= SLICE_S:
                looked = now
                self.look()
            if now >= deadline:
                missing = missing if doing else self._absent(late, missing)
                if not missing:
                    return
                doing = doing or f"call #{self.turn}, {said(self.own_head)}"
                raise self.timeout(missing, now - began, doing)
            self._pause(now - began, deadline - now)

    def _obstacle(self, late: Collection[int], doing: str) -> tuple[End | None, float]:
        """Return the error that ends a wait for these ranks, and the seconds until it does."""
        failure = self.ended or self._own_end()
        if failure is not None:
            return failure, self._patience_s(failure.rank, doing)
        for rank in late:
            peer = self.peers.get(rank)
            if peer is not None and peer.gone:
                # The reason of its end may be under way, from another rank.
                return lost(rank, peer.gone), 2 * max(SLICE_S, self._patience_s(rank, doing))
        return None, 0.0

    def _patience_s(self, rank: int, doing: str) -> float:  # noqa: ARG002
        """Return the seconds in which the part of a rank that is gone may still come."""
        return 0.0

    def _absent(self, late: Callable[[], list[int]], missing: list[int]) -> list[int]:  # noqa: ARG002
        """Return the ranks that a call misses at its deadline."""
        return missing

    def attend(
        self, done: Callable[[], bool], rank: int, deadline: float, *, sending: bool
    ) -> None:
        with self.io:
            self._enter()
            self._wait(lambda: [] if done() else [rank], deadline, moving(rank, sending))

    def abort(self, reason: str) -> None:
        self._end(aborted(self.rank, reason))

    def lose(self, rank: int) -> None:
        self._end(lost(rank, "this rank found it gone"))

    def _end(self, how: End) -> None:
        """Send how this rank ends the group; if a thread waits in a round, that one sends it."""
        self._own = self._own or how
        if self.io.acquire(False):
            try:
                self._own_end()
            finally:
                self.io.release()

    def _own_end(self) -> End | None:
        """Send how this rank ends the group, if it does; return the group's end."""
        own = self._own
        if self.ended is None and isinstance(own, PeerLost):
            self._lose(own.rank, own.reason)
            self._send_all(LOST, own.rank)
        elif self.ended is None and own is not None:
            self._send_all(ABORT, 0, own.reason)
            self.ended = own
        return self.ended

    def _lose(self, rank: int, how: str) -> CommError:
        """Note a loss; nothing is sent to this rank any more. Return the group's end."""
        if rank in self.peers:
            self.peers[rank].gone = self.peers[rank].gone or how
        self.ended = self.ended or lost(rank, how)
        return again(self.ended)

    def _send_all(self, kind: bytes, number: int = 0, text: str = "") -> None:
        for peer in self.peers.values():
            self._send(peer, kind, number, text.encode("utf-8", "replace"))

    def _leave(self) -> None:
        """Send that this rank leaves."""
        ended = self._own_end()  # that ``_end`` could not send, with another thread in a round
        if isinstance(ended, AbortedError) and ended.rank != self.rank:
            # The others may not know yet why this rank leaves.
            self._send_all(ABORT, ended.rank + 1, ended.reason)
        for peer in self.peers.values():
            self._send(peer, CLOSE, peer.pushed)

    def failure(self) -> CommError | None:
        return None if self.ended is None else again(self.ended)

    def gone(self, ranks: Collection[int]) -> CommError | None:
        with self.io:
            self._receive()
            self._own_end()
            if self.ended is None:  # else a rank may have left because of that
                for rank, peer in self.peers.items():
                    if peer.gone and rank in ranks:
                        return lost(rank, peer.gone)
            return self.failure()
