"""Messages from rank to rank beside MPI's collectives, and the requests that MPI has not done."""

from __future__ import annotations

import contextlib
import ctypes
import struct
from typing import Any

import numpy as np

from synk_comm._core.fabric import lost
from synk_comm.exceptions import PeerLost

_TAG = 1
_ENVELOPE = struct.Struct("<cQQ")  # kind, number, collectives that the sender has begun; then text


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
    """One rank's short messages.

    Attributes:
        begun: how many collectives of MPI this rank has begun.
        requests: of messages, pieces and collectives, which may not be done. Each keeps its buffers
            alive.
    """

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi = mpi
        self._comm = comm
        self._status = mpi.Status()
        self.requests: list[Any] = []
        self.begun = 0

    def send(self, rank: int, kind: bytes, number: int = 0, text: bytes = b"") -> None:
        """Send a message."""
        message = np.frombuffer(_ENVELOPE.pack(kind, number, self.begun) + text, np.uint8)
        with contextlib.suppress(self._mpi.Exception):
            self.requests.append(self._comm.Isend([message, self._mpi.BYTE], rank, _TAG))

    def receive(self) -> list[tuple[int, bytes, int, int, bytes]]:
        """Return what has come: sender, kind, number, its ``begun`` and text of each."""
        self.requests = [request for request in self.requests if not request.Test()]
        come: list[tuple[int, bytes, int, int, bytes]] = []
        while True:
            found = self._comm.Improbe(self._mpi.ANY_SOURCE, _TAG, self._status)
            if found is None:
                return come
            message = np.empty(self._status.Get_count(self._mpi.BYTE), np.uint8)
            source = self._status.Get_source()
            found.Recv([message, self._mpi.BYTE])
            kind, number, begun = _ENVELOPE.unpack_from(message.data)
            come.append((source, kind, number, begun, message[_ENVELOPE.size :].tobytes()))

    def keep(self) -> None:
        """Keep what is not done until the process ends: MPI may still read and write there."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.requests))
