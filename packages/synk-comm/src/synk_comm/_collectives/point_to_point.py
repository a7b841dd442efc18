"""Messages between two ranks, in pieces: ``send``, ``recv``, ``isend`` and ``irecv``.

A message waits in a queue, of its receiver or of its sender, until its last piece has moved. Every
call of this file that waits moves all of them on; other calls of the communicator move none. A
message that arrives goes to the first receive that was posted for its tag, else it is kept. No
piece of a rank is taken before something is to be received from it: the channel stays full, and its
sender waits.
"""

from __future__ import annotations

import contextlib
import json
import operator
from collections import deque
from functools import lru_cache
from typing import Any

import numpy as np

from synk_comm._core.calls import Kind, kind_of, text_dtype
from synk_comm._core.fabric import PIECE_HEAD_BYTES
from synk_comm._core.ops import Array
from synk_comm._core.packing import as_array, bare, contiguous, flat_bytes, typed
from synk_comm._core.steps import Steps, check_out
from synk_comm.abc import Request
from synk_comm.exceptions import AbortedError, CommError, CommTimeout, MismatchError, PeerLost

_ROOM = PIECE_HEAD_BYTES - 8


class _ArrayMessage(Request):
    """One array on its way between this rank and its ``peer``.

    Attributes:
        sending: whether this rank is the sender.
        tag: what the receiver asks for.
        header: tag, dtype and shape, of a message that is sent.
        array: of a message that is sent the bytes that are not in the channel yet; else ``out``.
        came: what has arrived: ``out`` itself, or another array.
        done: whether nothing of it remains to be moved.
        begun: whether it cannot be taken back any more.
    """

    done = begun = False
    came: Array | None = None

    def __init__(
        self, messages: PointToPoint, peer: int, tag: int, header: bytes, array: Array | None
    ) -> None:
        self._messages = messages
        self.peer, self.tag = peer, tag
        self.sending = bool(header)
        self.header, self.array = header, array

    def wait(self, timeout_s: float | None = None) -> Any:
        if not self.done:
            self._messages.move(self, timeout_s)
        return self.result()

    def test(self) -> bool:
        if not self.done:
            self._messages.move(self, once=True)
        if self.done:
            self.result()
        return self.done

    def take(self, came: Array) -> None:
        """Accept the array that has arrived for it."""
        self.done, self.came, out = True, came, self.array
        if out is not None and came is not out and _fits(out, kind_of(came)):
            np.copyto(out, came)
            self.came = out

    def result(self) -> Any:
        """Return what ``wait`` returns, of a message that is done."""
        if self.came is None:
            return None
        if self.array is None:
            return bare(self.came)
        if self.came is not self.array:
            dtype, shape = kind_of(self.came)
            raise MismatchError(
                f"out of recv is {self.array.dtype} {self.array.shape}, but rank {self.peer} sent "
                f"{dtype} {shape}; the message is lost",
                calls={self.peer: f"send({dtype} {shape})"},
            )
        return self.array

    def __repr__(self) -> str:
        way = "to" if self.sending else "from"
        return f"<Request {way} rank {self.peer}, {'done' if self.done else 'pending'}>"


