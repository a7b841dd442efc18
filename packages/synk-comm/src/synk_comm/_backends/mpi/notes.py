"""Short messages beside the collectives: ranks that abort, leave or are lost, and a roll call."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Collection
from typing import Any, Callable, NamedTuple

import numpy as np

from synk_comm._core.fabric import SLICE_S, aborted, again, lost
from synk_comm._system.liveness import Pidfds
from synk_comm.exceptions import AbortedError, CommError, PeerLost

from .requests import Outstanding

CLOSE_S = 0.5
"""Seconds that closing waits for the others: MPI moves messages only while it is called."""
_LONG_S, _LOOKS = 0.2, 50
"""After so many seconds without a look at messages, and so many looks then."""
CLOSED = "it has closed its communicator"
_TAG = 1
_NOTE = struct.Struct("<cQQ")  # kind, number, collectives that the sender has begun; then text
_ABORT, _LOST, _CLOSE, _WHERE, _HERE = b"A", b"L", b"C", b"W", b"H"


class _Left(NamedTuple):
    """A rank that is gone.

    Attributes:
        how: in words.
        collectives: how many it had begun.
        letters: how many pieces it had sent to this rank.
    """

    how: str
    collectives: int = 0
    letters: int = 0


def reported(mpi: Any, comm: Any, exc: Any) -> PeerLost:
    """Return the error for one of MPI's: of a lost rank, if MPI can say so (ULFM)."""
    names = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
    if exc.Get_error_class() in {getattr(mpi, name, None) for name in names}:
        with contextlib.suppress(mpi.Exception, NotImplementedError, AttributeError):
            group = comm.Get_failed()
            comm.Ack_failed()
            ranks = group.Translate_ranks(None, comm.Get_group())
            if len(ranks):
                return lost(int(ranks[0]), "its process has ended")
    return lost(-1, f"MPI reports: {exc}")


