"""Flat bytes by MPI's own collectives, without slots; and the reductions that are MPI's.

MPI chooses the way, which differs between networks and numbers of ranks, and with it the order in
which operands are combined. All ranks get the same bits.

Only reductions whose results are NumPy's are left to MPI: not the smallest and largest floats
(NaN), nor float16, complex products, foreign byte orders, and what has weights; nor integers of one
or two bytes, whose sums do not wrap around in Open MPI 5 on processors with AVX. These, and short
arrays, are moved by MPI and combined here, in rank order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from synk_comm._core.bulk import AgreedReduction, Bulk, Stretch
from synk_comm._core.ops import Array, ReduceOp
from synk_comm._core.packing import address
from synk_comm._core.reductions import is_direct

_LONGEST = 1 << 30
"""Bytes of one collective: an MPI before 4.0 counts in 32 bits."""
_BLOCK_BYTES = 1 << 20
"""Bytes of each rank that are combined at a time."""
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

Do = Callable[[Callable[[], Any], float], None]
"""``do(begin, deadline)`` begins a collective of MPI and finishes it."""


class MpiBulk(Bulk):
    """The collectives of one rank. All ranks call the same, at the same time.

    Args:
        mpi, comm: the module of mpi4py, and the communicator.
        ordered_bytes: longest array that is reduced in rank order, whatever MPI could do.
    """

    def __init__(self, mpi: Any, comm: Any, do: Do, ordered_bytes: int) -> None:
        self._mpi = mpi
        self._comm = comm
        self._byte = mpi.BYTE
        self._size, self._rank = comm.Get_size(), comm.Get_rank()
        self._do = do
        self._ordered_bytes = ordered_bytes
        self._memory: Array = np.empty(0, np.uint8)

    def _room(self, counts: Sequence[int]) -> tuple[Array, list[int]]:
        """Return memory for stretches of these lengths, used again by the next call, and where each
        begins: at a multiple of 64."""
        starts = [0, *np.cumsum([-(-n // 64) * 64 for n in counts]).tolist()]
        if self._memory.nbytes < starts[-1]:
            self._memory = np.empty(starts[-1], np.uint8)
        return self._memory[: starts[-1]], starts[:-1]

    def spread(self, root: int, data: Array, deadline: float) -> None:
        for start in range(0, data.nbytes, _LONGEST):
            part = data[start : start + _LONGEST]
            self._do(lambda: self._comm.Ibcast([part, self._byte], root), deadline)  # noqa: B023

    def collect(
        self, root: int | None, source: Array | None, counts: Sequence[int], deadline: float
    ) -> list[Array]:
        own = [np.empty(0, np.uint8) if source is None else source, self._byte]
        if root not in (None, self._rank):
            self._do(lambda: self._comm.Igatherv(own, None, root), deadline)
            return []
        room, starts = self._room(counts)
        target = [room, (counts, starts), self._byte]
        if root is None:
            self._do(lambda: self._comm.Iallgatherv(own, target), deadline)
        else:
            self._do(lambda: self._comm.Igatherv(own, target, root), deadline)
        return [room[p : p + n] for p, n in zip(starts, counts)]

    def deal(
        self, sources: Sequence[Array] | None, counts: Sequence[int], deadline: float
    ) -> list[Array]:
        if sources is None:
            sources = [np.empty(0, np.uint8)] * self._size
        lengths = [source.nbytes for source in sources]
        begins = [0, *np.cumsum(lengths[:-1]).tolist()]
        room, starts = self._room(counts)
        sent = [np.concatenate(sources), (lengths, begins), self._byte]
        received = [room, (counts, starts), self._byte]
        self._do(lambda: self._comm.Ialltoallv(sent, received), deadline)
        return [room[p : p + n] for p, n in zip(starts, counts)]

    def _kind(self, dtype: np.dtype[Any]) -> Any:
        """Return MPI's type for a dtype; None if it has none."""
        return getattr(self._mpi, _TYPES.get(f"{dtype.kind}{dtype.itemsize}", ""), None)

    def reduce(self, plan: AgreedReduction, stretch: Stretch, deadline: float) -> Exception | None:
        is_known = plan.op in _OPS.get(stretch.dtype.kind, ()) and stretch.dtype.isnative
        is_whole = plan.factors is None and len(plan.ranks) == self._size > 1
        if is_known and is_whole and stretch.nbytes > self._ordered_bytes:
            kind = self._kind(stretch.dtype)
            if kind is not None:
                self._reduce_natively(plan, stretch, kind, deadline)
                return None
        block = _BLOCK_BYTES * (1 if is_direct(stretch.nbytes, self._size) else self._size)
        accident = None
        for start in range(0, stretch.nbytes, block):
            source, target = (
                None if whole is None else whole[start : start + block]
                for whole in (stretch.source, stretch.target)
            )
            nbytes = min(block, stretch.nbytes - start)
            part = Stretch(stretch.dtype, nbytes, source, target)
            accident = self._reduce_in_order(plan, part, deadline) or accident
        return accident

    def _reduce_in_order(
        self, plan: AgreedReduction, stretch: Stretch, deadline: float
    ) -> Exception | None:
        """Combine in rank order: all of it on each receiver, or a share on each rank."""
        dtype, nbytes, source, target = stretch
        ranks = range(self._size)
        if is_direct(nbytes, self._size):
            counts = [nbytes if rank in plan.ranks else 0 for rank in ranks]
            operands = self.collect(plan.root, source, counts, deadline)
            return None if target is None else _combined(plan, operands, dtype, target)
        share = -(-nbytes // self._size // 64) * 64
        cuts = [slice(min(r * share, nbytes), min((r + 1) * share, nbytes)) for r in ranks]
        lengths = [cut.stop - cut.start for cut in cuts]
        own = lengths[self._rank]
        sources = None if source is None else [source[cut] for cut in cuts]
        counts = [own if rank in plan.ranks else 0 for rank in ranks]
        operands = self.deal(sources, counts, deadline)
        result = np.empty(own, np.uint8)
        accident = _combined(plan, operands, dtype, result) if own else None
        results = self.collect(plan.root, result, lengths, deadline)
        if target is not None:
            for cut, text in zip(cuts, results):
                target[cut] = text
        return accident

    def _reduce_natively(
        self, plan: AgreedReduction, stretch: Stretch, kind: Any, deadline: float
    ) -> None:
        dtype, nbytes, source, target = stretch
        assert source is not None  # noqa: S101 - all ranks contribute
        if target is not None and address(target) % dtype.alignment:
            room = np.empty(nbytes, np.uint8)
            self._reduce_natively(plan, Stretch(dtype, nbytes, source, room), kind, deadline)
            np.copyto(target, room)
            return
        if address(source) % dtype.alignment:
            source = source.copy()
        op = getattr(self._mpi, _OPS[dtype.kind][plan.op])
        in_place = target is not None and address(source) == address(target)
        for start in range(0, nbytes, _LONGEST):
            stop = min(start + _LONGEST, nbytes)
            own: Any = self._mpi.IN_PLACE if in_place else [source[start:stop], kind]
            total = None if target is None else [target[start:stop], kind]
            if plan.root is None:
                begin = lambda: self._comm.Iallreduce(own, total, op)  # noqa: B023, E731
            else:
                begin = lambda: self._comm.Ireduce(own, total, op, plan.root)  # noqa: B023, E731
            self._do(begin, deadline)
        if target is not None and plan.op is ReduceOp.AVG:
            sums = target.view(dtype)
            np.divide(sums, float(self._size), out=sums)


def _combined(
    plan: AgreedReduction, operands: Sequence[Array], dtype: np.dtype[Any], out: Array
) -> Exception | None:
    """Combine the operands of those ranks that contribute."""
    return plan.combine([operands[rank].view(dtype) for rank in plan.ranks], out.view(dtype))
