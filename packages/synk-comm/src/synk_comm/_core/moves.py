"""How bytes move without being combined: from one to all, from all to one or all, and dealt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import numpy as np

from .calls import CollectiveCall, count_bytes, text_dtype
from .lists import flat_bytes
from .ops import Array
from .steps import Steps

Read = Callable[[int, int], Array]
"""``read(rank, count)`` returns the next bytes of a rank for this one."""
Receive = Callable[[int, int, Read], None]
"""``receive(start, part, read)`` takes bytes from ``start`` on, up to ``part`` of each rank."""


def spread(
    steps: Steps,
    root: int,
    source: Array | None,
    target: Array | None,
    deadline: float,
    posted: bool,
) -> None:
    """Move the root's flat bytes into every other rank's ``target``, of the same length.

    Args:
        posted: whether these are the first bytes of their call.
    """
    fabric = steps.fabric
    data = source if source is not None else target
    nbytes = 0 if data is None else data.nbytes
    if data is not None and not fabric.is_posted(nbytes):
        with fabric.bulk() as bulk:
            bulk.spread(root, data, deadline)
        return
    start = 0
    while True:
        if not posted:
            fabric.sync(None, steps.fabric.fill(source, start), deadline)
        posted = False
        stop = min(start + fabric.slot_bytes, nbytes)
        if source is None and target is not None and stop > start:
            np.copyto(target[start:stop], fabric.read(root, 0, stop - start))
        start = stop
        if start >= nbytes:
            return


def collect(
    steps: Steps,
    root: int | None,
    source: Array | None,
    targets: Sequence[Array | None],
    totals: Sequence[int],
    deadline: float,
) -> None:
    """Move every rank's flat bytes into the receivers' ``targets``; the first round is over.

    Args:
        totals: how many bytes each rank has.
    """
    fabric = steps.fabric
    longest = max(totals)
    if not fabric.is_posted(longest):
        with fabric.bulk() as bulk:
            texts = bulk.collect(root, source, totals, deadline)
        for text, target in zip(texts, targets):
            if target is not None:
                np.copyto(target, text)
        return
    start = 0
    while True:
        for rank, target in enumerate(targets):
            if target is None or start >= target.nbytes:
                continue
            stop = min(start + fabric.slot_bytes, target.nbytes)
            np.copyto(target[start:stop], fabric.read(rank, 0, stop - start))
        start += fabric.slot_bytes
        if start >= longest:
            return
        fabric.sync(None, steps.fabric.fill(source, start), deadline, to=root)


def deal(
    steps: Steps,
    call: CollectiveCall,
    head: bytes,
    sources: Sequence[Array] | None,
    begin: Callable[[Sequence[CollectiveCall]], Receive],
    deadline: float,
    resuming: bool = False,
) -> None:
    """Move one flat array to each rank: every slot is cut into parts.

    Args:
        sources: what goes to each rank; None if this rank gives nothing.
        begin: takes all ranks' calls, and returns a function to be called after every round.
        resuming: the first round is over.
    """
    fabric = steps.fabric
    if fabric.longest_posted is not None:
        calls = steps.open(call, head, lambda: 0, deadline, resuming=resuming)
        counts = [_for_rank(theirs, steps.rank, steps.size) for theirs in calls]
        receive = begin(calls)
        with fabric.bulk() as bulk:
            texts = bulk.deal(sources, counts, deadline)
        receive(0, max(counts), lambda rank, count: texts[rank][:count])
        return
    part = fabric.slot_bytes // steps.size // 64 * 64
    calls = steps.open(
        call,
        head,
        lambda: _fill_parts(steps, sources, 0, part),
        deadline,
        part=part,
        resuming=resuming,
    )
    receive = begin(calls)

    def read(rank: int, count: int) -> Array:
        return fabric.read(rank, steps.rank * part, steps.rank * part + count)

    longest = max((count_bytes(kind) for theirs in calls for kind in theirs.arrays), default=0)
    if call.kind == "reduce_scatter" and not call.many:
        longest //= steps.size
    start = 0
    while True:
        receive(start, part, read)
        start += part
        if start >= longest:
            return
        fabric.sync(None, _fill_parts(steps, sources, start, part), deadline, part=part)


def _for_rank(call: CollectiveCall, rank: int, size: int) -> int:
    """Return how many bytes a rank's call has for another one."""
    if not call.arrays:
        return 0
    if call.kind == "reduce_scatter" and not call.many:
        return call.nbytes() // size
    return call.nbytes(rank)


def _fill_parts(steps: Steps, sources: Sequence[Array] | None, start: int, part: int) -> int:
    if sources is None:
        return 0
    slot = steps.fabric.slot()
    for rank, source in enumerate(sources):
        stop = min(start + part, source.nbytes)
        if stop > start:
            offset = rank * part
            np.copyto(slot[offset : offset + stop - start], source[start:stop])
    return part * steps.size


def taker(targets: Sequence[Array | None]) -> Receive:
    """Return what copies this rank's part of each rank's slot into that rank's target."""

    def receive(start: int, part: int, read: Read) -> None:
        for rank, target in enumerate(targets):
            if target is not None and start < target.nbytes:
                stop = min(start + part, target.nbytes)
                np.copyto(target[start:stop], read(rank, stop - start))

    return receive


class Inbox:
    """Arrays to be received: in the caller's memory if that can be, else copied there later."""

    def __init__(
        self,
        kinds: Sequence[tuple[str, tuple[int, ...]] | None],
        outs: Sequence[Array | None],
        avoid: Sequence[Array],
    ) -> None:
        self.outs = outs
        self.arrays: list[Array | None] = []
        for kind, out in zip(kinds, outs):
            usable = (
                out is not None
                and out.flags.c_contiguous
                and not any(np.may_share_memory(out, source) for source in avoid)
            )
            if kind is None:
                self.arrays.append(None)
            else:
                self.arrays.append(out if usable else np.empty(kind[1], text_dtype(kind[0])))

    def flat(self) -> list[Array | None]:
        """Return the memory to be filled."""
        return [None if array is None else flat_bytes(array) for array in self.arrays]

    def taken(self) -> list[Array | None]:
        """Return the arrays, once filled."""
        for which, out in enumerate(self.outs):
            array = self.arrays[which]
            if out is not None and array is not None and array is not out:
                np.copyto(out, array)
                self.arrays[which] = out
        return self.arrays
