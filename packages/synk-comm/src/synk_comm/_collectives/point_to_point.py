"""Messages between two ranks, in pieces: ``send``, ``recv``, ``isend`` and ``irecv``.

A message is in a queue of its sender or its receiver until its last piece has moved. Every wait
moves all of them on. A message that arrives goes to the first receive in the queue that asks for
its tag, else it is kept. No piece of a rank is taken before something is to be received from it:
the channel stays full, and its sender waits.
"""

from __future__ import annotations

import contextlib
import operator
from collections import defaultdict
from functools import lru_cache
from typing import Any

import numpy as np

from synk_comm._core.calls import CollectiveCall, Kind, Shape, decode, encode, kind_of, text_dtype
from synk_comm._core.fabric import PIECE_HEAD_BYTES
from synk_comm._core.ops import Array
from synk_comm._core.packing import as_array, bare, contiguous, flat_bytes
from synk_comm._core.requests import Request
from synk_comm._core.steps import Steps, check_out
from synk_comm.exceptions import ClosedError, CommTimeout, EndOfGroup, MismatchError, MisuseError

_ROOM = PIECE_HEAD_BYTES - 8


class _ArrayMessage(Request):
    """One array on its way between this rank and its ``peer``.

    ``header`` describes a message that is sent, and is b"" for one to be received. ``array`` is, in
    the queue, the bytes that are not in the channel yet; or ``out``.
    """

    begun = False  # whether it cannot be taken back any more

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
        # By rank, and whether they are sent: messages that are not done.
        self._queues: defaultdict[tuple[int, bool], list[_ArrayMessage]] = defaultdict(list)
        self._arrived: dict[tuple[int, int], list[Array]] = {}  # by sender and tag
        # By sender: tag and place of a message of which some pieces have come, and its bytes that
        # are still missing.
        self._arriving: dict[int, tuple[int, Array, Array]] = {}

    def begin(self, sending: bool, array: Any, peer: int, tag: int, **how: Any) -> Request:
        """Send an array, or receive one, into ``array`` if that is not None; how: see ``move``."""
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
        self.move(message, new=True, **how)
        return message

    def move(
        self,
        message: _ArrayMessage,
        timeout_s: float | None = None,
        *,
        once: bool = False,
        new: bool = False,
    ) -> None:
        """Wait until a message has moved; or only move what can be moved now, ``once``.

        At a timeout, a ``new`` message that has not begun is taken back; if it has, the group ends.
        """
        fabric, guard, peer = self._steps.fabric, self._steps.guard, message.peer
        deadline = self._steps.deadline(timeout_s)
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
                self._queues[peer, bool(message.header)].remove(message)
            # That others have left does not end the group of a rank that is about to leave.
            guard.leave(exc, in_step=self._is_leaving or (is_late and not torn))
            raise
        guard.leave(None, in_step=True)

    def finish(self) -> None:
        """Move everything out before this rank leaves, to ranks that are there to take it.

        Raises:
            CommTimeout: a rank has not taken its messages.
        """
        self._is_leaving = True
        for message in [one for (_, sent), queue in self._queues.items() if sent for one in queue]:
            with contextlib.suppress(EndOfGroup, ClosedError, MisuseError):
                self.move(message)

    def _post(self, message: _ArrayMessage) -> None:
        """Put a message into its queue; do at once what needs no other rank."""
        if message.header and message.peer == self._steps.rank:
            message._done = True
            self._deliver(message.way, message.array.copy())
            return
        self._queues[message.peer, bool(message.header)].append(message)
        if message.header:
            message.array = flat_bytes(message.array)
        else:
            self._deliver(message.way)

    def _deliver(self, way: tuple[int, int], *arrived: Array) -> None:
        """Give what has arrived to the receives that expect it; keep what is left."""
        arrays = [*self._arrived.pop(way, ()), *arrived]
        for message in self._expecting(way)[: len(arrays)]:
            self._queues[message.peer, False].remove(message)
            message.take(arrays.pop(0))
        if arrays:
            self._arrived[way] = arrays

    def _expecting(self, way: tuple[int, int]) -> list[_ArrayMessage]:
        return [message for message in self._queues[way[0], False] if message.way == way]

    def _advance(self, awaited: _ArrayMessage) -> bool:
        """Move all that can be moved now; return whether this message is done."""
        fabric, me = self._steps.fabric, self._steps.rank
        for (peer, is_sent), queue in self._queues.items():
            while queue and peer != me and (fabric.has_place if is_sent else fabric.has_come)(peer):
                if is_sent:
                    self._put(queue)
                else:
                    self._take_in(peer)
        return awaited._done

    def _put(self, queue: list[_ArrayMessage]) -> None:
        """Put the next piece of the first message into the channel."""
        message, fabric = queue[0], self._steps.fabric
        data = message.array
        piece, message.array = data[: fabric.piece_bytes], data[fabric.piece_bytes :]
        fabric.put(message.peer, b"" if message.begun else message.header, piece)
        message.begun = True
        if not message.array.nbytes:
            message._done, message.array = True, None  # the array is the user's again
            del queue[0]

    def _take_in(self, source: int) -> None:
        """Remove the next piece from the channel."""
        fabric = self._steps.fabric
        header, piece = fabric.piece(source)
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
        fabric.release(source)
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