class PointToPoint:
    """Messages to and from single ranks."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._early: dict[tuple[int, int], deque[Array]] = {}  # by sender and tag
        self._queues: dict[tuple[int, bool], deque[_ArrayMessage]] = {}  # by peer and ``sending``
        # By sender: the tag of a message of which some pieces have come, where it is written, and
        # the bytes of that which are still missing.
        self._arriving: dict[int, tuple[int, Array, Array]] = {}

    def prepare(self, sending: bool, array: Any, peer: int, tag: int) -> _ArrayMessage:
        """Check the arguments of a message; return it for ``move``.

        Args:
            array: to be sent; else ``out``, or None.
        """
        peer, header = self._steps.check_rank(peer, "dest" if sending else "source"), b""
        number = operator.index(tag)
        if number < 0:
            raise ValueError(f"tag must be a number from 0, got {tag!r}")
        if sending:
            array = contiguous(as_array(array))
            header = _header(number, kind_of(array))
            array = flat_bytes(array)
        elif array is not None:
            check_out(array, None)
        return _ArrayMessage(self, peer, number, header, array)

    def move(
        self,
        message: _ArrayMessage,
        timeout_s: float | None = None,
        *,
        new: bool = False,
        once: bool = False,
    ) -> None:
        """Send or receive a message.

        Args:
            new: put it into its queue first; if the time is up before it has begun, it is taken
                back, and if it has, the group ends.
            once: only move what can be moved now.
        """
        deadline, guard, torn = self._steps.deadline(timeout_s), self._steps.guard, False
        guard.__enter__()
        try:
            if new:
                self._post(message)
            self._attend(message, deadline, once)
            if once and not new and self._is_last_chance(message):
                self._attend(message, deadline)
        except BaseException as exc:
            is_late = isinstance(exc, CommTimeout)
            if new and is_late:
                torn = message.begun
                if not torn:
                    self._unpost(message)
            guard.leave(exc, in_step=is_late and not torn)
            raise
        guard.leave(None, in_step=True)

    def finish(self) -> None:
        """Move everything out before this rank leaves, if there is somebody to take it.

        Raises:
            CommTimeout: a rank has not taken its messages.
        """
        last = [queue[-1] for (_, sending), queue in self._queues.items() if sending]
        guard = self._steps.guard
        if not last:
            return
        try:
            guard.__enter__()
        except CommError:  # the group has ended, or another thread is inside
            return
        try:
            deadline = self._steps.deadline(None)
            for message in last:
                with contextlib.suppress(AbortedError, PeerLost):
                    self._attend(message, deadline)
        finally:
            guard.leave(None, in_step=True)

    def forget(self) -> None:
        """Drop what keeps alive the memory of the channels, and the user's arrays."""
        self._queues.clear()
        self._arriving.clear()

    def _attend(self, message: _ArrayMessage, deadline: float, once: bool = False) -> None:
        """Move what can be moved, until a message is done; or ``once``."""
        rank, peer = self._steps.rank, message.peer
        if message.done or (once and peer == rank):
            return
        if peer == rank:
            raise CommTimeout(
                f"rank {rank} has sent itself nothing that this recv could take",
                missing={rank: "is the one that waits"},
            )

        def is_done() -> bool:
            self._advance()
            return once or message.done

        self._steps.fabric.attend(is_done, peer, deadline, sending=message.sending)

    def _is_last_chance(self, message: _ArrayMessage) -> bool:
        """Return whether the other rank is gone, whose last pieces may still be on the way here."""
        rank, peer = self._steps.rank, message.peer
        is_here = message.done or peer == rank or self._steps.fabric.gone((peer,)) is None
        return not is_here

    # -- the queues -------------------------------------------------------------------------

    def _post(self, message: _ArrayMessage) -> None:
        """Put a message into its queue, or do at once what needs no other rank."""
        rank, peer = self._steps.rank, message.peer
        if message.sending and peer == rank:
            assert message.array is not None  # noqa: S101 - what is sent
            tag, (dtype, shape) = _read_header(message.header)
            self._deliver(rank, tag, typed(message.array.copy(), text_dtype(dtype), shape))
            message.done = True
            return
        early = None if message.sending else self._early.get((peer, message.tag))
        if early:
            message.take(early.popleft())
            if not early:
                del self._early[peer, message.tag]
            return
        self._queues.setdefault((peer, message.sending), deque()).append(message)

    def _unpost(self, message: _ArrayMessage) -> None:
        """Remove a message from its queue."""
        way = message.peer, message.sending
        self._queues[way].remove(message)
        if not self._queues[way]:
            del self._queues[way]

    def _first_expected(self, source: int, tag: int) -> _ArrayMessage | None:
        """Return the receive that is to get the next message of a tag, if one was posted."""
        for message in self._queues.get((source, False), ()):
            if message.tag == tag:
                return message
        return None

    def _advance(self) -> None:
        """Move what can be moved now; inside ``Fabric.attend`` only."""
        rank, pieces = self._steps.rank, self._steps.fabric.pieces
        for way in list(self._queues):
            peer, sending = way
            is_ready = pieces.has_place if sending else pieces.has_come
            while peer != rank and way in self._queues and is_ready(peer):
                if sending:
                    self._put(self._queues[way][0])
                else:
                    self._take_in(peer)

    def _put(self, message: _ArrayMessage) -> None:
        """Put the next piece of a message, the first of its queue, into the channel."""
        fabric, data = self._steps.fabric, message.array
        assert data is not None  # noqa: S101 - what is sent
        piece = data[: fabric.piece_bytes]
        fabric.pieces.put(message.peer, b"" if message.begun else message.header, piece)
        message.begun = True
        if piece.nbytes < data.nbytes:
            message.array = data[piece.nbytes :]
        else:
            message.array = None  # the array is the user's again
            message.done = True
            self._unpost(message)

    def _take_in(self, source: int) -> None:
        """Remove the next piece from the channel."""
        pieces = self._steps.fabric.pieces
        header, piece = pieces.piece(source)
        arriving = self._arriving.pop(source, None)
        if arriving is None:
            tag, kind = _read_header(header)
            target = self._target(source, tag, kind)
            rest = flat_bytes(target)
        else:
            tag, target, rest = arriving
        nbytes = piece.nbytes
        np.copyto(rest[:nbytes], piece)
        pieces.release(source)
        if nbytes < rest.nbytes:
            self._arriving[source] = tag, target, rest[nbytes:]
        else:
            self._deliver(source, tag, target)

    def _target(self, source: int, tag: int, kind: Kind) -> Array:
        """Return where to write a message that begins to arrive."""
        message = self._first_expected(source, tag)
        out = None if message is None else message.array
        if message is not None and out is not None and out.flags.c_contiguous and _fits(out, kind):
            message.begun = True
            return out
        return np.empty(kind[1], text_dtype(kind[0]))

    def _deliver(self, source: int, tag: int, array: Array) -> None:
        """Hand a message to the first receive that was posted for it; keep it if there is none."""
        message = self._first_expected(source, tag)
        if message is not None:
            self._unpost(message)
            message.take(array)
        else:
            self._early.setdefault((source, tag), deque()).append(array)


@lru_cache(maxsize=256)
def _header(tag: int, kind: Kind) -> bytes:
    header = json.dumps([tag, *kind]).encode()
    if len(header) > _ROOM:
        raise ValueError(
            f"the description of this array takes {len(header)} bytes, at most {_ROOM} can "
            "be sent; use a simpler dtype"
        )
    return header


@lru_cache(maxsize=256)
def _read_header(header: bytes) -> tuple[int, Kind]:
    tag, dtype, shape = json.loads(header)
    return int(tag), (str(dtype), tuple(int(n) for n in shape))


def _fits(out: Any, kind: Kind) -> bool:
    return bool(out.dtype == text_dtype(kind[0]) and out.shape == kind[1])
