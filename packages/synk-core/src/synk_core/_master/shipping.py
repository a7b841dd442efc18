"""The rows of the master's arrays that other hosts lack for an order.

A `Data` records what was written to it by assignment. Arrays that are written through views, such
as those of a call's own arguments, travel with each order that needs them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple, Union

import numpy as np

from synk_core._plan.rows import Bounds
from synk_core._rank.mirror import Mirror
from synk_core._warn import warn_user
from synk_core._wire.arrays import ArrayCache
from synk_core._wire.data import Data, Presence
from synk_core._wire.messages import (
    Act,
    ArrayRef,
    Call,
    Collective,
    Distribute,
    Extras,
    Prefetch,
    Rows,
    Shipment,
)
from synk_core.exceptions import PerformanceWarning

from .acts import ActTable
from .store import DataStore

INLINE_NBYTES = 4096
"""Bytes of rows that travel within the order itself."""

REMIND_NBYTES = 100_000_000
"""Bytes sent again of a `Data`, after which `seal` is recommended."""

_WHOLE = slice(None)

Wanted = Tuple[ArrayRef, Union[slice, np.ndarray]]
"""An array, and a range of its rows or row numbers."""


class Shipping:
    """Plans the rows that an order brings to other hosts."""

    def __init__(
        self,
        nodes: Sequence[int],
        store: DataStore,
        arrays: ArrayCache,
        acts: ActTable,
        mirror: Mirror,
    ) -> None:
        self._ranks = {
            node: [rank for rank, other in enumerate(nodes) if other == node]
            for node in sorted({*nodes} - {0})
        }
        self._store, self._arrays, self._acts = store, arrays, acts
        # By key: the memory that hosts have copies of, their rows, bytes that were sent again.
        self._mirrored: Dict[int, Tuple[str, bytes]] = {}
        self._presence: Dict[int, Presence] = {}
        self._again: Dict[int, int] = {}
        # Of the order under way: keys of arrays of which copies are made, and rows are sent.
        self._made: Set[int] = set()
        self._sent: Set[int] = set()
        mirror.source = lambda key: store.find(key).memory.view(np.uint8)

    def extend(self, extras: Optional[Extras], steps: Sequence[Any]) -> Optional[Extras]:
        """Return `extras`, and with them the rows that hosts lack for an order of these steps."""
        mirrors: Dict[int, int] = {}
        if extras is not None:
            for key in extras.forget_arrays:
                self._forget(key)
            # Acts are prepared when they come, also those of a later order.
            for new in extras.acts.values():
                for ref in refs_of(new):
                    self._require_mirror(ref, mirrors)
        shipments: List[Shipment] = []
        for step in steps:
            act = self._acts.get(step.number)
            if isinstance(act, Prefetch) and act.call:
                act = self._acts.get(act.call)
            for node, ranks in self._ranks.items():
                for ref, rows in self._wanted(act, step.origin, ranks):
                    shipments.extend(self._lacking(node, ref, rows))
        if not mirrors and not shipments:
            self.sent()
            return extras
        merged = _merged(shipments, len(self._ranks))
        return replace(extras or Extras({}), mirrors=mirrors, shipments=merged)

    def sent(self) -> None:
        """Note that all that an order brought has arrived, even if it is undone now."""
        self._made.clear()
        self._sent.clear()

    def failed(self) -> None:
        """Note that an order failed: its rows may have arrived or not. Copies that were made for it
        are made anew."""
        for key in self._made:
            self._forget(key)
        for key in self._sent:
            self._presence.pop(key, None)
        self.sent()

    def close(self) -> None:
        """Forget the rows that hosts have."""
        self._presence.clear()

    def _forget(self, key: int) -> None:
        self._mirrored.pop(key, None)
        self._presence.pop(key, None)
        self._again.pop(key, None)

    def _require_mirror(self, ref: ArrayRef, mirrors: Dict[int, int]) -> None:
        segment = ref.handle.name, ref.handle.nonce
        if self._mirrored.get(ref.key) != segment:
            self._forget(ref.key)
            self._mirrored[ref.key] = segment
            self._made.add(ref.key)
            mirrors[ref.key] = self._store.find(ref.key).memory.nbytes

    def _wanted(self, act: Optional[Act], origin: int, ranks: Sequence[int]) -> Iterator[Wanted]:
        """Yield the arrays and rows that these ranks read."""
        if isinstance(act, Distribute):
            yield act.payload, _WHOLE
        elif isinstance(act, Collective):
            yield from self._wanted_by_collective(act, origin, ranks)
        elif isinstance(act, Call):
            for ref in (*act.broadcast, *(selector.array for selector in act.selectors)):
                yield ref, _WHOLE
            for item in act.scattered:
                if act.rows is None or item.axis:
                    yield item.array, _WHOLE  # rows along another axis lie in pieces
                    if act.rows is not None and act.rows.index is not None:
                        yield act.rows.index, _WHOLE
                    continue
                for rank in ranks:
                    bounds = act.rows.bounds[rank]
                    if item.selected:
                        yield item.array, slice(*bounds)
                    else:
                        offset = origin if item.minibatch else 0
                        yield from self._selected(item.array, act.rows, bounds, origin, offset)

    def _wanted_by_collective(
        self, act: Collective, origin: int, ranks: Sequence[int]
    ) -> Iterator[Wanted]:
        arguments = act.arguments
        origin, only = arguments.get("origin", origin), arguments.get("rank")
        for ref, rows in _values_of(act):
            for rank in ranks if only is None else {*ranks} & {only}:
                if rows is None:
                    yield ref, _WHOLE
                else:
                    bounds = rows.bounds[rank if only is None else 0]
                    yield from self._selected(ref, rows, bounds, origin, 0)

    def _selected(
        self, ref: ArrayRef, rows: Rows, bounds: Bounds, origin: int, offset: int
    ) -> Iterator[Wanted]:
        start, stop = bounds
        if start == stop:
            return
        if rows.index is not None:
            yield rows.index, slice(start, stop)
            yield ref, self._arrays.get(rows.index)[start:stop]
            return
        first = rows.span(start, stop, origin, offset).start
        if rows.step == 1:
            yield ref, slice(first, first + stop - start)
        else:
            yield ref, first + rows.step * np.arange(stop - start)

    def _lacking(
        self, node: int, ref: ArrayRef, wanted: Union[slice, np.ndarray]
    ) -> Iterator[Shipment]:
        """Yield the shipment of the rows that a host does not have as they are now."""
        length, *row_shape = ref.handle.shape or (1,)
        data = self._store.find(ref.key)
        row_nbytes = data.dtype.itemsize * int(np.prod(row_shape, dtype=np.int64))
        if not row_nbytes or not length:
            return
        if isinstance(wanted, slice):
            wanted = slice(*wanted.indices(length))
        # First: after an interrupt no row counts as present.
        self._sent.add(ref.key)
        rows: Union[slice, np.ndarray]
        if data.is_exposed:
            self._presence.pop(ref.key, None)
            rows = wanted if isinstance(wanted, slice) else np.unique(wanted)
        else:
            presence = self._presence.get(ref.key)
            if presence is None or presence.row_nbytes != row_nbytes:
                presence = self._presence[ref.key] = data.track(Presence(row_nbytes))
            present = presence.of(node, length)
            rows = _absent(present, wanted)
            present[rows] = True
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        if not count:
            return
        nbytes, content = count * row_nbytes, None
        if data.is_exposed and not self._store.is_room(data):
            self._remind(data, nbytes)
        if nbytes <= INLINE_NBYTES:
            matrix: np.ndarray = np.ndarray((length, row_nbytes), np.uint8, data.memory)
            content = matrix[rows].tobytes()
        yield Shipment(node, ref.key, row_nbytes, rows, content)

    def _remind(self, data: Data, nbytes: int) -> None:
        sent = self._again.get(data.key)
        # The first time, it would have travelled anyway.
        self._again[data.key] = 0 if sent is None else sent + nbytes
        if sent is None:
            return
        if sent < REMIND_NBYTES <= sent + nbytes:
            warn_user(
                f"{data!r} is sent to other hosts anew with each call, because the program has a "
                f"view of it and may write there unnoticed: {sent + nbytes >> 20} MB so far. Call "
                f"its seal() when you have written; assign with d[rows] = values",
                PerformanceWarning,
            )


def refs_of(act: Act) -> List[ArrayRef]:
    """Return the arrays that an act refers to."""
    if isinstance(act, Call):
        return act.arrays()
    if isinstance(act, Distribute):
        return [act.payload]
    found = []
    for ref, rows in _values_of(act) if isinstance(act, Collective) else ():
        found += [ref] if rows is None or rows.index is None else [ref, rows.index]
    return found


def _values_of(act: Collective) -> List[Tuple[ArrayRef, Optional[Rows]]]:
    """Return the arrays of a collective's values, and their rows (None: all)."""
    refs, rows = act.arguments.get("values") or (), act.arguments.get("rows")
    return list(zip(refs, rows if isinstance(rows, (list, tuple)) else [rows] * len(refs)))


def _merged(shipments: Sequence[Shipment], nodes: int) -> Tuple[Shipment, ...]:
    """Return shipments, each once, and one for all if each of `nodes` hosts gets the same rows."""
    alike: Dict[Any, Dict[Any, Shipment]] = {}
    for one in shipments:
        rows = str(one.rows) if isinstance(one.rows, slice) else one.rows.tobytes()
        alike.setdefault((one.key, one.row_nbytes, rows), {})[one.node] = one
    found: List[Shipment] = []
    for by_node in alike.values():
        several = list(by_node.values())
        # Also to a single host: MPI's broadcast puts the rows where they belong, without copies.
        found += [several[0]._replace(node=None)] if nodes == len(several) else several
    return tuple(found)


def _absent(present: np.ndarray, wanted: Union[slice, np.ndarray]) -> Union[slice, np.ndarray]:
    """Return the wanted rows that are not present, each once, as a range if possible."""
    absent = np.flatnonzero(~present[wanted])
    absent = absent + wanted.start if isinstance(wanted, slice) else np.unique(wanted[absent])
    count = len(absent)
    if count and absent[-1] - absent[0] == count - 1:
        return slice(int(absent[0]), int(absent[0]) + count)
    return absent
