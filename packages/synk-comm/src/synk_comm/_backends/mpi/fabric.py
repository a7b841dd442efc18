"""Rounds as MPI's own collectives, on a communicator of their own.

A round is one ``Allgather`` of *records* of the same length on all ranks::

    0        16       20        24      64                        R - len(head)   R
    digest   nbytes   length    ...     the slot   ...            head

``digest`` is the hash of the head: it compares calls without their heads. Heads that differ and do
not fit into the records follow in an ``Allgatherv``; data that do not fit move by ``Bulk``.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
import struct
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Callable

import numpy as np

from synk_comm._backends.messages import CLOSED
from synk_comm._core.bulk import Bulk
from synk_comm._core.calls import count_bytes
from synk_comm._core.fabric import Fabric, RepeatedCall, Share, Shortcut, Watch, describe
from synk_comm._core.guard import deadline_after
from synk_comm._core.ops import Array
from synk_comm._core.repeats import parts_of, repeating
from synk_comm._core.table import row_of
from synk_comm._system.cores import available_cores
from synk_comm._system.liveness import Identity, identity, machine_name

from .bulk import MpiBulk
from .messages import CLOSE_S, NAPS_S, MpiMessages

_RECORD = struct.Struct("<16sII?")  # digest, nbytes, length of the head, is closing
_DIGEST_BYTES, _CLOSING = 16, 24
_PREFIX = 64
_RECORD_BYTES = 1280
"""Length of a record among few ranks: a kilobyte of data and a head."""
_ALL_RECORDS_BYTES = 1 << 16
_IDENTITY = struct.Struct("<16s16sQQQ")
"""Digests of the names of the node and of the real machine; pid, start, pid namespace."""


@lru_cache(maxsize=512)
def _digest(head: bytes) -> bytes:
    """Return the hash of a head; different heads have different ones."""
    return hashlib.blake2b(head, digest_size=_DIGEST_BYTES).digest()


class MpiFabric(MpiMessages):
    """One rank's part of a communicator of mpi4py, which nothing else uses.

    Most of its methods are those of ``Fabric``.
    """

    backend = "mpi"
    ordered_bytes = 1 << 18
    nodes = 0  # machines of the ranks; known after ``meet``

    def __init__(self, mpi: Any, comm: Any, watch: Watch | None) -> None:
        super().__init__(mpi, comm, watch)
        most = _ALL_RECORDS_BYTES // self.size // 64 * 64
        self._record = max(2 * _PREFIX, min(_RECORD_BYTES, most))
        self.slot_bytes = self._record - _PREFIX
        self.longest_posted = self.slot_bytes * 6 // 7 // 8 * 8  # mostly, the head fits behind it
        self._rows = [np.zeros(self._record, np.uint8) for _ in range(2)]
        self._records = [np.zeros((self.size, self._record), np.uint8) for _ in range(2)]
        self._persistent: list[Any] = []
        self._begin = [self._round(*pair) for pair in zip(self._rows, self._records)]
        self._bulk = MpiBulk(mpi, comm, self._do, self.ordered_bytes)
        self._seq = 0
        self._calm = True  # MPI has nothing outstanding, and all ranks have begun the same
        self._alike = False
        self._headed = False  # the latest round was the first of a call, and nothing followed it
        self._written = [b"", b""]  # the beginning of each row, if a repeated call wrote it
        # Number and heads of the last call that all ranks have entered.
        self._latest: tuple[int, Sequence[bytes]] = (0, ())

    def _round(self, row: Array, records: Array) -> Callable[[], Any]:
        """Return a function that begins the Allgather of a record, and returns its request."""
        comm = self._comm
        try:
            request = comm.Allgather_init(row, records)
        except (AttributeError, NotImplementedError):  # an MPI before 4.0
            return lambda: comm.Iallgather(row, records)
        self._persistent.append(request)

        def start() -> Any:
            request.Start()
            return request

        return start

    def meet(self, deadline: float) -> None:
        real = _digest(machine_name().encode())
        node = _digest(os.environ.get("SYNKHRONOS_NODE", machine_name()).encode())
        me = _IDENTITY.pack(node, real, *identity())
        self.slot()[: len(me)] = np.frombuffer(me, np.uint8)
        self.sync(None, len(me), deadline)
        self._latest = (0, [b""] * self.size)
        here, nodes = 0, set()
        for rank in range(self.size):
            theirs, there, *rest = _IDENTITY.unpack(self.read(rank, 0, len(me)).tobytes())
            nodes.add(theirs)
            here += there == real
            if rank != self.rank and theirs == node:
                self._pidfds.add(rank, Identity(*rest))
        self.crowded = here > available_cores()
        self.nodes = len(nodes)

    def slot(self) -> Array:
        return self._rows[(self._seq + 1) & 1][_PREFIX:]

    def sync(
        self,
        head: bytes | None,
        nbytes: int,
        deadline: float,
        *,
        to: int | None = None,  # noqa: ARG002 - all get the whole record
        part: int = 0,  # noqa: ARG002
    ) -> None:
        with self.io:
            self._enter()
            self._calm = False
            self._seq += 1
            parity = self._seq & 1
            row = self._rows[parity]
            self._written[parity] = b""
            self._headed = head is not None
            if head is not None:
                self.turn += 1
                self.own_head = head
            said = head or b""
            start = self._record - len(said)
            if _PREFIX + nbytes <= start:
                row[start:] = np.frombuffer(said, np.uint8)
            _RECORD.pack_into(row.data, 0, _digest(said), nbytes, len(said), False)
            self._do(self._begin[parity], deadline)
            self._take_records(parity, deadline)

    def _take_records(self, parity: int, deadline: float) -> None:
        """Read the beginnings of all ranks' records; gather the heads that did not fit."""
        records = self._records[parity]
        if records[:, _CLOSING].any():
            raise self._lose(int(records[:, _CLOSING].argmax()), CLOSED)
        digests = records[:, :_DIGEST_BYTES]
        self._alike = bool((digests == digests[0]).all())
        if self._headed:
            same = [self.own_head] * self.size
            self._latest = self.turn, same if self._alike else self._all_heads(records, deadline)
        self._calm = True

    def _all_heads(self, records: Array, deadline: float) -> list[bytes]:
        _, filled, lengths, _ = zip(*(_RECORD.unpack_from(record.data) for record in records))
        if max(map(operator.add, filled, lengths)) <= self.slot_bytes:
            return [record[self._record - n :].tobytes() for record, n in zip(records, lengths)]
        own = np.frombuffer(self.own_head, np.uint8)
        return [text.tobytes() for text in self._bulk.collect(None, own, lengths, deadline)]

    def _do(self, begin: Callable[[], Any], deadline: float) -> None:
        """Begin a collective that all ranks begin now, and finish it."""
        self._mailbox.begun += 1
        self._finish(begin(), deadline)

    @contextlib.contextmanager
    def bulk(self) -> Iterator[Bulk]:
        with self.io:
            self._enter()
            self._calm = self._headed = False
            self._moves_data = True
            try:
                yield self._bulk
            finally:
                self._moves_data = False
            self._calm = True

    def all_said(self, head: bytes) -> bool:
        return self._alike and self.own_head == head

    @property
    def is_first_round(self) -> bool:
        return self._headed

    def heads(self) -> list[bytes]:
        return list(self._latest[1])

    def read(self, rank: int, start: int, stop: int) -> Array:
        return self._records[self._seq & 1][rank, _PREFIX + start : _PREFIX + stop]

    def slots(self, rank: int) -> tuple[Array, Array]:
        """Return both slots of a rank: as the records have them, or the own ones themselves."""
        rows = self._rows if rank == self.rank else [records[rank] for records in self._records]
        return rows[0][_PREFIX:], rows[1][_PREFIX:]

    def shortcut(self, repeated: RepeatedCall) -> Shortcut | None:
        calls, heads, last = repeated.calls, repeated.heads, self._seq & 1
        _, nbytes, length, _ = _RECORD.unpack_from(self._rows[last].data)
        if row_of(calls[0].method).sends == "parts" or nbytes + length > self.slot_bytes:
            return None  # not all data went with the heads
        if not all(self.is_posted(sum(map(count_bytes, call.arrays))) for call in calls):
            return None
        mine, finish = parts_of(self.slots, calls, self.rank)
        head, fixed = heads[self.rank], _RECORD.size
        kept, start = self._rows[last][:fixed].tobytes(), self._record - len(head)
        views = [records[:, :fixed] for records in self._records]
        expected = views[last].tobytes()
        rows, written, begin = [row.data for row in self._rows], self._written, self._begin
        io, mailbox = self.io, self._mailbox

        def exchange(x: Any) -> int:
            # A record is written once; then its data only.
            with io:
                self._enter()
                self._calm = False
                self._seq = seq = self._seq + 1
                parity = seq & 1
                if written[parity] is not kept:
                    rows[parity][:fixed] = kept
                    rows[parity][start:] = head
                    written[parity] = kept
                if mine is not None:
                    mine[parity][...] = x
                self.turn += 1
                self.own_head = head
                self._headed = True
                mailbox.begun += 1
                request = begin[parity]()
                done = request.Test
                if not (done() or done() or done() or done()):
                    self._finish(request, deadline_after(repeated.timeout_s))
                if views[parity].tobytes() == expected:
                    self._latest = (self.turn, heads)
                    self._calm = True
                    return parity
                self._take_records(parity, deadline_after(repeated.timeout_s))
            return -1

        return repeating(repeated, exchange, finish)

    def split(self, groups: list[list[int]], mine: int | None, share: Share) -> Fabric | None:
        share(None)  # all are here: the next call of MPI blocks, but cannot wait for long
        color = self._mpi.UNDEFINED if mine is None else mine
        key = 0 if mine is None else groups[mine].index(self.rank)
        try:
            comm = self._comm.Split(color, key)
        except self._mpi.Exception as exc:
            raise self._mpi_failed(exc) from exc
        return None if mine is None else MpiFabric(self._mpi, comm, self.watch)

    def why_no_thread(self) -> str:
        if self._mpi.Query_thread() >= self._mpi.THREAD_MULTIPLE:
            return ""
        return (
            "collectives that do not wait need MPI in several threads at once; before mpi4py.MPI "
            'is imported set mpi4py.rc.thread_level = "multiple", which is its default, and take '
            "an MPI that has it"
        )

    def has_entered(self, rank: int) -> bool:  # noqa: ARG002 - MPI made the communicator with all
        return True

    def last_seen(self, rank: int) -> str:
        turn, heads = self._latest
        return describe(heads[rank], turn) if heads else "has not joined yet"

    def close(self) -> None:
        with self.io, contextlib.suppress(self._mpi.Exception):
            self._receive()
            self._leave()
            self._forget.detach()
            self._part(time.monotonic() + CLOSE_S)
        self._forget()
        self._mailbox.keep()
        self._pidfds.close()

    def _part(self, deadline: float) -> None:
        """Wait until nothing is under way to or from this rank, or the time is over.

        If all leave, give the communicator back to MPI, which has a few thousand of them.
        """
        all_leave = self._calm and self.ended is None
        if all_leave:
            self._seq += 1
            parity = self._seq & 1
            _RECORD.pack_into(self._rows[parity].data, 0, bytes(16), 0, 0, True)
            self._mailbox.requests.append(self._begin[parity]())
        while time.monotonic() < deadline:
            self._receive()
            everyone = all(peer.gone for peer in self.peers.values())
            if not self._mailbox.requests and (everyone or not all_leave):
                if all_leave:
                    for persistent in self._persistent:
                        persistent.Free()
                    self._comm.Free()
                return
            time.sleep(NAPS_S[0])
