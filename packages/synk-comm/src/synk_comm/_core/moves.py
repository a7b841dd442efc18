"""Moves of bytes: from one to all, from all to one or all, and from each to each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Callable

import numpy as np

from .calls import CollectiveCall, Kind, count_bytes, sent_to, text_dtype
from .fabric import Fabric, part_bytes
from .ops import Array
from .packing import flat_bytes

Read = Callable[[int, int], Array]
"""``read(rank, count)`` returns the next bytes of a rank for this one."""
Receive = Callable[[int, int, Read], None]
"""``receive(start, step, read)`` takes bytes from ``start`` on, up to ``step`` of each rank."""


def spread(fabric: Fabric, root: int, data: Array, deadline: float, posted: bool) -> None:
    """Move the root's flat bytes into ``data`` of the others; ``posted`` if the call's first."""
    if not fabric.is_posted(data.nbytes):
        with fabric.bulk() as bulk:
            bulk.spread(root, data, deadline)
        return
    source, target = (data, None) if fabric.rank == root else (None, data)
    fill, receive = partial(fabric.fill, source), taker([root], [target])
    in_rounds(fabric, fill, receive, data.nbytes, deadline, posted=posted)


def collect(
    fabric: Fabric,
    root: int | None,
    source: Array | None,
    arrays: Sequence[Array | None],
    totals: Sequence[int],
    deadline: float,
) -> None:
    """Move every rank's flat bytes, ``totals`` of each, into ``arrays``, by sender.

    The first round is over.
    """
    longest, receive = max(totals), taker(range(fabric.size), arrays)
    if fabric.is_posted(longest):
        in_rounds(fabric, partial(fabric.fill, source), receive, longest, deadline, to=root)
        return
    with fabric.bulk() as bulk:
        texts = bulk.collect(root, source, totals, deadline)
    receive(0, longest, lambda sender, count: texts[sender][:count])


def in_rounds(
    fabric: Fabric,
    fill: Callable[[int], int],
    receive: Receive,
    longest: int,
    deadline: float,
    *,
    to: int | None = None,
    part: int = 0,
    posted: bool = True,
) -> None:
    """Move flat bytes, of a rank at most ``longest``, in whole slots, or in parts: ``Fabric.sync``.

    ``fill(start)`` puts this rank's bytes from ``start`` on into the own slot; returns how many.
    If ``posted``, the first round is over.
    """
    begin, start = fabric.rank * part, 0
    while True:
        if not posted:
            fabric.sync(None, fill(start), deadline, to=to, part=part)
        posted = False
        step = part or fabric.slot_bytes
        receive(start, step, lambda sender, count: fabric.read(sender, begin, begin + count))
        start += step
        if start >= longest:
            return


def first_parts(fabric: Fabric, sources: Sequence[Array] | None) -> tuple[Callable[[], int], int]:
    """Return ``fill`` and ``part`` of a ``CheckedCall`` for ``deal``."""
    if fabric.longest_posted is not None:
        return (lambda: 0), 0
    part = part_bytes(fabric.slot_bytes, fabric.size)
    return partial(_fill_parts, fabric, sources, part, 0), part


def deal(
    fabric: Fabric,
    calls: Sequence[CollectiveCall],
    sources: Sequence[Array] | None,
    receive: Receive,
    deadline: float,
) -> None:
    """Move one flat array to each rank, each in its part of the slot; the first round is over."""
    ranks = range(fabric.size)
    counts = [[count_bytes(sent_to(to, call, fabric.size)) for to in ranks] for call in calls]
    if fabric.longest_posted is not None:
        for_this = [theirs[fabric.rank] for theirs in counts]
        with fabric.bulk() as bulk:
            texts = bulk.deal(sources, for_this, deadline)
        receive(0, max(for_this), lambda sender, count: texts[sender][:count])
        return
    part, longest = part_bytes(fabric.slot_bytes, fabric.size), max(map(max, counts))
    fill = partial(_fill_parts, fabric, sources, part)
    in_rounds(fabric, fill, receive, longest, deadline, part=part)


def _fill_parts(fabric: Fabric, sources: Sequence[Array] | None, part: int, start: int) -> int:
    if sources is None:
        return 0
    slot = fabric.slot()
    for rank, source in enumerate(sources):
        stop = min(start + part, source.nbytes)
        if stop > start:
            offset = rank * part
            np.copyto(slot[offset : offset + stop - start], source[start:stop])
    return part * fabric.size


def taker(senders: Sequence[int], arrays: Sequence[Array | None]) -> Receive:
    """Return a function that copies the bytes of each sender into the array for them."""
    targets = [(r, flat_bytes(array)) for r, array in zip(senders, arrays) if array is not None]

    def receive(start: int, step: int, read: Read) -> None:
        for rank, target in targets:
            if start < target.nbytes:
                stop = min(start + step, target.nbytes)
                np.copyto(target[start:stop], read(rank, stop - start))

    return receive


def room(kind: Kind, out: Array | None, avoid: Sequence[Array]) -> Array:
    """Return the array to receive into: ``out``, unless it shares memory with ``avoid``."""
    if out is not None and out.flags.c_contiguous:
        if not any(np.may_share_memory(out, source) for source in avoid):
            return out
    return np.empty(kind[1], text_dtype(kind[0]))


def settle(received: Sequence[Array | None], outs: Sequence[Array | None]) -> None:
    """Copy the arrays that were not received in their ``outs`` into these."""
    for array, out in zip(received, outs):
        if array is not None and out is not None and array is not out:
            np.copyto(out, array)
