"""Movement of device arrays: broadcast, gather, all_gather, scatter, all_to_all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synk_comm._backends.nccl.arrays import DeviceArray, maker
from synk_comm._core.calls import ON_DEVICES, CollectiveCall, Kind, received

from . import terms
from .base import NcclBase
from .terms import UINT8

_Calls = list[tuple[Any, ...]]


class NcclMoves(NcclBase):
    """Movement between all ranks, on devices."""

    def _broadcast(self, x: Any, out: None, deadline: float, root: int) -> Any:  # noqa: ARG002
        root = self._steps.check_rank(root, "root")
        arrays = self._several(x, "x", written=self.rank != root)
        stream = self._stream_for(arrays)
        many = isinstance(x, (list, tuple))
        kinds = tuple(array.kind for array in arrays)
        call = CollectiveCall("broadcast" + ON_DEVICES, root=root, arrays=kinds, many=many)
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

    def _gather(self, x: Any, out: Any, deadline: float, root: int) -> Any:
        return self._collect("gather", x, self._steps.check_rank(root, "root"), out, deadline)

    def _all_gather(self, x: Any, out: Any, deadline: float) -> Any:
        return self._collect("all_gather", x, None, out, deadline)

    def _collect(self, kind: str, x: Any, root: int | None, out: Any, deadline: float) -> Any:
        many = isinstance(x, (list, tuple))
        given = [] if x is None else self._several(x, "x")
        receives = root is None or root == self.rank
        places: list[DeviceArray | None] | None = None
        if receives and out is not None:
            if many:
                raise ValueError(f"{kind} takes either a list for x, or out")
            places = self._places(out)
            mine = given[0] if given else None
            terms.check_apart(
                [mine if rank == self.rank else None for rank in range(self.size)], places
            )
        if receives and out is None:
            maker(given[0].owner)  # an error now, not when the others rely on this rank
        stream = self._stream_for([*given, *(place for place in places or () if place)])
        outs = () if places is None else tuple(place and place.kind for place in places)
        call = CollectiveCall(
            kind + ON_DEVICES,
            "",
            -1 if root is None else root,
            tuple(array.kind for array in given),
            outs,
            0.0 if x is None else 1.0,
            many,
            "" if places is None or terms.is_block(places) else "apart",
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
        """Resolve what is to receive from each rank; None where nothing comes."""
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
        """Make what receives from each rank: rows of one array, if all are alike."""
        first = kinds[0]
        if first is not None and all(kind == first for kind in kinds):
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

    def _scatter(self, xs: Any, out: Any, deadline: float, root: int) -> Any:
        root = self._steps.check_rank(root, "root")
        self._steps.check_only_root("scatter", xs, root)
        if self.rank == root and xs is None:
            raise ValueError(f"the root of scatter gives a list of {self.size}, got None")
        given = [] if xs is None else self._per_rank(xs, "xs")
        _check_one_dtype(given, "scatter")
        target = None
        if out is None:
            maker(given[0].owner)
        else:
            target = self._one(out, "out", written=True)
            ranks = range(self.size)
            terms.check_apart(given, [target if rank == self.rank else None for rank in ranks])
        stream = self._stream_for([*given, *([target] if target else [])])
        kinds = tuple(array.kind for array in given)
        outs = (target.kind,) if target else ()
        call = CollectiveCall("scatter" + ON_DEVICES, "", root, kinds, outs)
        with self._device_guard:
            origin = self._host.agree(call, deadline)[root]
            dtype, shape = origin.arrays[self.rank]
            if target is None:
                out, target = self._made(given[0].owner, shape, dtype)
            sends = list(enumerate(given))
            self._link.run(self._exchange(sends, [(root, target)], stream), stream, deadline)
        return out

    def _all_to_all(self, xs: Any, out: Any, deadline: float) -> Any:
        given = self._per_rank(xs, "xs")
        _check_one_dtype(given, "all_to_all")
        places = None
        if out is None:
            maker(given[0].owner)
        else:
            places = self._places(out)
            terms.check_apart(given, places, in_place=False)
        stream = self._stream_for([*given, *(place for place in places or () if place)])
        outs = () if places is None else tuple(place and place.kind for place in places)
        kinds = tuple(array.kind for array in given)
        call = CollectiveCall("all_to_all" + ON_DEVICES, "", -1, kinds, outs)
        with self._device_guard:
            calls = self._host.agree(call, deadline)
            values = out
            if places is None:
                comes = received(calls, self.rank)
                values, places = self._rows_for(comes, given[0].owner)
            sends = list(enumerate(given))
            moves = self._exchange(sends, list(enumerate(places)), stream)
            self._link.run(moves, stream, deadline)
        return [values[rank] for rank in range(self.size)]


def _check_one_dtype(arrays: Sequence[DeviceArray], kind: str) -> None:
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) > 1:
        raise TypeError(f"{kind} needs arrays of one dtype, got {', '.join(sorted(dtypes))}")
