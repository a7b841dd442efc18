"""Messages between two ranks, in pieces: ``send``, ``recv``, ``isend`` and ``irecv``.

A message is in the table of its sender or its receiver until its last piece has moved. Every call
of this file that waits moves all of them on. A message that arrives goes to the first receive in
the table that asks for its tag, else it is kept. No piece of a rank is taken before something is to
be received from it: the channel stays full, and its sender waits.
"""

from __future__ import annotations

import contextlib
import operator
from functools import lru_cache
from typing import Any

import numpy as np

from synk_comm._core.calls import CollectiveCall, Kind, Shape, decode, encode, kind_of, text_dtype
from synk_comm._core.fabric import PIECE_HEAD_BYTES
from synk_comm._core.ops import Array
from synk_comm._core.packing import as_array, bare, contiguous, flat_bytes
from synk_comm._core.requests import Request
from synk_comm._core.steps import Steps, check_out
from synk_comm.exceptions import (
    AbortedError,
    ClosedError,
    CommTimeout,
    MismatchError,
    MisuseError,
    PeerLost,
)

_ROOM = PIECE_HEAD_BYTES - 8


class _ArrayMessage(Request):
    """One array on its way between this rank and its ``peer``.

    Attributes:
        header: describes a message that is sent; b"" for one to be received.
        array: in the table the bytes that are not in the channel yet; or ``out``.
        begun: whether it cannot be taken back any more.
        new: whether no call has waited for it yet.
    """

    begun, new = False, True

    def __init__(
        self, messages: PointToPoint, peer: int, tag: int, header: bytes, array: Any
    ) -> None:
        super().__init__("to rank" if header else "from rank", peer)
        self._messages = messages
        self.peer, self.way, self.header, self.array = peer, (peer, tag), header, array

    def _go_on(self, timeout_s: float | None, *, once: bool) -> None:
        if not self._done:
            self._messages.move(self, timeout_s, once=once)

    def take(self, came: Array) -> None:
        """Accept the array that has arrived for it."""
        out = self.array
        self._done, self._result = True, bare(came) if out is None else out
        if out is not None and not _is_for(out, came.dtype, came.shape):
            dtype, shape = kind_of(came)
            self._error = MismatchError(
                f"out of recv is {out.dtype} {out.shape}, but rank {self.peer} sent "
                f"{dtype} {shape}; the message is lost",
                calls={self.peer: f"send({dtype} {shape})"},
            )
        elif out is not None and out is not came:
            np.copyto(out, came)


