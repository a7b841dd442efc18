"""Rows on demand: what other hosts lack of the master's arrays before an order can be performed.

A host's copy of a row is used only while it is known to be the same; else the row is sent again. A
`Data` knows what was written to it by assignment. Arrays that are written through views, such as
those of a call's own arguments, are sent with each order that needs them.
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
    EVERY_NODE,
    Act,
    ArrayRef,
    Call,
    Collective,
    Distribute,
    Extras,
    NewMirror,
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

Wanted = Union[None, Bounds, np.ndarray]
"""Rows of an array: all, a range, or row numbers."""


class Shipping:
    """Plans what an order has to bring."""

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
        self._mirrored: Dict[int, Tuple[str, bytes]] = {}
        self._presence: Dict[int, Presence] = {}
        self._made: Set[int] = set()
        self._sent: Set[int] = set()
        self._again: Dict[int, int] = {}
        mirror.source = self._memory_of

    def _memory_of(self, key: int) -> np.ndarray:
        data = self._store.find(key)
        return data.memory.view(np.uint8)

    def extend(self, extras: Optional[Extras], steps: Sequence[Any]) -> Optional[Extras]:
        """Return what travels with an order of these steps: `extras`, and what hosts lack."""
        if extras is not None:
            for key in extras.forget_arrays:
                self._forget(key)
        mirrors: List[NewMirror] = []
        shipments: List[Shipment] = []
        # Acts are prepared when they come, also those of a later order.
        for new in () if extras is None else extras.acts.values():
            for ref in refs_of(new):
                self._require_mirror(ref, mirrors)
        for step in steps:
            act = self._acts.get(step.number)
            if isinstance(act, Prefetch) and act.call:
                act = self._acts.get(act.call)
            if not isinstance(act, (Call, Collective, Distribute)):
                continue
            refs = refs_of(act)
            for ref in refs:
                self._require_mirror(ref, mirrors)
            if not refs:
                continue
            for node, ranks in self._ranks.items():
                for ref, wanted in self._wanted(act, step.origin, ranks):
                    shipments.extend(self._lacking(node, ref, wanted))
        if not mirrors and not shipments:
            self.sent()
            return extras
        known = extras or Extras({})
        merged = _merged(shipments, len(self._ranks))
        return replace(known, mirrors=tuple(mirrors), shipments=merged)

    def sent(self) -> None:
        """After an order: all that it brought has arrived, also if it is undone now."""
        self._made.clear()
        self._sent.clear()

    def failed(self) -> None:
        """After an order failed: it is not known what has arrived of what it brought.

        Acts that ranks know already keep the copies that they know. Those of new acts are made
        anew.
        """
        for key in self._made:
            self._forget(key)
        for key in self._sent:
            self._forget_rows(key)
        self.sent()

    def close(self) -> None:
        """Forget everything."""
        for key in tuple(self._mirrored):
            self._forget(key)

    def _forget(self, key: int) -> None:
        self._mirrored.pop(key, None)
        self._forget_rows(key)
        self._again.pop(key, None)

    def _forget_rows(self, key: int) -> None:
        presence, data = self._presence.pop(key, None), self._store.get(key)
        if presence is not None and data is not None:
            data.untrack(presence)

    def _require_mirror(self, ref: ArrayRef, mirrors: List[NewMirror]) -> None:
        segment = ref.handle.name, ref.handle.nonce
        if self._mirrored.get(ref.key) == segment:
            return
        self._forget(ref.key)
        self._mirrored[ref.key] = segment
        self._made.add(ref.key)
        mirrors.append(NewMirror(ref.key, self._memory_of(ref.key).nbytes))

    def _wanted(
        self, act: Any, origin: int, ranks: Sequence[int]
    ) -> Iterator[Tuple[ArrayRef, Wanted]]:
        """Yield arrays, each with rows that these ranks read of it."""
        if isinstance(act, Distribute):
            yield act.payload, None
        elif isinstance(act, Collective):
            yield from self._wanted_by_collective(act, origin, ranks)
        else:
            for ref in act.broadcast:
                yield ref, None
            for selector in act.selectors:
                yield selector.array, None
            for item in act.scattered:
                if act.rows is None or item.axis:
                    yield item.array, None  # rows along another axis lie in pieces
                    if act.rows is not None and act.rows.index is not None:
                        yield act.rows.index, None
                    continue
                for rank in ranks:
                    bounds = act.rows.bounds[rank]
                    if item.selected:
                        yield item.array, bounds
                    else:
                        offset = origin if item.minibatch else 0
                        yield from self._selected(item.array, act.rows, bounds, origin, offset)

    def _wanted_by_collective(
        self, act: Collective, origin: int, ranks: Sequence[int]
    ) -> Iterator[Tuple[ArrayRef, Wanted]]:
        arguments = act.arguments
        refs = arguments.get("values") or ()
        origin = arguments.get("origin", origin)
        rows = arguments.get("rows")
        only = arguments.get("rank")
        for i, ref in enumerate(refs):
            own = rows[i] if isinstance(rows, (list, tuple)) else rows
            for rank in ranks:
                if only is not None and rank != only:
                    continue
                if own is None:
                    yield ref, None
                else:
                    bounds = own.bounds[rank if only is None else 0]
                    yield from self._selected(ref, own, bounds, origin, 0)

    def _selected(
        self, ref: ArrayRef, rows: Rows, bounds: Bounds, origin: int, offset: int
    ) -> Iterator[Tuple[ArrayRef, Wanted]]:
        start, stop = bounds
        if start == stop:
            return
        if rows.index is not None:
            yield rows.index, bounds
            yield ref, self._arrays.get(rows.index)[start:stop]
            return
        span = rows.span(start, stop, origin, offset)
        if rows.step == 1:
            yield ref, (span.start, span.start + stop - start)
        else:
            yield ref, span.start + rows.step * np.arange(stop - start)

    def _lacking(self, node: int, ref: ArrayRef, wanted: Wanted) -> List[Shipment]:
        """Return the shipments of those rows that a host does not have as they are now."""
        shape = ref.handle.shape
        length = shape[0] if shape else 1
        data = self._store.find(ref.key)
        row_nbytes = data.dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        if wanted is None:
            wanted = 0, length
        if not row_nbytes or not length:
            return []
        # First: an interrupt in between leaves no row that counts as present.
        self._sent.add(ref.key)
        if data.is_exposed:
            self._forget_rows(ref.key)
            rows: Any = np.unique(wanted) if isinstance(wanted, np.ndarray) else wanted
        else:
            identity = ref.handle.name, ref.handle.nonce, row_nbytes
            presence = self._presence.get(ref.key)
            if presence is None or presence.identity != identity:
                self._forget_rows(ref.key)
                presence = self._presence[ref.key] = data.track(Presence(identity))
            present = presence.of(node, length)
            rows = _absent(present, wanted)
            present[slice(*rows) if isinstance(rows, tuple) else rows] = True
        count = rows[1] - rows[0] if isinstance(rows, tuple) else len(rows)
        if not count:
            return []
        nbytes = count * row_nbytes
        if data.is_exposed and not self._store.is_room(data):
            self._remind(data, nbytes)
        if nbytes > INLINE_NBYTES:
            return [Shipment(node, ref.key, row_nbytes, rows)]
        matrix: np.ndarray = np.ndarray((length, row_nbytes), np.uint8, data.memory)
        content = matrix[slice(*rows) if isinstance(rows, tuple) else rows]
        return [Shipment(node, ref.key, row_nbytes, rows, content.tobytes())]

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
    if isinstance(act, Collective):
        found = list(act.arguments.get("values") or ())
        rows = act.arguments.get("rows")
        for one in rows if isinstance(rows, (list, tuple)) else (rows,):
            if isinstance(one, Rows) and one.index is not None:
                found.append(one.index)
        return found
    return []


def _merged(shipments: Sequence[Shipment], nodes: int) -> Tuple[Shipment, ...]:
    """Return shipments, one in place of those that bring the same rows to each of `nodes` hosts."""
    alike: Dict[Any, Dict[int, Shipment]] = {}
    for one in shipments:
        rows = one.rows.tobytes() if isinstance(one.rows, np.ndarray) else one.rows
        # Several acts may want the same: it travels once.
        alike.setdefault((one.key, one.row_nbytes, rows), {})[one.node] = one
    found: List[Shipment] = []
    for by_node in alike.values():
        several = list(by_node.values())
        # Also to a single host: MPI's broadcast puts the rows where they belong, without copies.
        if nodes == len(several):
            found.append(several[0]._replace(node=EVERY_NODE))
        else:
            found += several
    return tuple(found)


def _absent(present: np.ndarray, wanted: Union[Bounds, np.ndarray]) -> Union[Bounds, np.ndarray]:
    """Return the wanted rows that are not present, each once: a range if they are one."""
    if isinstance(wanted, np.ndarray):
        return np.unique(wanted[~present[wanted]])
    start, stop = wanted
    absent = ~present[start:stop]
    count = int(np.count_nonzero(absent))
    if not count:
        return start, start
    first, last = int(absent.argmax()), len(absent) - int(absent[::-1].argmax())
    if last - first == count:
        return start + first, start + last
    return np.flatnonzero(absent) + start
