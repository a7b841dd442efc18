"""Copies of the master's arrays on other hosts, in shared memory.

The first rank of each host, its *leader*, makes the memory and receives the rows that an order
brings; the others of that host wait for it.
"""

from __future__ import annotations

import errno
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Union

import numpy as np

import synk_comm
import synk_shm
from synk_core._wire.arrays import ArrayCache, new_array
from synk_core._wire.messages import ArrayRef, Extras, Shipment
from synk_core.exceptions import SharedMemoryFull

PIECE_NBYTES = 1 << 26
"""Bytes of rows that travel at a time: each time has its own limit of time."""


class Mirror:
    """One rank's part in sending rows from the master, on node 0, to others, whose `arrays` map the
    copies from now on. In the master, `source` returns a `Data`'s memory, as bytes, by its key."""

    def __init__(
        self, rank: int, master: int, nodes: Sequence[int], host: str, arrays: ArrayCache
    ) -> None:
        self._rank, self._master = rank, master
        self._leaders = [nodes.index(node) for node in range(max(nodes) + 1)]
        self._node, self._host = nodes[rank], host
        self._arrays = arrays
        self._memory: Dict[int, np.ndarray] = {}
        # Among the ranks of this host, and among the master and the leaders.
        self._near: Any = None
        self._sending: Any = None
        self.groups: List[synk_comm.Communicator] = []
        self.source: Callable[[int], np.ndarray] = self._memory.__getitem__
        if self._node:
            arrays.attach = self._find

    def join(self, comm: synk_comm.Communicator) -> None:
        """Make the groups of ranks that send rows. A collective of all ranks."""
        self._comm = comm
        self._near = comm.split(self._node)
        # Rows for all hosts travel from leader to leader.
        moves = self._rank == self._master or (self._node and not self._near.rank)
        self._sending = comm.split(0 if moves else None)
        self.groups = [own for own in (self._near, self._sending) if own is not None]

    def close(self) -> None:
        """Drop the copies."""
        for comm in self.groups:
            comm.close()
        self._memory.clear()

    def forget(self, keys: Sequence[int]) -> None:
        """Drop the copies of arrays that are gone or have moved."""
        for key in keys:
            self._memory.pop(key, None)

    def _find(self, ref: ArrayRef) -> np.ndarray:
        memory, handle = self._memory[ref.key], ref.handle
        part = memory[handle.offset : handle.offset + handle.nbytes]
        return np.ndarray(handle.shape, handle.dtype, part)

    def take_in(self, extras: Extras) -> None:
        """Send or receive the rows of an order; block until this host has its own. Nothing is sent
        if some host has no room for a copy: there SharedMemoryFull is raised."""
        if extras.mirrors:
            if self._node:
                self._make(extras.mirrors)
            self._comm.barrier()  # a rank without room declines
        own = [s for s in extras.shipments if not self._node or s.node in (self._node, None)]
        try:
            for shipment in own if self._sending is not None else ():
                self._move(shipment)
        except BaseException as error:
            # Ranks that wait for these rows would not notice that this one declines.
            for comm in (*self.groups, self._comm):
                comm.abort(f"{type(error).__name__} while rows travelled between hosts")
            raise
        if own and self._node:
            self._near.barrier()

    def _make(self, mirrors: Mapping[int, int]) -> None:
        if self._near.rank == 0:
            made = {}
            try:
                for key, nbytes in mirrors.items():
                    what = f"a copy of {nbytes} bytes on host {self._host}"
                    made[key] = new_array(max(nbytes, 1), np.dtype(np.uint8), what)
            except Exception as error:
                self._near.broadcast_object(f"host {self._host}: {type(error).__name__}: {error}")
                raise
            handles = {key: synk_shm.handle(memory) for key, memory in made.items()}
            self._near.broadcast_object(handles)
        else:
            found = self._near.broadcast_object(None)
            if isinstance(found, str):
                raise SharedMemoryFull(errno.ENOSPC, found)
            made = {key: synk_shm.attach(handle) for key, handle in found.items()}
        # A failed order may have left others.
        self._arrays.forget(mirrors)
        self._memory.update(made)

    def _move(self, shipment: Shipment) -> None:
        sends, nbytes = self._rank == self._master, shipment.row_nbytes
        # A matrix of bytes, a line for each row.
        memory = self.source(shipment.key)
        rows: np.ndarray = np.ndarray((memory.nbytes // nbytes, nbytes), np.uint8, memory)
        if shipment.data is not None:
            if not sends:
                sent = np.frombuffer(shipment.data, np.uint8)
                rows[shipment.rows] = sent.reshape(-1, nbytes)
            return
        for piece in _pieces(shipment):
            if sends or isinstance(piece, slice):
                part = rows[piece]
            else:
                part = np.empty((len(piece), nbytes), np.uint8)
            if shipment.node is None:
                self._sending.broadcast(part, 0)
            elif sends:
                self._comm.send(part, self._leaders[shipment.node])
            else:
                self._comm.recv(self._master, out=part)
            if not (sends or isinstance(piece, slice)):
                rows[piece] = part


def _pieces(shipment: Shipment) -> Iterator[Union[slice, np.ndarray]]:
    """Yield the rows in pieces of PIECE_NBYTES."""
    rows, count = shipment.rows, max(PIECE_NBYTES // shipment.row_nbytes, 1)
    if isinstance(rows, slice):
        for start in range(rows.start, rows.stop, count):
            yield slice(start, min(start + count, rows.stop))
    else:
        for start in range(0, len(rows), count):
            yield rows[start : start + count]
