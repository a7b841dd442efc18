"""Rounds as MPI's own collectives, on a communicator that nobody else uses.

A round is one ``Allgather`` of *records* of the same length on all ranks::

    0        16       20        24       28      32     64                       R - len(head)   R
    digest   nbytes   length    part     to      kind   the slot's first bytes   ...      head

``digest`` is that of the head, so that equal calls are compared without the heads; what does not
fit into the records follows in further collectives: the heads if they differ, then the data, as
``Bcast``, ``Allgatherv``, ``Gatherv`` or ``Alltoallv``. All ranks see all records, and so call the
same. MPI needs O(log n) messages a rank for each.

Nothing blocks inside MPI: every collective is the non-blocking one, polled with the watch, the
deadline and the peers' processes in view. Beside them go *notes* from rank to rank: that a rank
aborts, leaves or is lost, and the question, after a timeout, who is there.

What a failed group has begun cannot be taken back in MPI: its buffers are kept until the process
ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any, Callable

import numpy as np

from synk_comm._core.bulk import Bulk
from synk_comm._core.calls import count_bytes
from synk_comm._core.fabric import (
    SLICE_S,
    Fabric,
    RepeatedCall,
    Share,
    Shortcut,
    Watch,
    again,
    describe,
    lost,
    moving,
    part_of,
    said,
)
from synk_comm._core.ops import Array
from synk_comm._system.cores import available_cores
from synk_comm._system.liveness import Identity, identity
from synk_comm.exceptions import CommError

from . import shortcuts
from .bulk import MpiBulk, padded
from .letters import Letters
from .notes import CLOSE_S, CLOSED, Notes
from .requests import Outstanding

_RECORD = struct.Struct("<16sIIIi?")  # digest, nbytes, length of the head, part, to, is closing
_FIELDS = np.dtype(
    {
        "names": ["digest", "nbytes", "length", "part", "to", "closing"],
        "formats": [("<u8", 2), "<u4", "<u4", "<u4", "<i4", "?"],
        "offsets": [0, 16, 20, 24, 28, 32],
        "itemsize": 64,
    }
)
_PREFIX = _FIELDS.itemsize
_RECORD_BYTES = 1280
"""Length of a record among few ranks: a kilobyte of data and a head."""
_ALL_RECORDS_BYTES = 1 << 16
# Digests of the names of the node and of the real machine; pid, start, pid namespace.
_IDENTITY = struct.Struct("<16s16sQQQ")
_DEALT = ("scatter", "all_to_all", "reduce_scatter")
"""Methods whose data do not go with the heads."""
_SPINS = 50
"""Looks at a request before the first look at anything else."""
_TURNS = 50
"""Looks at it before the next one at anything else, or before another rank has its turn."""
_ALONE_S = 1e-4
"""Seconds that a rank with a core of its own waits before it gives way: the core may be shared."""
_SPIN_S, _LONG_S, _VERY_LONG_S = 5e-4, 0.1, 10.0
_NAPS_S = (5e-5, 5e-4, 2e-3)
"""Seconds of a nap, after _SPIN_S, _LONG_S and _VERY_LONG_S seconds of waiting."""
_ROLL_CALL_S = 0.2
"""Seconds that ranks have to answer whether they are there: they look every SLICE_S."""


def record_bytes(size: int) -> int:
    """Return the length of a record: 1280 bytes, less among more than 51 ranks."""
    return max(2 * _PREFIX, min(_RECORD_BYTES, _ALL_RECORDS_BYTES // size // 64 * 64))


@lru_cache(maxsize=512)
def digest_of(head: bytes) -> bytes:
    """Return what stands for a head in a record; different heads have different digests."""
    return hashlib.blake2b(head, digest_size=16).digest()


def _machine() -> str:
    """Return the name of the running kernel."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return os.uname().nodename


