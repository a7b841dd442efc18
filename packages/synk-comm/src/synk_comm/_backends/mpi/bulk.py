"""Move and reduce flat bytes by MPI's own collectives, without slots.

MPI chooses the order of the operands, but all ranks get the same bits. It reduces only where its
results are NumPy's; other arrays, and short ones, it moves, and they are combined here by rank.
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
_REDUCED = {"i": "sum prod min max", "u": "sum prod min max", "f": "sum avg prod", "c": "sum avg"}
"""Reductions that are left to MPI, by the dtype's kind: its smallest and largest floats ignore
NaN, and its complex products are not NumPy's."""
_DTYPES = ("i4", "i8", "u4", "u8", "f4", "f8", "c8", "c16")
"""Not float16, which MPI lacks, nor short integers, whose sums do not wrap around in Open MPI 5 on
processors with AVX."""

Do = Callable[[Callable[[], Any], float], None]
"""``do(begin, deadline)`` begins a collective of MPI and finishes it."""


class MpiBulk(Bulk):
    """The collectives of one rank. All ranks call the same, at the same time."""

    def __init__(self, mpi: Any, comm: Any, do: Do, ordered_bytes: int) -> None:
        self._mpi = mpi
        self._comm = comm
        self._size, self._rank = comm.Get_size(), comm.Get_rank()
        self._do = do
        self._ordered_bytes = ordered_bytes  # longer arrays MPI may reduce in another order
        self._memory: Array = np.empty(0, np.uint8)

    def _room(self, counts: Sequence[int]) -> tuple[Array, list[int]]:
        """Return memory, which the next call uses again, and a multiple of 64 for each length."""
        starts = [0, *np.cumsum([-(-n // 64) * 64 for n in counts]).tolist()]
        if self._memory.nbytes < starts[-1]:
            self._memory = np.empty(starts[-1], np.uint8)
        return self._memory[: starts[-1]], starts[:-1]

    def spread(self, root: int, data: Array, deadline: float) -> None:
        for start in range(0, data.nbytes, _LONGEST):
            part = data[start : start + _LONGEST]
            self._do(lambda: self._comm.Ibcast(part, root), deadline)  # noqa: B023

    def collect(
        self, root: int | None, source: Array | None, counts: Sequence[int], deadline: float
    ) -> list[Array]:
        own = np.empty(0, np.uint8) if source is None else source
        if root not in (None, self._rank):
            self._do(lambda: self._comm.Igatherv(own, None, root), deadline)
            return []
        room, starts = self._room(counts)
        if root is None:
            self._do(lambda: self._comm.Iallgatherv(own, [room, (counts, starts)]), deadline)
        else:
            self._do(lambda: self._comm.Igatherv(own, [room, (counts, starts)], root), deadline)
        return [room[p : p + n] for p, n in zip(starts, counts)]

    def deal(
        self, sources: Sequence[Array] | None, counts: Sequence[int], deadline: float
    ) -> list[Array]:
        if sources is None:
            sources = [np.empty(0, np.uint8)] * self._size
        room, starts = self._room(counts)
        sent = [np.concatenate(sources), [source.nbytes for source in sources]]
        received = [room, (counts, starts)]
        self._do(lambda: self._comm.Ialltoallv(sent, received), deadline)
        return [room[p : p + n] for p, n in zip(starts, counts)]

    def reduce(self, plan: AgreedReduction, stretch: Stretch, deadline: float) -> Exception | None:
        dtype, nbytes, source, target = stretch
        is_known = f"{dtype.kind}{dtype.itemsize}" in _DTYPES and dtype.isnative
        is_mpis = is_known and plan.op in _REDUCED[dtype.kind].split()
        is_whole = plan.factors is None and len(plan.ranks) == self._size > 1
        if is_mpis and is_whole and nbytes > self._ordered_bytes:
            self._reduce_natively(plan, stretch, deadline)
            return None
        block = _BLOCK_BYTES * (1 if is_direct(nbytes, self._size) else self._size)
        accident = None
        for start in range(0, nbytes, block):
            cut = slice(start, min(start + block, nbytes))
            given, made = (None if whole is None else whole[cut] for whole in (source, target))
            part = Stretch(dtype, cut.stop - start, given, made)
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

    def _reduce_natively(self, plan: AgreedReduction, stretch: Stretch, deadline: float) -> None:
        dtype, nbytes, source, target = stretch
        assert source is not None  # noqa: S101 - all ranks contribute
        if target is not None and address(target) % dtype.alignment:
            room = np.empty(nbytes, np.uint8)
            self._reduce_natively(plan, Stretch(dtype, nbytes, source, room), deadline)
            np.copyto(target, room)
            return
        if address(source) % dtype.alignment:
            source = source.copy()
        values, results = source.view(dtype), None if target is None else target.view(dtype)
        op = getattr(self._mpi, "SUM" if plan.op is ReduceOp.AVG else plan.op.name)
        in_place = target is not None and address(source) == address(target)
        step = _LONGEST // dtype.itemsize
        for start in range(0, values.size, step):
            own = self._mpi.IN_PLACE if in_place else values[start : start + step]
            total = None if results is None else results[start : start + step]
            if plan.root is None:
                begin = lambda: self._comm.Iallreduce(own, total, op)  # noqa: B023, E731
            else:
                begin = lambda: self._comm.Ireduce(own, total, op, plan.root)  # noqa: B023, E731
            self._do(begin, deadline)
        if results is not None and plan.op is ReduceOp.AVG:
            np.divide(results, float(self._size), out=results)


def _combined(
    plan: AgreedReduction, operands: Sequence[Array], dtype: np.dtype[Any], out: Array
) -> Exception | None:
    """Combine the operands of the ranks that contribute."""
    return plan.combine([operands[rank].view(dtype) for rank in plan.ranks], out.view(dtype))
