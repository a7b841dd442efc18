"""Reductions of a stretch of bytes over the ranks: two ways, with the same operands in rank order.

*Direct*: every rank reads all slots; among two ranks, and for small arrays.
*Scattered*: every rank reduces its own part of a block and posts the result, which all copy; for
large arrays among three ranks or more. A round reduces one block and copies the next.
"""

from __future__ import annotations

from functools import partial
from typing import Callable

import numpy as np

from .bulk import AgreedReduction, Stretch
from .fabric import Fabric
from .moves import Read, Receive, in_rounds
from .ops import Array

DIRECT_BYTES = 1 << 18
"""Longest array that three ranks or more reduce directly, times their number."""


def is_direct(nbytes: int, size: int) -> bool:
    """Return whether every rank reads a whole stretch from all others."""
    return size <= 2 or nbytes * size <= DIRECT_BYTES


def first_round(fabric: Fabric, nbytes: int, source: Array | None) -> tuple[Callable[[], int], int]:
    """Return ``fill`` and ``part`` of a ``CheckedCall``."""
    if source is None or is_direct(nbytes, fabric.size) or not fabric.is_posted(nbytes):
        return (lambda: fabric.post(source)), 0
    part, length = _block(fabric, nbytes, 0)

    def fill() -> int:
        np.copyto(fabric.slot()[:length], source[:length])
        return part * fabric.size

    return fill, part


def reduce_stretch(
    fabric: Fabric, plan: AgreedReduction, stretch: Stretch, deadline: float, *, posted: bool
) -> None:
    """Reduce one stretch; ``posted`` if it is the first of its call."""
    if not fabric.is_posted(stretch.nbytes):
        with fabric.bulk() as bulk:
            bulk.reduce(plan, stretch, deadline)
    elif is_direct(stretch.nbytes, fabric.size):
        _direct(fabric, plan, stretch, deadline, posted)
    else:
        _scattered(fabric, plan, stretch, deadline, posted)


def folder(plan: AgreedReduction, stretch: Stretch, own: int = -1) -> Receive:
    """Return a function that reduces the bytes of all ranks into the target, if there is one.

    It reads the source in place of the slot of rank ``own``.
    """
    dtype, nbytes, source, target = stretch

    def receive(start: int, step: int, read: Read) -> None:
        stop = min(start + step, nbytes)
        if target is not None and stop > start:
            operands = [
                source[start:stop].view(dtype)
                if rank == own and source is not None
                else read(rank, stop - start).view(dtype)
                for rank in plan.ranks
            ]
            plan.combine(operands, target[start:stop].view(dtype))

    return receive


def _direct(
    fabric: Fabric, plan: AgreedReduction, stretch: Stretch, deadline: float, posted: bool
) -> None:
    _, nbytes, source, target = stretch
    # The own array is quicker to read than the own slot; the first step may overwrite it.
    in_place = source is not None and target is not None and np.may_share_memory(source, target)
    reads_own = not in_place or (plan.factors is None and fabric.rank in plan.ranks[:2])
    receive = folder(plan, stretch, fabric.rank if reads_own else -1)
    fill = partial(fabric.fill, source)
    in_rounds(fabric, fill, receive, nbytes, deadline, to=plan.root, posted=posted)


def _scattered(
    fabric: Fabric, plan: AgreedReduction, stretch: Stretch, deadline: float, posted: bool
) -> None:
    dtype, nbytes, source, target = stretch
    size = fabric.size
    block = _part_bytes(fabric) * size
    blocks = -(-nbytes // block)
    for turn in range(blocks + 1):
        part, length = _block(fabric, nbytes, turn) if turn < blocks else (0, 0)
        before, length_before = _block(fabric, nbytes, turn - 1) if turn else (0, 0)
        if turn or not posted:
            slot = fabric.slot()
            if source is not None and length:
                np.copyto(slot[:length], source[turn * block : turn * block + length])
            used = size * part
            start, stop = _share(fabric.rank, before, length_before)
            if stop > start:
                operands = [fabric.read(rank, start, stop).view(dtype) for rank in plan.ranks]
                plan.combine(operands, slot[used : used + stop - start].view(dtype))
                used += stop - start
            fabric.sync(None, used, deadline, to=plan.root, part=part)
        if turn and target is not None:
            base = (turn - 1) * block
            for rank in range(size):
                start, stop = _share(rank, before, length_before)
                if stop > start:
                    result = fabric.read(rank, size * part, size * part + stop - start)
                    np.copyto(target[base + start : base + stop], result)


def _part_bytes(fabric: Fabric) -> int:
    return fabric.slot_bytes // (fabric.size + 1) // 64 * 64


def _block(fabric: Fabric, nbytes: int, turn: int) -> tuple[int, int]:
    """Return the length of a rank's part of a block, and that of the block."""
    part = _part_bytes(fabric)
    length = min(part * fabric.size, nbytes - turn * part * fabric.size)
    return min(part, -(-length // fabric.size // 64) * 64), length


def _share(rank: int, part: int, length: int) -> tuple[int, int]:
    """Return the range of a block that a rank reduces."""
    return min(rank * part, length), min((rank + 1) * part, length)
