"""Movement of device arrays: broadcast, gather, all_gather, scatter, all_to_all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synk_comm._backends.nccl.arrays import DeviceArray, maker
from synk_comm._core.calls import ON_DEVICES, CollectiveCall, Kind, received
from synk_comm._core.table import Arguments, CollectiveRow

from . import terms
from .base import NcclBase
from .terms import UINT8

_Calls = list[tuple[Any, ...]]


class NcclMoves(NcclBase):
    """Movement between all ranks, on devices."""

    def _broadcast(self, row: CollectiveRow, asked: Arguments, deadline: float) -> Any:
        x, root = asked.x, self._steps.check_rank(asked.root)
        arrays = self._several(x, "x", written=self.rank != root)
        stream = self._stream_for(arrays)
        call = _call_of(row, root, arrays, many=isinstance(x, (list, tuple)))
        with self._device_guard:
            self._host.agree(call, deadline)
            calls = [self._from(root, array.pointer, array, stream) for array in arrays]
            self._link.run([call for call in calls if call], stream, deadline)
        return x

    def _from(
        self, root: int, source: int, target: DeviceArray, stream: int
    ) -> tuple[Any, ...] | None:
        """Return the NCCL call that brings the root's bytes to all ranks."""
        if not target.nbytes:
            return None
        start = (source, target.pointer, target.nbytes, UINT8, root)
        return (self._link.binding.broadcast, *start, self._link.handle, stream)

    def _collect(self, row: CollectiveRow, asked: Arguments, deadline: float) -> Any:
        x, out = asked.x, asked.out
        root = self._steps.check_rank(asked.root) if row.root == "receives" else None
        many = isinstance(x, (list, tuple))
        given = [] if x is None else self._several(x, "x")
        receives = root is None or root == self.rank
        places: list[DeviceArray | None] | None = None
        if receives and out is not None:
            if many:
                raise ValueError(f"{row.name} takes either a list for x, or out")
            places = self._places(out)
            terms.check_apart(self._beside(given[0] if given else None), places)
        if receives and out is None:
            maker(given[0].owner)  # an error now, not when the others rely on this rank
        stream = self._stream_for([*given, *(place for place in places or () if place)])
        call = _call_of(row, -1 if root is None else root, given, places, many=many)._replace(
            weight=0.0 if x is None else 1.0,
            place="" if places is None or terms.is_block(places) else "apart",
        )
        with self._device_guard:
            calls = self._host.agree(call, deadline)
            length = next(len(call.arrays) for call in calls if call.weight)
            nccl: _Calls = []
            results = []
            for number in range(length):
                kinds = [call.arrays[number] if call.weight else None for call in calls]
                source = given[number] if given else None
                values, targets = out, places
                if receives and targets is None:
                    values, targets = self._rows_for(kinds, given[number].owner if given else out)
                # All ranks must come to the same choice here.
                alike = all(kind == kinds[0] and not c.place for kind, c in zip(kinds, calls))
                nccl += self._moves(root, kinds, source, targets, stream, alike)
                results.append(values)
            self._link.run(nccl, stream, deadline)
            many = next(call.many for call in calls if call.weight)
        if not receives:
            return None
        if places is not None:
            return [out[r] if c.weight else None for r, c in enumerate(calls)]
        return results if many else results[0]

    def _places(self, out: Any) -> list[DeviceArray | None]:
        """Resolve the arrays that receive, by sender; None for ranks that send nothing."""
        if not isinstance(out, (list, tuple)):
            return list(self._per_rank(out, "out", written=True))
        if len(out) != self.size:
            raise ValueError(f"out must be a list of {self.size} arrays, got {len(out)}")
        return [
            None if array is None else self._one(array, f"out[{rank}]", written=True)
            for rank, array in enumerate(out)
        ]

    def _rows_for(
        self, kinds: Sequence[Kind | None], like: Any
    ) -> tuple[list[Any], list[DeviceArray | None]]:
        """Make the arrays that receive, by sender: rows of one array, if all are alike."""
        first = kinds[0]
        if len(kinds) > 1 and first is not None and all(kind == first for kind in kinds):
            dtype, shape = first
            block, where = self._made(like, (len(kinds), *shape), dtype)
            return [block[rank] for rank in range(len(kinds))], list(where.rows())
        values: list[Any] = [None] * len(kinds)
        targets: list[DeviceArray | None] = [None] * len(kinds)
        for rank, kind in enumerate(kinds):
            if kind is not None:
                values[rank], targets[rank] = self._made(like, kind[1], kind[0])
        return values, targets

    def _moves(
        self,
        root: int | None,
        kinds: Sequence[Kind | None],
        source: DeviceArray | None,
        targets: Sequence[DeviceArray | None] | None,
        stream: int,
        alike: bool,
    ) -> _Calls:
        """Return the NCCL calls that bring each rank's array to the root, or to all."""
        link = self._link
        if root is not None:
            sends = [] if source is None else [(root, source)]
            return self._exchange(sends, list(enumerate(targets or ())), stream)
        assert targets is not None  # noqa: S101 - every rank is a receiver
        first = targets[0]
        if alike and source is not None and first is not None:
            if not source.nbytes:
                return []
            start = (source.pointer, first.pointer, source.nbytes, UINT8)
            return [(link.binding.all_gather, *start, link.handle, stream)]
        calls = []
        for rank, (kind, target) in enumerate(zip(kinds, targets)):
            if kind is None or target is None:
                continue
            origin = source.pointer if rank == self.rank and source else target.pointer
            calls.append(self._from(rank, origin, target, stream))
        return [call for call in calls if call]

    def _exchange(
        self,
        sends: Sequence[tuple[int, DeviceArray]],
        receives: Sequence[tuple[int, DeviceArray | None]],
        stream: int,
    ) -> _Calls:
        """Return the NCCL calls that send arrays to ranks and receive from them, all at once."""
        link = self._link
        calls: _Calls = []
        for function, arrays in ((link.binding.send, sends), (link.binding.recv, receives)):
            for rank, array in arrays:
                if array is not None and array.nbytes:
                    start = (array.pointer, array.nbytes, UINT8, rank)
                    calls.append((function, *start, link.handle, stream))
        return calls

    def _beside(self, array: DeviceArray | None) -> list[DeviceArray | None]:
        """Return an array at this rank's place in a list of all ranks' arrays."""
        return [array if rank == self.rank else None for rank in range(self.size)]

    def _deal(self, row: CollectiveRow, asked: Arguments, deadline: float) -> Any:
        xs, out, root, senders = asked.x, asked.out, -1, list(range(self.size))
        alone = row.root == "sends"
        if alone:
            root = self._steps.check_rank(asked.root)
            senders = [root]
            self._steps.check_only_root(row.name, xs, root)
        if self.rank in senders and xs is None:
            raise ValueError(f"{row.name} takes a list of {self.size} here, got None")
        given = [] if xs is None else self._per_rank(xs, "xs")
        if len({array.dtype for array in given}) > 1:
            dtypes = ", ".join(sorted({array.dtype for array in given}))
            raise TypeError(f"{row.name} needs arrays of one dtype, got {dtypes}")
        places: list[DeviceArray | None] | None = None
        if out is None:
            maker(given[0].owner)  # an error now, not when the others rely on this rank
        elif alone:
            places = [self._one(out, "out", written=True)]
            terms.check_apart(given, self._beside(places[0]))
        else:
            places = self._places(out)
            terms.check_apart(given, places, in_place=False)
        stream = self._stream_for([*given, *(place for place in places or () if place)])
        call = _call_of(row, root, given, places)
        with self._device_guard:
            calls = self._host.agree(call, deadline)
            values = [out] if alone else out
            if places is None:
                kinds = received(calls, self.rank)
                values, places = self._rows_for(kinds, given[0].owner)
            moves = self._exchange(list(enumerate(given)), list(zip(senders, places)), stream)
            self._link.run(moves, stream, deadline)
        return values[0] if alone else [values[rank] for rank in range(self.size)]


def _call_of(
    row: CollectiveRow,
    root: int,
    given: Sequence[DeviceArray],
    places: Sequence[DeviceArray | None] | None = None,
    *,
    many: bool = False,
) -> CollectiveCall:
    """Return the call for the other ranks."""
    kinds = tuple(array.kind for array in given)
    outs = () if places is None else tuple(place and place.kind for place in places)
    return CollectiveCall(row.name + ON_DEVICES, "", root, kinds, outs, many=many)
