"""Flat bytes by MPI's own collectives, without slots; and the reductions that are MPI's.

MPI chooses the way, which differs between networks and numbers of ranks, and with it the order in
which operands are combined. All ranks get the same bits.

Only reductions whose results are NumPy's are left to MPI: not the smallest and largest floats
(NaN), nor float16, complex products, foreign byte orders, and what has weights; nor integers of one
or two bytes, whose sums do not wrap around in Open MPI 5 on processors with AVX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from synk_comm._core.bulk import AgreedReduction, Bulk, Stretch
from synk_comm._core.ops import Array, ReduceOp
from synk_comm._core.packing import address

_LONGEST = 1 << 30
"""Bytes of one collective: an MPI before 4.0 counts in 32 bits."""
_TYPES = {
    "i4": "INT32_T",
    "i8": "INT64_T",
    "u4": "UINT32_T",
    "u8": "UINT64_T",
    "f4": "FLOAT",
    "f8": "DOUBLE",
    "c8": "C_FLOAT_COMPLEX",
    "c16": "C_DOUBLE_COMPLEX",
}
"""MPI's names of dtypes."""
_INTEGERS = {ReduceOp.SUM: "SUM", ReduceOp.PROD: "PROD", ReduceOp.MIN: "MIN", ReduceOp.MAX: "MAX"}
_OPS = {
    "i": _INTEGERS,
    "u": _INTEGERS,
    "f": {ReduceOp.SUM: "SUM", ReduceOp.AVG: "SUM", ReduceOp.PROD: "PROD"},
    "c": {ReduceOp.SUM: "SUM", ReduceOp.AVG: "SUM"},
}
"""MPI's names of reductions, by the dtype's kind."""

Do = Callable[[Callable[[], Any], float, Sequence[Any]], None]
"""``do(begin, deadline, buffers)`` begins a collective of MPI and finishes it."""


class MpiBulk(Bulk):
    """The collectives of one rank. All ranks call the same, at the same time.

    Args:
        mpi, comm: the module of mpi4py, and the communicator.
    """

    def __init__(self, mpi: Any, comm: Any, do: Do) -> None:
        self._mpi = mpi
        self._comm = comm
        self._byte = mpi.BYTE
        self._size, self._rank = comm.Get_size(), comm.Get_rank()
        self._do = do
        self._memory: Array = np.empty(0, np.uint8)

    def room(self, nbytes: int) -> Array:
        """Return memory that is used again by the next call."""
        if self._memory.nbytes < nbytes:
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory[:nbytes]

    def spread(self, root: int, data: Array, deadline: float) -> None:
        for start in range(0, data.nbytes, _LONGEST):
            part = data[start : start + _LONGEST]
            self._do(lambda: self._comm.Ibcast([part, self._byte], root), deadline, (part,))  # noqa: B023

    def collect(
        self,
        root: int | None,
        source: Array | None,
        counts: Sequence[int],
        deadline: float,
        room: Array | None = None,
    ) -> list[Array]:
        """Collect all ranks' bytes; see ``Bulk``.

        Args:
            room: memory of ``padded(counts)`` bytes for them; None for that of this object.
        """
        own = np.empty(0, np.uint8) if source is None else source
        places = places_of(counts)
        receives = root in (None, self._rank)
        if receives and room is None:
            room = self.room(padded(counts))
        target = [room, (counts, places), self._byte] if receives else None
        if root is None:
            begin = lambda: self._comm.Iallgatherv([own, self._byte], target)  # noqa: E731
        else:
            begin = lambda: self._comm.Igatherv([own, self._byte], target, root)  # noqa: E731
        self._do(begin, deadline, (own, room))
        if room is None or not receives:
            return []
        return [room[p : p + n] for p, n in zip(places, counts)]

    def deal(
        self, sources: Sequence[Array] | None, counts: Sequence[int], deadline: float
    ) -> list[Array]:
        lengths = [0] * self._size if sources is None else [source.nbytes for source in sources]
        joined = np.empty(0, np.uint8) if sources is None else np.concatenate(sources)
        starts = [0, *np.cumsum(lengths[:-1]).tolist()]
        return self.exchange(joined, lengths, starts, counts, self.room(padded(counts)), deadline)

    def exchange(
        self,
        source: Array,
        lengths: Sequence[int],
        starts: Sequence[int],
        counts: Sequence[int],
        room: Array,
        deadline: float,
    ) -> list[Array]:
        """Send each rank its stretch of ``source``; return what each rank has sent."""
        places = places_of(counts)
        sent = [source, (lengths, starts), self._byte]
        received = [room, (counts, places), self._byte]
        self._do(lambda: self._comm.Ialltoallv(sent, received), deadline, (source, room))
        return [room[p : p + n] for p, n in zip(places, counts)]

    def can_reduce(self, plan: AgreedReduction, dtype: np.dtype[Any]) -> bool:
        return (
            plan.factors is None
            and len(plan.ranks) == self._size > 1
            and dtype.isnative
            and self._kind(dtype) is not None
            and plan.op in _OPS.get(dtype.kind, ())
        )

    def _kind(self, dtype: np.dtype[Any]) -> Any:
        """Return MPI's type for a dtype; None if it has none."""
        return getattr(self._mpi, _TYPES.get(f"{dtype.kind}{dtype.itemsize}", ""), None)

    def reduce(self, plan: AgreedReduction, stretch: Stretch, deadline: float) -> None:
        dtype, nbytes, source, target = stretch
        assert source is not None  # noqa: S101 - all ranks contribute
        if target is not None and address(target) % dtype.alignment:
            room = np.empty(nbytes, np.uint8)
            self.reduce(plan, Stretch(dtype, nbytes, source, room), deadline)
            np.copyto(target, room)
            return
        if address(source) % dtype.alignment:
            source = source.copy()
        kind, op = self._kind(dtype), getattr(self._mpi, _OPS[dtype.kind][plan.op])
        in_place = target is not None and address(source) == address(target)
        for start in range(0, nbytes, _LONGEST):
            stop = min(start + _LONGEST, nbytes)
            own: Any = [source[start:stop], kind]
            total = None if target is None else [target[start:stop], kind]
            if in_place:
                own = self._mpi.IN_PLACE
            if plan.root is None:
                begin = lambda: self._comm.Iallreduce(own, total, op)  # noqa: B023, E731
            else:
                begin = lambda: self._comm.Ireduce(own, total, op, plan.root)  # noqa: B023, E731
            self._do(begin, deadline, (source, target))
        if target is not None and plan.op is ReduceOp.AVG:
            sums = target.view(dtype)
            np.divide(sums, float(self._size), out=sums)


def places_of(counts: Sequence[int]) -> list[int]:
    """Return where stretches of these lengths begin, each at a multiple of 64."""
    return [0, *np.cumsum([-(-n // 64) * 64 for n in counts[:-1]]).tolist()]


def padded(counts: Sequence[int]) -> int:
    """Return the length of memory for stretches of these lengths."""
    return sum(-(-n // 64) * 64 for n in counts)
