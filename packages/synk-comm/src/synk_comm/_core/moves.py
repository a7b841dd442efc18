"""How bytes move without being combined: from one to all, from all to one or all, and dealt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import numpy as np

from .calls import CollectiveCall, count_bytes, text_dtype
from .lists import flat_bytes
from .ops import Array
from .steps import Steps


def spread(
    steps: Steps,
    root: int,
    source: Array | None,
    target: Array | None,
    deadline: float,
    posted: bool,
) -> None:
    """Move the root's flat bytes into every other rank's ``target``, of the same length."""
    fabric = steps.fabric
    data = source if source is not None else target
    nbytes = 0 if data is None else data.nbytes
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
    longest: int,
    deadline: float,
) -> None:
    """Move every rank's flat bytes into the receivers' ``targets``; the first round is over."""
    fabric = steps.fabric
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
    begin: Callable[[Sequence[CollectiveCall]], Callable[[int, int, int], None]],
    deadline: float,
    resuming: bool = False,
) -> None:
    """Move one flat array to each rank: every slot is cut into parts.

    Args:
        sources: what goes to each rank; None if this rank gives nothing.
        begin: takes all ranks' calls, and returns a function to be called after every round:
            ``receive(start, offset, part)``, to read this rank's bytes from ``start`` on, up to
            ``part`` of them, at ``offset`` of the slots.
        resuming: the first round is over.
    """
    fabric = steps.fabric
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
    longest = max((count_bytes(kind) for theirs in calls for kind in theirs.arrays), default=0)
    if call.kind == "reduce_scatter" and not call.many:
        longest //= steps.size
    start = 0
    while True:
        receive(start, steps.rank * part, part)
        start += part
        if start >= longest:
            return
        fabric.sync(None, _fill_parts(steps, sources, start, part), deadline, part=part)


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


def taker(steps: Steps, targets: Sequence[Array | None]) -> Callable[[int, int, int], None]:
    """Return what copies this rank's part of each rank's slot into that rank's target."""

    def receive(start: int, offset: int, part: int) -> None:
        for rank, target in enumerate(targets):
            if target is not None and start < target.nbytes:
                stop = min(start + part, target.nbytes)
                chunk = steps.fabric.read(rank, offset, offset + stop - start)
                np.copyto(target[start:stop], chunk)

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
