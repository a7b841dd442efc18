"""Rounds and pieces as messages: one PAIR of ZeroMQ sockets between any two ranks.

Of two ranks the lower binds and the higher connects, in a folder that only their user may enter.
The higher one says hello, the lower one answers. Every message carries a cookie of its sender and
receiver, which follows from the group's id. A message is
``[cookie, kind, number, offsets, text] [data] [data]``; nothing is parsed before its cookie is
checked.

A round is one message to, and one message from, every peer. Messages that come early (a peer
may be one round ahead) wait in its inbox. A peer that posts round k+1 has round k whole, so two
slots in turn suffice. Pieces, from rank to rank, are acknowledged one by one.

A dead peer shows as a disconnection, which a socket monitor reports.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Collection
from typing import Any, Callable, Sequence

import numpy as np
import zmq

from synk_comm._core.fabric import (
    SLICE_S,
    Fabric,
    Pieces,
    Watch,
    aborted,
    again,
    describe,
    lost,
    moving,
    part_of,
    said,
)
from synk_comm._core.ops import Array
from synk_comm._system.folder import SocketFolder
from synk_comm.exceptions import AbortedError, CommError, JoinError

from .peer import Message, Peer, derived, shut

_HELLO, _ROUND, _PIECE, _TAKEN, _ABORT, _LOST, _CLOSE = b"H", b"R", b"M", b"T", b"A", b"L", b"C"
_FRAME = 1 << 20
"""Longest data of a frame: beyond that every message would be fresh memory from the system."""
_PIECES = 4  # that may be on the way to a rank


class ZmqFabric(Fabric):
    """One rank's sockets.

    Args:
        key: known to the group's members only.
        folders: where the sockets of each rank listen; removed once all have met.
    """

    backend = "zmq"

    def __init__(
        self,
        rank: int,
        size: int,
        watch: Watch | None,
        *,
        key: bytes,
        folders: Sequence[SocketFolder],
    ) -> None:
        super().__init__(rank, size, watch)
        self.slot_bytes = max(1 << 16, min(_FRAME, (1 << 24) // size // 4096 * 4096))
        self.piece_bytes = 1 << 19
        self._key = key
        self._folders = folders
        self._splits = 0
        self._context = zmq.Context()
        self._slots = [np.empty(self.slot_bytes, np.uint8) for _ in range(2)]
        self._seq = 0
        self._turn = 0
        self._head = self._latest = b""
        self._failure: CommError | None = None
        self._abort_reason: str | None = None
        self._found_gone: int | None = None  # by this rank
        # A socket may be touched by one thread at a time; abort() comes from any thread.
        self._io = threading.Lock()
        self._poller = zmq.Poller()
        self._peers: dict[int, Peer] = {}
        self._owners: dict[Any, Peer] = {}  # of sockets and monitors
        self._shut = weakref.finalize(self, shut, os.getpid(), self._context, self._peers)
        for other in range(size):
            if other != rank:
                peer = self._peers[other] = Peer(other, self._context, key, rank)
                for socket in (peer.socket, peer.monitor):
                    self._owners[socket] = peer
                    self._poller.register(socket, zmq.POLLIN)

    @classmethod
    def open(
        cls, rank: int, size: int, watch: Watch | None, key: bytes, folder: SocketFolder
    ) -> ZmqFabric:
        """Wire a group whose ranks meet in one folder; to be followed by ``meet``."""
        fabric = cls(rank, size, watch, key=key, folders=[folder] * size)
        try:
            fabric.listen()
            fabric.connect()
        except BaseException:
            fabric.close()
            raise
        return fabric

    def listen(self) -> None:
        """Bind for the higher ranks."""
        for other, peer in self._peers.items():
            if other > self.rank:
                path = self._folders[self.rank].path_of(self.rank, other)
                try:
                    peer.socket.bind(f"ipc://{path}")
                except zmq.ZMQError as exc:
                    raise JoinError(f"rank {self.rank} cannot listen at {path}: {exc}") from exc

    def connect(self) -> None:
        """Connect to the lower ranks, as soon as they listen."""
        for other, peer in self._peers.items():
            if other < self.rank:
                self._folders[other].check()
                peer.socket.connect(f"ipc://{self._folders[other].path_of(other, self.rank)}")

    def split(
        self,
        groups: Sequence[Sequence[int]],
        mine: int | None,
        share: Callable[[Any], list[Any]],
    ) -> Fabric | None:
        """Wire smaller groups; the new fabric still has to ``meet``."""
        self._splits += 1
        fabric, failed = None, ""
        if mine is not None:
            ranks = list(groups[mine])
            rank, size = ranks.index(self.rank), len(ranks)
            key = derived(self._key, f"split {self._splits} {ranks}")
            # Each rank that listens has a folder of its own. The others remove it too: the rank
            # may be killed before.
            folders = [SocketFolder.named(derived(key, f"folder {new}")) for new in range(size)]
            try:
                if rank < size - 1:
                    folders[rank].make()
                fabric = ZmqFabric(rank, size, self.watch, key=key, folders=folders)
                fabric.listen()
            except (CommError, OSError) as exc:
                failed = f"{type(exc).__name__}: {exc}"
        try:
            failures = share(failed)
            if mine is None:
                return None
            for old in ranks:
                if failures[old]:
                    raise JoinError(f"rank {old} could not wire a smaller group: {failures[old]}")
            assert fabric is not None  # noqa: S101 - or this rank's failure would say so
            fabric.connect()
        except BaseException:
            if fabric is not None:
                fabric.close()
            raise
        return fabric

    def meet(self, deadline: float) -> None:
        with self._io:
            for peer in self._peers.values():
                if peer.rank < self.rank:  # the binding end cannot send before it has received
                    peer.send(peer.envelope(_HELLO, 0, b""))
            # A rank that leaves before all have met has failed.
            missing = lambda peer: peer.gone or not peer.met  # noqa: E731
            self._wait(missing, self._peers.values(), deadline, "join")
        self.sync(None, 0, deadline)
        self._remove_folders()

    def _remove_folders(self) -> None:
        """Remove where ranks meet: all are connected, or never will be."""
        for folder in set(self._folders):
            folder.remove()
            folder.forget()
        self._folders = []

    def slot(self) -> Array:
        return self._slots[(self._seq + 1) & 1]

    def sync(
        self,
        head: bytes | None,
        nbytes: int,
        deadline: float,
        *,
        to: int | None = None,
        part: int = 0,
    ) -> None:
        with self._io:
            self._enter()
            self._seq += 1
            self._head = head or b""
            if head is not None:
                self._turn += 1
                self._latest = head
            for rank, peer in self._peers.items():
                own = common = slice(0, 0)
                if part:
                    own = slice(min(rank * part, nbytes), min((rank + 1) * part, nbytes))
                if to in (None, rank):
                    common = slice(min(self.size * part, nbytes), nbytes)
                slot = self._slots[self._seq & 1]
                stretches = [one for one in (own, common) if one.stop > one.start]
                starts = [*(one.start for one in stretches), 0, 0]
                envelope = peer.envelope(_ROUND, self._seq, self._head, (starts[0], starts[1]))
                peer.send(envelope, *(slot[one] for one in stretches))
            self._wait(lambda peer: not peer.inbox, self._peers.values(), deadline, "")
            for peer in self._peers.values():
                peer.current = peer.inbox.popleft()
                if peer.current.number != self._seq:
                    raise lost(peer.rank, "its messages are out of step")

    def all_said(self, head: bytes) -> bool:
        return all(peer.current.text == head for peer in self._peers.values())

    def heads(self) -> list[bytes]:
        said = {rank: peer.current.text for rank, peer in self._peers.items()}
        return [said.get(rank, self._head) for rank in range(self.size)]

    def read(self, rank: int, start: int, stop: int) -> Array:
        if rank == self.rank:
            return self._slots[self._seq & 1][start:stop]
        current = self._peers[rank].current
        return part_of(zip(current.offsets, current.data), rank, start, stop)

    def attend(
        self, done: Callable[[], bool], rank: int, deadline: float, *, sending: bool
    ) -> None:
        with self._io:
            self._enter()
            peers = [self._peers[rank]]
            self._wait(lambda _: not done(), peers, deadline, moving(rank, sending))

    @property
    def pieces(self) -> Pieces:
        return self

    def has_place(self, dest: int) -> bool:
        """Return whether not too many pieces are on the way to another rank."""
        peer = self._peers[dest]
        return peer.pushed - peer.taken < _PIECES

    def put(self, dest: int, header: bytes, data: Array) -> None:
        peer = self._peers[dest]
        peer.pushed += 1
        peer.send(peer.envelope(_PIECE, peer.pushed, header), data)

    def has_come(self, source: int) -> bool:
        return bool(self._peers[source].pieces)

    def piece(self, source: int) -> tuple[bytes, Array]:
        piece = self._peers[source].pieces[0]
        return piece.text, piece.data[0]

    def release(self, source: int) -> None:
        peer = self._peers[source]
        peer.pieces.popleft()
        peer.released += 1
        peer.send(peer.envelope(_TAKEN, peer.released, b""))

    def _enter(self) -> None:
        """Take in what has come; raise if the group has ended."""
        for peer in self._peers.values():
            self._take_from(peer)
        if self._failure is not None:
            raise again(self._failure)

    def _wait(self, missing: Any, peers: Any, deadline: float, doing: str) -> None:
        """Take in messages until none of these peers is ``missing`` any more."""
        began = looked = time.monotonic()
        lingering: float | None = None
        while True:
            late = [peer for peer in peers if missing(peer)]
            if not late:
                return
            failure = self._failure or self._own_abort()
            gone = [peer for peer in late if peer.gone]
            if gone and failure is None:
                if lingering is None:  # the reason may be under way from another peer
                    lingering = time.monotonic() + 2 * SLICE_S
                elif time.monotonic() > lingering:
                    failure = lost(gone[0].rank, gone[0].gone)
            if failure is not None:
                raise again(failure)
            now = time.monotonic()
            if now >= deadline:
                doing = doing or f"call #{self._turn}, {said(self._latest)}"
                raise self.timeout([peer.rank for peer in late], now - began, doing)
            if now - looked >= SLICE_S or looked == began:
                looked = now
                self.look()
            slice_s = min(SLICE_S, deadline - now)
            self._listen(max(1, int(1000 * slice_s)))

    def _listen(self, timeout_ms: int) -> None:
        """Take in what comes; wait for it if there is nothing."""
        if not self._shut.alive:  # ZeroMQ would take closed sockets for standard input
            raise aborted(self.rank, "its process is ending")
        for socket, _ in self._poller.poll(timeout_ms):
            peer = self._owners[socket]
            if not socket.closed:  # by what the other one of the two has brought
                if socket is peer.monitor:
                    peer.follow()
                self._take_from(peer)

    def _take_from(self, peer: Peer) -> None:
        while not peer.socket.closed:
            frames = peer.receive()
            if frames:
                self._accept(peer, peer.read(frames))
            elif peer.gone:
                # Else ZeroMQ would reconnect to its endpoint, where another process may listen.
                self._disconnect(peer)
            else:
                return

    def _disconnect(self, peer: Peer) -> None:
        self._poller.unregister(peer.socket)
        self._poller.unregister(peer.monitor)
        peer.close()

    def _accept(self, peer: Peer, message: Message) -> None:
        kind, number, _, text, _ = message
        if kind == _HELLO:
            if peer.rank > self.rank:
                peer.send(peer.envelope(_HELLO, 0, b""))
            peer.met = True
        elif kind == _ROUND:
            peer.inbox.append(message)
            if text:
                peer.turn += 1
                peer.latest = text
        elif kind == _PIECE:
            peer.pieces.append(message)
        elif kind == _TAKEN:
            peer.taken = number
        elif kind == _ABORT:
            who = number - 1 if number else peer.rank  # it may pass on what another said
            self._failure = self._failure or aborted(who, text.decode("utf-8", "replace"))
        elif kind == _LOST:
            self._failure = self._failure or lost(number, "another rank found it gone")
        elif kind == _CLOSE:
            peer.gone = "it has closed its communicator"

    def abort(self, reason: str) -> None:
        if self._abort_reason is None:
            self._abort_reason = reason
        self._tell_soon()

    def _tell_soon(self) -> None:
        """Tell the others; if another thread is waiting in a round, it will do so in a slice."""
        if self._io.acquire(False):
            try:
                self._own_abort()
            finally:
                self._io.release()

    def _own_abort(self) -> CommError | None:
        """Tell the others how this rank ends the group, if it does; return what ended it."""
        if self._found_gone is not None and self._failure is None:
            self._tell(_LOST, self._found_gone, b"")
            self._failure = lost(self._found_gone, "this rank found it gone")
        if self._abort_reason is None or self._failure is not None:
            return self._failure
        self._tell(_ABORT, 0, self._abort_reason.encode("utf-8", "replace"))
        for peer in self._peers.values():
            if peer.cut and not peer.socket.closed:  # it can only be shown that this rank is gone
                self._disconnect(peer)
        self._failure = aborted(self.rank, self._abort_reason)
        return self._failure

    def lose(self, rank: int) -> None:
        self._found_gone = rank
        self._tell_soon()

    def _tell(self, kind: bytes, number: int, text: bytes) -> None:
        for peer in self._peers.values():
            if peer.connected and not peer.gone:
                peer.send(peer.envelope(kind, number, text))

    def failure(self) -> CommError | None:
        return None if self._failure is None else again(self._failure)

    def gone(self, ranks: Collection[int]) -> CommError | None:
        with self._io:
            self._listen(0)
            self._own_abort()  # that of another thread, or of a signal handler, which come in here
            if self._failure is None:  # else those who know of it may have left since
                for peer in self._peers.values():
                    if peer.gone and peer.rank in ranks:
                        return lost(peer.rank, peer.gone)
            return self.failure()

    def has_entered(self, rank: int) -> bool:
        return rank == self.rank or self._peers[rank].met

    def last_seen(self, rank: int) -> str:
        peer = self._peers[rank]
        if not peer.met:
            return "has not joined yet"
        return describe(peer.latest, peer.turn)

    def close(self) -> None:
        with self._io:
            with contextlib.suppress(CommError):  # a rank that has left needs no message
                self._listen(0)
            self._own_abort()  # if another thread was inside a round when it was asked for
            failure = self._failure
            if isinstance(failure, AbortedError) and failure.rank != self.rank:
                # Who waits for this rank may not have heard yet why it leaves.
                self._tell(_ABORT, failure.rank + 1, failure.reason.encode("utf-8", "replace"))
            self._tell(_CLOSE, 0, b"")
            self._shut()
            self._remove_folders()

    def drop(self) -> None:
        """Forget all: a forked child must not touch ZeroMQ's threads, which it does not have."""
        self._shut.detach()
        self._peers.clear()
