"""Copies of the master's arrays on other hosts: each host has one of each, in its shared memory.

An order brings what is new: memory to make, and rows to put there. The first rank of each host, its
*leader*, makes the memory and receives the rows; the others of that host wait for it.
"""

from __future__ import annotations

import errno
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Union

import numpy as np

import synk_comm
import synk_shm
from synk_core._wire.arrays import ArrayCache, new_array
from synk_core._wire.messages import EVERY_NODE, ArrayRef, Extras, NewMirror, Shipment
from synk_core.exceptions import SharedMemoryFull

PIECE_NBYTES = 1 << 26
"""Bytes of rows that travel at a time: each time has its own limit of time."""


class Mirror:
    """One rank's part in what hosts send to each other.

    Args:
        master: the rank that sends, on node 0.
        nodes: the number of each rank's node.
        arrays: of this rank; on other hosts than the master's they are found here from now on.

    Attributes:
        source: in the master, returns the memory of a `Data`, as bytes, by its key.
    """

    def __init__(
        self, rank: int, master: int, nodes: Sequence[int], host: str, arrays: ArrayCache
    ) -> None:
        self._rank, self._master = rank, master
        self._leaders = [nodes.index(node) for node in range(max(nodes) + 1)]
        self._node, self._host = nodes[rank], host
        self._arrays = arrays
        self._memory: Dict[int, np.ndarray] = {}
        self._near: Optional[synk_comm.Communicator] = None
        self._sending: Optional[synk_comm.Communicator] = None
        self.groups: List[synk_comm.Communicator] = []
        self.source: Callable[[int], np.ndarray] = self._memory.__getitem__
        if self._node:
            arrays.attach = self._find

    def join(self, comm: synk_comm.Communicator) -> None:
        """Meet the other ranks of this host. A collective of all ranks."""
        self._comm = comm
        self._near = comm.split(self._node)
        # What all hosts need travels from leader to leader, not from the master to each.
        self._sending = comm.split(0 if self.is_leader or self._rank == self._master else None)
        self.groups = [own for own in (self._near, self._sending) if own is not None]

    @property
    def is_leader(self) -> bool:
        """Whether this rank is the first of a host that is not the master's."""
        return bool(self._node) and self._rank == self._leaders[self._node]

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
        """Return the copy of an array."""
        memory, handle = self._memory[ref.key], ref.handle
        part = memory[handle.offset : handle.offset + handle.nbytes]
        return np.ndarray(handle.shape, handle.dtype, part)

    def take_in(self, extras: Extras) -> None:
        """Send or receive what an order brings. Blocks until this host has it.

        Raises:
            SharedMemoryFull: this host has no room for a copy; nothing was sent.
            synk_comm.PeerDeclined: another host has none.
        """
        if extras.mirrors:
            if self._node:
                self._make(extras.mirrors)
            self._comm.barrier()  # who has no room for them declines
        if not extras.shipments:
            return
        try:
            if self._rank == self._master:
                for shipment in extras.shipments:
                    if shipment.data is None:
                        self._send(shipment)
                return
            own = [s for s in extras.shipments if s.node in (self._node, EVERY_NODE) and self._node]
            if self.is_leader:
                for shipment in own:
                    self._receive(shipment)
        except BaseException as error:
            # Ranks that wait for these rows would not notice that this one declines.
            for comm in (*self.groups, self._comm):
                comm.abort(f"{type(error).__name__} while rows travelled between hosts")
            raise
        if own and self._near is not None:
            self._near.barrier()

    def _make(self, mirrors: Sequence[NewMirror]) -> None:
        near = self._near
        assert near is not None  # noqa: S101 - for type checkers: `join` came first
        made: Any = None
        if near.rank == 0:
            try:
                made = [self._new(mirror) for mirror in mirrors]
            except Exception as error:
                near.broadcast_object(f"host {self._host}: {type(error).__name__}: {error}")
                raise
            near.broadcast_object([synk_shm.handle(memory) for memory in made])
        else:
            found = near.broadcast_object(None)
            if isinstance(found, str):
                raise SharedMemoryFull(errno.ENOSPC, found)
            made = [synk_shm.attach(handle) for handle in found]
        # Of an order that failed there may be others.
        self._arrays.forget([mirror.key for mirror in mirrors])
        self._memory.update((mirror.key, memory) for mirror, memory in zip(mirrors, made))

    def _new(self, mirror: NewMirror) -> np.ndarray:
        what = f"a copy of {mirror.nbytes} bytes on host {self._host}"
        return new_array(max(mirror.nbytes, 1), np.dtype(np.uint8), what)

    def _send(self, shipment: Shipment) -> None:
        rows = self._rows(shipment)
        for piece in _pieces(shipment):
            if shipment.node == EVERY_NODE:
                self._to_all(rows[piece])
            else:
                self._comm.send(rows[piece], self._leaders[shipment.node])

    def _receive(self, shipment: Shipment) -> None:
        rows = self._rows(shipment)
        for piece in _pieces(shipment):
            if shipment.data is not None:
                sent = np.frombuffer(shipment.data, np.uint8)
                rows[piece] = sent.reshape(-1, shipment.row_nbytes)
                continue
            together = isinstance(piece, slice)
            target = rows[piece] if together else np.empty_like(rows, shape=rows[piece].shape)
            if shipment.node == EVERY_NODE:
                self._to_all(target)
            else:
                self._comm.recv(self._master, out=target)
            if not together:
                rows[piece] = target

    def _to_all(self, rows: np.ndarray) -> None:
        """Give these rows of the master's to the leaders of all other hosts."""
        assert self._sending is not None  # noqa: S101 - for type checkers: it has joined
        self._sending.broadcast(rows, 0)

    def _rows(self, shipment: Shipment) -> np.ndarray:
        """Return an array's memory here, as a matrix of bytes with a line for each row."""
        memory = self.source(shipment.key)
        count = memory.nbytes // shipment.row_nbytes
        return np.ndarray((count, shipment.row_nbytes), np.uint8, memory)


def _pieces(shipment: Shipment) -> Iterator[Union[slice, np.ndarray]]:
    """Yield the rows in pieces; those that do not lie together are copied."""
    count = max(PIECE_NBYTES // shipment.row_nbytes, 1)
    if not isinstance(shipment.rows, np.ndarray):
        begin, end = shipment.rows
        if shipment.data is not None:
            yield slice(begin, end)
            return
        for start in range(begin, end, count):
            yield slice(start, min(start + count, end))
        return
    for start in range(0, len(shipment.rows), count):
        yield shipment.rows[start : start + count]