class Notes:
    """One rank's notes to and from all others, and what they have told.

    Attributes:
        begun: how many collectives of MPI this rank has begun.
        left: the ranks that are gone. None of them is sent anything: it could end this process.
        present: the ranks that have answered the last roll call, from the same collective on.
        pids: the processes of the other ranks on this machine.
        failure: what ended the group.
        reason: why this rank aborts, which it may not have told yet.
    """

    def __init__(self, mpi: Any, comm: Any, outstanding: Outstanding) -> None:
        self._mpi = mpi
        self._comm = comm
        self._rank, self._size = comm.Get_rank(), comm.Get_size()
        self._outstanding = outstanding
        self._status = mpi.Status()
        self.begun = 0
        self.left: dict[int, _Left] = {}
        self.present: set[int] = set()
        self.pids = Pidfds()
        self.failure: CommError | None = None
        self.reason: str | None = None
        self.found_gone: int | None = None  # by this rank
        self._has_left = False
        self._heard = 0.0

    def _tell(self, kind: bytes, number: int, text: bytes, ranks: Collection[int]) -> None:
        for rank in ranks:
            if rank == self._rank or rank in self.left:
                continue
            note = np.frombuffer(_NOTE.pack(kind, number, self.begun) + text, np.uint8)
            with contextlib.suppress(self._mpi.Exception):
                request = self._comm.Isend([note, self._mpi.BYTE], rank, _TAG)
                self._outstanding.add(request, note)

    def _tell_all(self, kind: bytes, number: int, text: bytes = b"") -> None:
        self._tell(kind, number, text, range(self._size))

    def catch_up(self) -> None:
        """Hear what came while this rank did other things: a call must not succeed after that.

        The peers' parts of the call may have come, too, if they have given it up since.
        """
        silence_s = time.monotonic() - self._heard
        if silence_s > SLICE_S:
            # MPI takes in what has come bit by bit, each time that it is asked.
            for _ in range(1 if silence_s < _LONG_S else _LOOKS):
                self.hear()

    def hear(self) -> None:
        """Take in what the others have told, and which of them have ended."""
        self._heard = time.monotonic()
        for rank in self.pids.gone():
            self.left.setdefault(rank, _Left("its process has ended"))
        try:
            self._outstanding.prune()
            while True:
                note = self._comm.Improbe(self._mpi.ANY_SOURCE, _TAG, self._status)
                if note is None:
                    return
                text = np.empty(self._status.Get_count(self._mpi.BYTE), np.uint8)
                source = self._status.Get_source()
                note.Recv([text, self._mpi.BYTE])
                self._heed(source, text.tobytes())
        except self._mpi.Exception as exc:
            self.mpi_failed(exc)

    def _heed(self, rank: int, note: bytes) -> None:
        kind, number, begun = _NOTE.unpack_from(note)
        if kind == _ABORT:
            who = number - 1 if number else rank  # it may pass on what another said
            reason = note[_NOTE.size :].decode("utf-8", "replace")
            self.failure = self.failure or aborted(who, reason)
            self.left[rank] = _Left("it has aborted", begun)
        elif kind == _LOST:
            how = "another rank found it gone"
            self.left.setdefault(number, _Left(how))
            self.failure = self.failure or lost(number, how)
        elif kind == _CLOSE:
            self.left[rank] = _Left(CLOSED, begun, number)
        elif kind == _WHERE:
            self._tell(_HERE, 0, b"", [rank])
        elif kind == _HERE and begun >= self.begun:
            self.present.add(rank)

    def call_roll(self) -> None:
        """Ask all ranks whether they are there; those that wait answer within a slice."""
        self.present.clear()
        self._tell_all(_WHERE, 0)

    def obstacle(
        self, ranks: Collection[int], received: Callable[[int], int] | None
    ) -> tuple[CommError | None, float]:
        """Return what ends a wait for these ranks, and the seconds until it does.

        Args:
            received: how many letters of a rank this one has; None if it waits in a collective.
        """
        failure = self.failure or self.own_abort()
        if failure is not None:
            rank = failure.rank if isinstance(failure, AbortedError) else self._rank
            return failure, CLOSE_S * self._has_sent(rank, received)
        for rank in ranks:
            left = self.left.get(rank)
            if left is not None:
                # Or the reason of its end may still be under way.
                patience_s = 2 * CLOSE_S if self._has_sent(rank, received) else 2 * SLICE_S
                return lost(rank, left.how), patience_s
        return None, 0.0

    def _has_sent(self, rank: int, received: Callable[[int], int] | None) -> bool:
        """Return whether a rank that is gone had begun what this one waits for."""
        left = self.left.get(rank)
        if left is None:
            return False
        if received is None:
            return left.collectives >= self.begun
        return left.letters > received(rank)

    def gone(self, ranks: Collection[int]) -> CommError | None:
        """Return the error for the first of these ranks that is gone."""
        for rank in ranks:
            if rank in self.left:
                return lost(rank, self.left[rank].how)
        return None

    def fail(self, failure: CommError) -> CommError:
        """Take this for what ended the group, unless something else has; return which it is."""
        self.failure = self.failure or failure
        return again(self.failure)

    def mpi_failed(self, exc: Any) -> CommError:
        """Return the error for one of MPI's: of a lost rank, if MPI can say so (ULFM)."""
        failure = reported(self._mpi, self._comm, exc)
        if failure.rank >= 0:
            self.left.setdefault(failure.rank, _Left("its process has ended"))
        return self.fail(failure)

    def own_abort(self) -> CommError | None:
        """Tell the others how this rank ends the group, if it does; return what ended it."""
        if self.found_gone is not None and self.failure is None:
            self.left.setdefault(self.found_gone, _Left("it is lost"))
            self._tell_all(_LOST, self.found_gone)
            self.failure = lost(self.found_gone, "this rank found it gone")
        if self.reason is None or self.failure is not None:
            return self.failure
        self._tell_all(_ABORT, 0, self.reason.encode("utf-8", "replace"))
        self.failure = aborted(self._rank, self.reason)
        return self.failure

    def leave(self, sent: Callable[[int], int]) -> None:
        """Tell that this rank leaves, once.

        Args:
            sent: how many letters have gone to a rank.
        """
        if self._has_left:
            return
        self._has_left = True
        failure = self.own_abort()  # if another thread was inside a round when it was asked for
        if isinstance(failure, AbortedError) and failure.rank != self._rank:
            # Who waits for this rank may not have heard yet why it leaves.
            self._tell_all(_ABORT, failure.rank + 1, failure.reason.encode("utf-8", "replace"))
        for rank in range(self._size):
            self._tell(_CLOSE, sent(rank), b"", [rank])