class PointToPoint:
    """Messages to and from single ranks."""

    _is_leaving = False

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._table: list[_ArrayMessage] = []  # that are not done, in the order of their calls
        self._arrived: dict[tuple[int, int], list[Array]] = {}  # by sender and tag
        # By sender: tag and place of a message of which some pieces have come, and its bytes that
        # are still missing.
        self._arriving: dict[int, tuple[int, Array, Array]] = {}

    def begin(self, sending: bool, array: Any, peer: int, tag: int, **how: Any) -> Request:
        """Send an array, or receive one into ``array`` if that is one; how: see ``move``."""
        peer, header = self._steps.check_rank(peer, "dest" if sending else "source"), b""
        number = operator.index(tag)
        if number < 0:
            raise ValueError(f"tag must be a number from 0, got {tag!r}")
        if sending:
            array = contiguous(as_array(array))
            header = _header(number, kind_of(array))
        elif array is not None:
            check_out(array, None)
        message = _ArrayMessage(self, peer, number, header, array)
        self.move(message, **how)
        return message

    def move(
        self, message: _ArrayMessage, timeout_s: float | None = None, *, once: bool = False
    ) -> None:
        """Wait until a message has moved; or only move what can be moved now, ``once``.

        If the time is up for a new one before it has begun, it is taken back; if it has, the group
        ends.
        """
        fabric, guard, peer = self._steps.fabric, self._steps.guard, message.peer
        deadline = self._steps.deadline(timeout_s)
        new, message.new = message.new, False
        guard.__enter__()
        try:
            if new:
                self._post(message)
            elif once:
                once = fabric.gone((peer,)) is None  # else its last pieces may be on the way
            if peer == fabric.rank and not (message._done or once):
                raise CommTimeout(
                    f"rank {peer} has sent itself nothing that this recv could take",
                    missing={peer: "is the one that waits"},
                )
            if peer != fabric.rank and not message._done:
                is_done = lambda: self._advance(message) or once  # noqa: E731
                fabric.attend(is_done, peer, deadline, sending=bool(message.header))
        except BaseException as exc:
            is_late, torn = isinstance(exc, CommTimeout), new and message.begun
            if is_late and new and not torn:
                self._table.remove(message)
            # That others have left does not end the group of a rank that is about to leave.
            guard.leave(exc, in_step=self._is_leaving or (is_late and not torn))
            raise
        guard.leave(None, in_step=True)

    def finish(self) -> None:
        """Move everything out before this rank leaves, if there is somebody to take it.

        Raises:
            CommTimeout: a rank has not taken its messages.
        """
        self._is_leaving = True
        for message in [message for message in self._table if message.header]:
            with contextlib.suppress(AbortedError, ClosedError, MisuseError, PeerLost):
                self.move(message)

    def _post(self, message: _ArrayMessage) -> None:
        """Put a message into the table; do at once what needs no other rank."""
        if message.header and message.peer == self._steps.rank:
            message._done = True
            self._deliver(message.way, message.array.copy())
            return
        self._table.append(message)
        if message.header:
            message.array = flat_bytes(message.array)
        else:
            self._deliver(message.way)

    def _deliver(self, way: tuple[int, int], *arrived: Array) -> None:
        """Give what has arrived to the receives that expect it; keep what is left."""
        arrays = [*self._arrived.pop(way, ()), *arrived]
        for message in self._expecting(way)[: len(arrays)]:
            self._table.remove(message)
            message.take(arrays.pop(0))
        if arrays:
            self._arrived[way] = arrays

    def _expecting(self, way: tuple[int, int]) -> list[_ArrayMessage]:
        return [message for message in self._table if not message.header and message.way == way]

    def _advance(self, awaited: _ArrayMessage) -> bool:
        """Move all that can be moved now; return whether this message is done."""
        pieces, stuck = self._steps.fabric.pieces, {(self._steps.rank, False)}
        for message in list(self._table):
            way = message.peer, bool(message.header)
            while not message._done and way not in stuck:
                if not (pieces.has_place if message.header else pieces.has_come)(message.peer):
                    stuck.add(way)
                elif message.header:
                    self._put(message)
                else:
                    self._take_in(message.peer)
        return awaited._done

    def _put(self, message: _ArrayMessage) -> None:
        """Put the next piece of a message into the channel."""
        fabric, data = self._steps.fabric, message.array
        piece, message.array = data[: fabric.piece_bytes], data[fabric.piece_bytes :]
        fabric.pieces.put(message.peer, b"" if message.begun else message.header, piece)
        message.begun = True
        if not message.array.nbytes:
            message._done, message.array = True, None  # the array is the user's again
            self._table.remove(message)

    def _take_in(self, source: int) -> None:
        """Remove the next piece from the channel."""
        pieces = self._steps.fabric.pieces
        header, piece = pieces.piece(source)
        if header:
            call = decode(header)
            ((text, shape),) = call.arrays
            dtype, target = text_dtype(text), None
            for message in self._expecting((source, call.root))[:1]:
                if _is_for(message.array, dtype, shape) and message.array.flags.c_contiguous:
                    message.begun, target = True, message.array
            target = np.empty(shape, dtype) if target is None else target
            self._arriving[source] = call.root, target, flat_bytes(target)
        tag, target, rest = self._arriving.pop(source)
        nbytes = piece.nbytes
        np.copyto(rest[:nbytes], piece)
        pieces.release(source)
        if nbytes < rest.nbytes:
            self._arriving[source] = tag, target, rest[nbytes:]
        else:
            self._deliver((source, tag), target)


def _is_for(out: Any, dtype: np.dtype[Any], shape: Shape) -> bool:
    return out is not None and (out.dtype, out.shape) == (dtype, shape)


@lru_cache(maxsize=256)
def _header(tag: int, kind: Kind) -> bytes:
    header = encode(CollectiveCall("send", root=tag, arrays=(kind,)))
    if len(header) > _ROOM:
        raise ValueError(
            f"the description of this array takes {len(header)} bytes, at most {_ROOM} can "
            "be sent; use a simpler dtype"
        )
    return header