class MpiFabric(Fabric):
    """One rank's part of an MPI communicator, which belongs to this fabric alone.

    Args:
        mpi: the module ``mpi4py.MPI``.
        comm: duplicated for this fabric.
    """

    backend = "mpi"
    longest_posted = 1 << 18

    def __init__(self, mpi: Any, comm: Any, watch: Watch | None) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size(), watch)
        self._mpi = mpi
        self._comm = comm
        comm.Set_errhandler(mpi.ERRORS_RETURN)
        self.io = threading.Lock()  # abort() comes from any thread
        self._record = record_bytes(self.size)
        self.rows = [np.zeros(_PREFIX + self.slot_bytes, np.uint8) for _ in range(2)]
        self.records = [np.zeros((self.size, self._record), np.uint8) for _ in range(2)]
        self._fields = [all_[:, :_PREFIX].view(_FIELDS)[:, 0] for all_ in self.records]
        self._persistent: list[Any] = []
        self.begin = [self._round(*pair) for pair in zip(self.rows, self.records)]
        self._bulk = MpiBulk(mpi, comm, self._do)
        self._outstanding = Outstanding()
        self._letters = Letters(mpi, comm, self._outstanding, self.piece_bytes)
        self.notes = Notes(mpi, comm, self._outstanding)
        self._forget = weakref.finalize(
            self, _forget, os.getpid(), self._outstanding, self.notes, self._letters
        )
        self.seq = self.turn = 0
        self.calm = True  # nothing of MPI's is outstanding, and all ranks have begun the same
        self.head: bytes | None = None
        self._alike = False
        self._went_on = False  # after the first round of a call
        self.written = [b"", b""]  # what the record of a repeated call begins with
        # The last call that all ranks have entered: which turn, and the heads.
        self.latest: tuple[int, Sequence[bytes]] = (0, ())
        self._got: list[list[tuple[int, Array]]] = [[] for _ in range(self.size)]
        self._machines: set[bytes] = set()
        self.crowded = True  # until it is known how many ranks are on this machine

    def _round(self, row: Array, records: Array) -> Callable[[], Any]:
        """Return what begins the Allgather of a record, and returns its request."""
        comm, byte = self._comm, self._mpi.BYTE
        source, target = [row[: self._record], byte], [records.reshape(-1), byte]
        try:
            request = comm.Allgather_init(source, target)
        except (AttributeError, NotImplementedError):  # an MPI before 4.0
            return lambda: comm.Iallgather(source, target)
        self._persistent.append(request)

        def start() -> Any:
            request.Start()
            return request

        return start

    def meet(self, deadline: float) -> None:
        machine = _machine()
        node = digest_of(os.environ.get("SYNKHRONOS_NODE", machine).encode())
        me = _IDENTITY.pack(node, digest_of(machine.encode()), *identity())
        self.slot()[: len(me)] = np.frombuffer(me, np.uint8)
        self.sync(None, len(me), deadline)
        self.latest = (0, [b""] * self.size)
        here = 0
        for rank in range(self.size):
            name, real, *rest = _IDENTITY.unpack(self.read(rank, 0, len(me)).tobytes())
            self._machines.add(name)
            here += real == digest_of(machine.encode())
            if rank != self.rank and name == node:
                self.notes.pids.add(rank, Identity(*rest))
        self.crowded = here > available_cores()

    @property
    def nodes(self) -> int:
        """How many machines the ranks are on; known once they have met."""
        return len(self._machines)

    def slot(self) -> Array:
        return self.rows[(self.seq + 1) & 1][_PREFIX:]

    # -- rounds -----------------------------------------------------------------------------

    def sync(
        self,
        head: bytes | None,
        nbytes: int,
        deadline: float,
        *,
        to: int | None = None,
        part: int = 0,
    ) -> None:
        with self.io:
            self._enter()
            self.calm = False
            self.seq += 1
            parity = self.seq & 1
            row = self.rows[parity]
            self.written[parity] = b""
            self._went_on = False
            self.head = head
            length, digest = 0, bytes(16)
            if head is not None:
                self.turn += 1
                length, digest = len(head), digest_of(head)
                start = self._record - length
                if _PREFIX + nbytes <= start:
                    row[start : self._record] = np.frombuffer(head, np.uint8)
            where = -1 if to is None else to
            _RECORD.pack_into(row.data, 0, digest, nbytes, length, part, where, False)
            self.notes.begun += 1
            self.wait_for_records(self.begin[parity](), parity, deadline)
            self.take_records(parity, deadline)
            self.calm = True

    def wait_for_records(self, request: Any, parity: int, deadline: float) -> None:
        """Finish a round that has begun."""
        self._finish(request, deadline, (self.rows[parity], self.records[parity]))

    def take_records(self, parity: int, deadline: float) -> None:
        """Look at all ranks' records; gather what did not fit into them."""
        records, fields = self.records[parity], self._fields[parity]
        if fields["closing"].any():
            closed = int(fields["closing"].argmax())
            raise self.notes.fail(lost(closed, CLOSED))
        digests = fields["digest"]
        self._alike = bool((digests == digests[0]).all())
        counts = fields["nbytes"]
        if self.head is not None:
            alike = self._alike
            heads = [self.head] * self.size if alike else self._all_heads(parity, deadline)
            self.latest = (self.turn, heads)
        if counts.max() <= self._record - _PREFIX:
            self._got = [
                [(0, record[_PREFIX : _PREFIX + n])] for record, n in zip(records, counts.tolist())
            ]
            return
        self._got = [[] for _ in range(self.size)]
        posted = fields[counts > 0]
        layouts = set(zip(posted["part"].tolist(), posted["to"].tolist()))
        if len(layouts) == 1:  # else the ranks do not call the same
            ((part, to),) = layouts
            self._gather_data(counts.tolist(), part, to, self.rows[parity][_PREFIX:], deadline)

    def _all_heads(self, parity: int, deadline: float) -> list[bytes]:
        records, fields = self.records[parity], self._fields[parity]
        lengths = fields["length"].tolist()
        fits = fields["nbytes"] + fields["length"] + _PREFIX <= self._record
        if fits.all():
            texts = [record[self._record - n :] for record, n in zip(records, lengths)]
        else:
            own = np.frombuffer(self.head or b"", np.uint8)
            texts = self._bulk.collect(None, own, lengths, deadline)
        return [text.tobytes() for text in texts]

    def _gather_data(
        self, counts: list[int], part: int, to: int, slot: Array, deadline: float
    ) -> None:
        """Bring the slots' data where they will be read: see ``Fabric.sync``."""
        common = [max(n - self.size * part, 0) for n in counts]
        dealt = [min(max(n - self.rank * part, 0), part) for n in counts]
        room = self._bulk.room(padded(common) + padded(dealt))
        if part:
            starts = [rank * part for rank in range(self.size)]
            lengths = [min(max(counts[self.rank] - start, 0), part) for start in starts]
            texts = self._bulk.exchange(slot, lengths, starts, dealt, room, deadline)
            for rank, text in enumerate(texts):
                self._got[rank].append((self.rank * part, text))
            room = room[padded(dealt) :]
        start = self.size * part
        roots = [rank for rank, n in enumerate(common) if n]
        own = slot[start : start + common[self.rank]]
        if len(roots) == 1 and to < 0:
            (root,) = roots
            data = own if self.rank == root else room[: common[root]]
            self._bulk.spread(root, data, deadline)
            self._got[root].append((start, data))
        elif roots:
            only = None if to < 0 else to
            texts = self._bulk.collect(only, own, common, deadline, room)
            for rank, text in enumerate(texts):
                self._got[rank].append((start, text))

    def _do(self, begin: Callable[[], Any], deadline: float, buffers: Sequence[Any]) -> None:
        """Begin a collective that all ranks begin now, and finish it."""
        self.notes.begun += 1
        # All are here, and MPI moves the data only while it is asked: no naps.
        self._finish(begin(), deadline, buffers, naps=False)

    @contextlib.contextmanager
    def bulk(self) -> Iterator[Bulk]:
        with self.io:
            self._enter()
            self.calm = False
            self._went_on = True
            yield self._bulk
            self.calm = True

    def all_said(self, head: bytes) -> bool:
        return self._alike and self.head == head

    @property
    def is_first_round(self) -> bool:
        return self.head is not None and not self._went_on

    def heads(self) -> list[bytes]:
        return list(self.latest[1])

    def read(self, rank: int, start: int, stop: int) -> Array:
        if rank == self.rank:
            return self.rows[self.seq & 1][_PREFIX + start : _PREFIX + stop]
        return part_of(self._got[rank], rank, start, stop)

    def slots(self, rank: int) -> tuple[Array, Array]:
        """Return what the records hold of a rank's slots; of the own the slots themselves."""
        rows = self.rows if rank == self.rank else [records[rank] for records in self.records]
        return rows[0][_PREFIX:], rows[1][_PREFIX:]

    def shortcut(self, repeated: RepeatedCall) -> Shortcut | None:
        own = self._fields[self.seq & 1][self.rank]
        room = self._record - _PREFIX
        calls = repeated.calls
        if calls[0].method in _DEALT or own["nbytes"] + own["length"] > room:
            return None
        if any(sum(map(count_bytes, call.arrays)) > room for call in calls):
            return None
        return shortcuts.make(self, repeated, _RECORD.size)

    # -- waiting ----------------------------------------------------------------------------

    def _enter(self) -> None:
        self.notes.catch_up()
        if self.notes.failure is not None:
            raise again(self.notes.failure)

    def _finish(
        self, request: Any, deadline: float, buffers: Sequence[Any], *, naps: bool = True
    ) -> None:
        """Wait for a collective; keep its buffers if the wait ends without it."""
        try:
            for _ in range(_SPINS):
                if request.Test():
                    return
            self._wait(request.Test, range(self.size), deadline, "", naps=naps)
        except BaseException as exc:
            self._outstanding.add(request, *buffers)
            if isinstance(exc, self._mpi.Exception):
                raise self.notes.mpi_failed(exc) from exc
            raise

    def _wait(
        self,
        done: Callable[[], Any],
        ranks: Collection[int],
        deadline: float,
        doing: str,
        *,
        naps: bool = True,
    ) -> None:
        """Wait until ``done`` returns something true, or it cannot be any more.

        Args:
            ranks: those whose part is missing.
            doing: the wait in words, "" for the call under way.
        """
        began = now = time.monotonic()
        looked = 0.0
        received = self._letters.received if doing else None
        obstructed: float | None = None
        while True:
            for _ in range(_TURNS):
                if done():
                    return
            now = time.monotonic()
            if now - looked >= SLICE_S:
                looked = now
                self.notes.hear()
                failure, patience_s = self.notes.obstacle(ranks, received)
                if failure is not None:
                    obstructed = obstructed or now
                    if now >= obstructed + patience_s:
                        raise again(failure)
                self.look()
            if now >= deadline:
                if doing:
                    raise self.timeout(list(ranks), now - began, doing)
                self._call_roll(done, now - began)
                return
            waited = now - began
            if waited < _SPIN_S or (waited < _VERY_LONG_S and not naps):
                if self.crowded or waited > _ALONE_S:
                    os.sched_yield()
            else:
                time.sleep(_NAPS_S[(waited > _LONG_S) + (waited > _VERY_LONG_S)])

    def _call_roll(self, done: Callable[[], Any], waited_s: float) -> None:
        """Raise CommTimeout for the ranks that do not answer; return if all have come meanwhile."""
        notes = self.notes
        notes.call_roll()
        end = time.monotonic() + _ROLL_CALL_S
        while time.monotonic() < end and len(notes.present) < self.size - 1:
            if done():
                return
            notes.hear()
            failure, _ = notes.obstacle((), None)
            if failure is not None:
                raise again(failure)
            time.sleep(_NAPS_S[1])
        others = [rank for rank in range(self.size) if rank != self.rank]
        missing = [rank for rank in others if rank not in notes.present]
        doing = f"call #{self.turn}, {said(self.head or b'')}"
        raise self.timeout(missing or others, waited_s, doing)

    # -- letters ----------------------------------------------------------------------------

    def attend(
        self, done: Callable[[], bool], rank: int, deadline: float, *, sending: bool
    ) -> None:
        with self.io:
            self._enter()
            try:
                for _ in range(_SPINS):
                    if done():
                        return
                self._wait(done, [rank], deadline, moving(rank, sending))
            except self._mpi.Exception as exc:
                raise self.notes.mpi_failed(exc) from exc

    @property
    def pieces(self) -> Letters:
        return self._letters

    # -- groups and their ends --------------------------------------------------------------

    def split(self, groups: list[list[int]], mine: int | None, share: Share) -> Fabric | None:
        share(None)  # all are here: the next call of MPI, which blocks, cannot wait for long
        color = self._mpi.UNDEFINED if mine is None else mine
        key = 0 if mine is None else groups[mine].index(self.rank)
        try:
            comm = self._comm.Split(color, key)
        except self._mpi.Exception as exc:
            raise self.notes.mpi_failed(exc) from exc
        return None if mine is None else MpiFabric(self._mpi, comm, self.watch)

    def why_no_thread(self) -> str:
        if self._mpi.Query_thread() >= self._mpi.THREAD_MULTIPLE:
            return ""
        return (
            "collectives that do not wait need MPI in several threads at once; before mpi4py.MPI "
            'is imported set mpi4py.rc.thread_level = "multiple", which is its default, and take '
            "an MPI that has it"
        )

    def abort(self, reason: str) -> None:
        self.notes.reason = self.notes.reason or reason
        self._tell_soon()

    def _tell_soon(self) -> None:
        """Tell the others; a thread that waits in a round does so within a slice."""
        if self.io.acquire(False):
            try:
                self.notes.own_abort()
            finally:
                self.io.release()

    def lose(self, rank: int) -> None:
        self.notes.found_gone = rank
        self._tell_soon()

    def failure(self) -> CommError | None:
        failure = self.notes.failure
        return None if failure is None else again(failure)

    def gone(self, ranks: Collection[int]) -> CommError | None:
        with self.io:
            self.notes.hear()
            self.notes.own_abort()  # that of another thread, or of a signal handler
            return self.failure() or self.notes.gone(ranks)

    def has_entered(self, rank: int) -> bool:  # noqa: ARG002 - MPI made the communicator with all
        return True

    def last_seen(self, rank: int) -> str:
        turn, heads = self.latest
        return describe(heads[rank], turn) if heads else "has not joined yet"

    def close(self) -> None:
        with self.io, contextlib.suppress(self._mpi.Exception):
            self.notes.hear()
            self.notes.leave(self._letters.sent)
            self._part(time.monotonic() + CLOSE_S)
        self._forget()

    def _part(self, deadline: float) -> None:
        """Wait until nothing is under way to or from this rank, if that can be.

        If all leave, give back to MPI what it has for this group: it has a few thousand of these.
        """
        request = None
        if self.calm and self.notes.failure is None:
            self.seq += 1
            parity = self.seq & 1
            row = self.rows[parity]
            _RECORD.pack_into(row.data, 0, bytes(16), 0, 0, 0, -1, True)
            request = self.begin[parity]()
            self._outstanding.add(request, row, self.records[parity])
        while time.monotonic() < deadline:
            self.notes.hear()
            everyone = len(self.notes.left) == self.size - 1
            if not self._outstanding and (everyone or request is None):
                if request is not None:
                    for persistent in self._persistent:
                        persistent.Free()
                    self._comm.Free()
                return
            time.sleep(_NAPS_S[0])

    def drop(self) -> None:
        """Forget all: a forked child must not call MPI."""
        self._forget.detach()
        self.notes.pids.close()


def _forget(pid: int, outstanding: Outstanding, notes: Notes, letters: Letters) -> None:
    """Leave, also a group that nobody has closed: its ranks do not notice that this one ends."""
    if os.getpid() == pid:
        notes.leave(letters.sent)
        outstanding.keep()
        notes.pids.close()
