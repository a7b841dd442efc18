"""Rounds between threads of one process: the reference backend, without any operating system."""

from __future__ import annotations

import operator
import threading
import time
from collections import deque
from collections.abc import Collection
from typing import Callable

import numpy as np

from synk_comm._collectives.rounds import RoundCommunicator
from synk_comm._core.fabric import Fabric, Share, Watch, aborted, describe, lost, moving, said
from synk_comm._core.guard import DEFAULT_TIMEOUT_S, deadline_after
from synk_comm._core.ops import Array
from synk_comm.abc import Communicator
from synk_comm.exceptions import CommError

_PLACES = 2
"""How many pieces a channel holds, as those of shared memory do."""


class LocalHub:
    """State that the ranks of a local group share, under one condition variable."""

    def __init__(self, size: int) -> None:
        self.changed = threading.Condition()
        self.seqs = [0] * size
        self.heads: list[list[bytes]] = [[b"", b""] for _ in range(size)]
        self.slots: list[list[Array]] = [[] for _ in range(size)]
        self.latest: list[bytes] = [b""] * size
        self.turns = [0] * size
        self.pieces: dict[tuple[int, int], deque[tuple[bytes, Array]]] = {
            (source, dest): deque() for source in range(size) for dest in range(size)
        }
        self.halves: dict[tuple[int, ...], LocalHub] = {}
        self.closed = [False] * size
        self.gone: int | None = None
        self.aborts: dict[int, str] = {}


class LocalFabric(Fabric):
    """One thread's end of a hub."""

    backend = "local"

    def __init__(self, rank: int, size: int, watch: Watch | None, *, hub: LocalHub) -> None:
        super().__init__(rank, size, watch)
        self._hub = hub
        hub.slots[rank] = [np.empty(self.slot_bytes, np.uint8) for _ in range(2)]
        self._seq = 0
        self._headed = 0

    def meet(self, deadline: float) -> None:
        """All ranks were made together: nothing to wait for."""

    def slot(self) -> Array:
        return self._hub.slots[self.rank][(self._seq + 1) & 1]

    def sync(
        self,
        head: bytes | None,
        nbytes: int,  # noqa: ARG002 - readers know what they may read
        deadline: float,
        *,
        to: int | None = None,  # noqa: ARG002
        part: int = 0,  # noqa: ARG002
    ) -> None:
        hub = self._hub
        with hub.changed:
            self._seq = seq = self._seq + 1
            if head is not None:
                hub.heads[self.rank][seq & 1] = head
                hub.latest[self.rank] = head
                hub.turns[self.rank] += 1
                self._headed = seq
            hub.seqs[self.rank] = seq
            hub.changed.notify_all()
            self._wait(
                lambda: [rank for rank in range(self.size) if hub.seqs[rank] < seq],
                deadline,
                f"call #{hub.turns[self.rank]}, {said(hub.latest[self.rank])}",
            )

    def _wait(self, late: Callable[[], list[int]], deadline: float, doing: str) -> None:
        """Wait, under the hub's lock, until no rank is late."""
        began = time.monotonic()
        while late():
            self._hub.changed.wait(min(self.slice_s, max(deadline - time.monotonic(), 1e-4)))
            self.look()
            missing = late()
            if not missing:
                return
            failure = self.failure() or self._peer_failure(missing)
            if failure is not None:
                raise failure
            now = time.monotonic()
            if now >= deadline:
                raise self.timeout(missing, now - began, doing)

    def all_said(self, head: bytes) -> bool:
        return all(said == head for said in self.heads())

    def heads(self) -> list[bytes]:
        return [said[self._headed & 1] for said in self._hub.heads]

    def read(self, rank: int, start: int, stop: int) -> Array:
        return self._hub.slots[rank][self._seq & 1][start:stop]

    def attend(
        self, done: Callable[[], bool], rank: int, deadline: float, *, sending: bool
    ) -> None:
        with self._hub.changed:
            self._wait(lambda: [] if done() else [rank], deadline, moving(rank, sending))

    def has_place(self, dest: int) -> bool:
        return len(self._hub.pieces[self.rank, dest]) < _PLACES

    def put(self, dest: int, header: bytes, data: Array) -> None:
        self._hub.pieces[self.rank, dest].append((header, data.copy()))
        self._hub.changed.notify_all()

    def has_come(self, source: int) -> bool:
        return bool(self._hub.pieces[source, self.rank])

    def piece(self, source: int) -> tuple[bytes, Array]:
        return self._hub.pieces[source, self.rank][0]

    def release(self, source: int) -> None:
        self._hub.pieces[source, self.rank].popleft()
        self._hub.changed.notify_all()

    def split(self, groups: list[list[int]], mine: int | None, share: Share) -> Fabric | None:
        hub = self._hub
        with hub.changed:
            if mine is not None:
                members = groups[mine]
                half = hub.halves.setdefault(tuple(members), LocalHub(len(members)))
        share(None)  # all have taken the new hub
        with hub.changed:
            hub.halves.clear()
        share(None)  # so that none finds an old one in the next split
        if mine is None:
            return None
        return LocalFabric(members.index(self.rank), len(members), self.watch, hub=half)

    def abort(self, reason: str) -> None:
        # No lock: this may be called by a signal handler inside sync. Waits are sliced.
        self._hub.aborts.setdefault(self.rank, reason)

    def lose(self, rank: int) -> None:
        self._hub.gone = rank

    def failure(self) -> CommError | None:
        for rank, reason in list(self._hub.aborts.items()):
            return aborted(rank, reason)
        return None

    def gone(self, ranks: Collection[int]) -> CommError | None:
        return self.failure() or self._peer_failure(list(ranks))

    def has_entered(self, rank: int) -> bool:
        return self._hub.seqs[rank] > 0

    def _peer_failure(self, late: list[int]) -> CommError | None:
        if self._hub.gone is not None:
            return lost(self._hub.gone, "another rank found it gone")
        for rank in late:
            if self._hub.closed[rank]:
                return lost(rank, "it has closed its communicator")
        return None

    def last_seen(self, rank: int) -> str:
        hub = self._hub
        return describe(hub.latest[rank], hub.turns[rank])

    def close(self) -> None:
        self._hub.closed[self.rank] = True
        self.drop()

    def drop(self) -> None:
        """Keep all: there is only memory, which peers may still read."""


def local_group(size: int, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[Communicator]:
    """Make a group of threads of this process: one communicator for each, in rank order.

    With size 1 there are no others to wait for: every collective returns at once.
    """
    if operator.index(size) < 1:
        raise ValueError(f"size must be at least 1, got {size!r}")
    deadline_after(timeout_s)
    hub = LocalHub(size)
    fabrics = [LocalFabric(rank, size, None, hub=hub) for rank in range(size)]
    why = "local: threads of one process"
    return [RoundCommunicator(fabric, timeout_s, why) for fabric in fabrics]
