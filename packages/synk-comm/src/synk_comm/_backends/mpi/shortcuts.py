"""Shortcuts, which repeat a small call if all ranks repeat it: one Allgather, and its result.

The record of a call is written once; a repetition writes the data only. Records that are equal to
those of the first time show that all ranks repeat it, else the call goes on in the general way.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Callable, Protocol

import numpy as np

from synk_comm._core.fabric import IN_STEP, RepeatedCall, Shortcut, again
from synk_comm._core.guard import deadline_after
from synk_comm._core.ops import Array
from synk_comm._core.repeats import WholeSlots, parts_of

from .notes import Notes

_MANY = 16
"""Records that are compared one by one; of more, the rest together."""


class RecordRounds(WholeSlots, Protocol):
    """The part of ``MpiFabric`` that shortcuts work on."""

    rank: int
    seq: int
    turn: int
    head: bytes | None
    written: list[bytes]
    calm: bool
    latest: tuple[int, Sequence[bytes]]
    io: threading.Lock
    notes: Notes
    rows: list[Array]
    records: list[Array]
    begin: list[Callable[[], Any]]

    def wait_for_records(self, request: Any, parity: int, deadline: float) -> None:
        """Finish a round that has begun."""

    def take_records(self, parity: int, deadline: float) -> None:
        """Look at the records of a round that is over."""


# One function, however long: every call of another one would cost a tenth of the whole.
def make(  # noqa: PLR0915
    fabric: RecordRounds, repeated: RepeatedCall, fixed: int
) -> Shortcut | None:
    """Return the shortcut for the call whose round is over; all of its data were in the records.

    Args:
        fixed: how many bytes of a record say which call it is.
    """
    guard, otherwise, timeout_s = repeated.guard, repeated.otherwise, repeated.timeout_s
    lock, io, notes = guard.lock, fabric.io, fabric.notes
    rank, last = fabric.rank, fabric.seq & 1
    heads, head = repeated.heads, repeated.heads[rank]
    mine, finish = parts_of(fabric, repeated.calls, rank)
    kept, start = fabric.rows[last][:fixed].tobytes(), fabric.records[0].shape[1] - len(head)
    width = fabric.records[0].shape[1]
    expected = [
        (r * width, r * width + fixed, record[:fixed].tobytes())
        for r, record in enumerate(fabric.records[last][:_MANY])
    ]
    many = fabric.records[last][_MANY:, :fixed].copy()
    more = [records[_MANY:, :fixed] for records in fabric.records]
    views = [records.reshape(-1).data for records in fabric.records]
    rows = [row.data for row in fabric.rows]
    written, begin = fabric.written, fabric.begin

    def shortcut(x: Any, out: Any) -> Any:  # noqa: PLR0912
        if not lock:
            raise guard.refusal()
        entered = synced = False
        try:
            lock.pop()
            entered = True
            with io:
                notes.catch_up()
                if notes.failure is not None:
                    raise again(notes.failure)
                seq = fabric.seq + 1
                parity = seq & 1
                if written[parity] is not kept:
                    rows[parity][:fixed] = kept
                    rows[parity][start : start + len(head)] = head
                    written[parity] = kept
                if mine is not None:
                    mine[parity][...] = x
                fabric.seq = seq
                fabric.turn = turn = fabric.turn + 1
                fabric.head = head
                notes.begun += 1
                request = begin[parity]()
                done = request.Test
                if not (done() or done() or done() or done()):
                    fabric.wait_for_records(request, parity, deadline_after(timeout_s))
                view = views[parity]
                for first, stop, there in expected:
                    if view[first:stop] != there:
                        break
                else:
                    synced = not many.size or bool(np.array_equal(more[parity], many))
            if synced:
                fabric.latest = (turn, heads)
                result = finish(x, out, parity)
            else:
                with io:
                    fabric.take_records(parity, deadline_after(timeout_s))
                result, accident = otherwise(x, out, timeout_s)
                synced = True
                if accident is not None:
                    raise accident
        except BaseException as exc:
            fabric.calm &= synced
            if not entered and isinstance(exc, IndexError):  # another thread was quicker
                raise guard.refusal() from None
            guard.leave(exc, in_step=synced or isinstance(exc, IN_STEP))
            raise
        lock.append(None)
        return result

    return shortcut
