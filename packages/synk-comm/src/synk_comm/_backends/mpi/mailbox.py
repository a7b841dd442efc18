"""Messages from rank to rank beside MPI's collectives, and the requests that MPI has not done."""

from __future__ import annotations

import contextlib
import ctypes
import struct
from typing import Any

import numpy as np

from synk_comm._backends.messages import NOTHING
from synk_comm._core.fabric import lost
from synk_comm._core.ops import Array
from synk_comm.exceptions import PeerLost

_TAG = 1
_ENVELOPE = struct.Struct("<cQQQ")  # kind, number, collectives that the sender has begun, text


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


class Mailbox:
    """One rank's messages.

    Attributes:
        begun: how many collectives of MPI this rank has begun.
        requests: of sends and collectives, which may not be done. Each keeps its buffers alive.
    """

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi = mpi
        self._comm = comm
        self._status = mpi.Status()
        self._arriving: list[tuple[int, Any, Array]] = []
        self.requests: list[Any] = []
        self.begun = 0

    def send(
        self, rank: int, kind: bytes, number: int = 0, text: bytes = b"", data: Array = NOTHING
    ) -> None:
        """Send a message, which is copied."""
        envelope = _ENVELOPE.pack(kind, number, self.begun, len(text)) + text
        message = np.empty(len(envelope) + data.nbytes, np.uint8)
        message[: len(envelope)] = np.frombuffer(envelope, np.uint8)
        message[len(envelope) :] = data
        with contextlib.suppress(self._mpi.Exception):
            self.requests.append(self._comm.Isend([message, self._mpi.BYTE], rank, _TAG))

    def receive(self) -> list[tuple[int, bytes, int, int, bytes, Array]]:
        """Return what has come: sender, kind, number, its ``begun``, text and data of each."""
        self.requests = [request for request in self.requests if not request.Test()]
        byte = self._mpi.BYTE
        while True:
            found = self._comm.Improbe(self._mpi.ANY_SOURCE, _TAG, self._status)
            if found is None:
                break
            message = np.empty(self._status.Get_count(byte), np.uint8)
            request = found.Irecv([message, byte])
            self._arriving.append((self._status.Get_source(), request, message))
        come, arriving = [], []
        late: set[int] = set()  # of a rank that is late nothing may overtake what is under way
        for source, request, message in self._arriving:
            if source in late or not request.Test():
                late.add(source)
                arriving.append((source, request, message))
                continue
            kind, number, begun, length = _ENVELOPE.unpack_from(message.data)
            start = _ENVELOPE.size + length
            text = message[_ENVELOPE.size : start].tobytes()
            come.append((source, kind, number, begun, text, message[start:]))
        self._arriving = arriving
        return come

    def is_empty(self) -> bool:
        """Return whether nothing of this rank is under way."""
        return not self.requests and not self._arriving

    def keep(self) -> None:
        """Keep what is not done until the process ends: MPI may still read and write there."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object((self.requests, self._arriving)))
