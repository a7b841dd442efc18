"""Between two ranks: arrays in pieces, messages that arrive before their ``recv``, and requests.

A message is queued, and ``_advance`` moves whatever can be moved, of all messages. It is called by
whoever waits: for one of them, or in a collective (``Fabric.advance``). A blocking call queues a
message like the others, and waits for it.

A message that arrives is for the first receive that was posted for its tag, else it is kept. No
piece of a rank is taken before something is to be received from it: the channel stays full, and
its sender waits.
"""

from __future__ import annotations

import contextlib
import json
import operator
from abc import abstractmethod
from collections import deque
from functools import lru_cache, partial
from typing import Any, Callable

import numpy as np

from synk_comm._core.calls import Kind, kind_of, text_dtype
from synk_comm._core.fabric import PIECE_HEAD_BYTES, is_of_watch
from synk_comm._core.lists import bare, contiguous, flat_bytes, typed
from synk_comm._core.ops import Array
from synk_comm._core.steps import Steps
from synk_comm.abc import Request
from synk_comm.exceptions import AbortedError, CommError, CommTimeout, MismatchError, PeerLost

_ROOM = PIECE_HEAD_BYTES - 8
_QUICK_ENTRIES = 256
_NOTHING: Array = np.empty(0, np.uint8)


class _ArrayRequest(Request):
    """One array on its way between this rank and its ``peer``.

    Attributes:
        done: whether nothing of it remains to be moved.
        begun: whether it cannot be taken back any more.
    """

    sending: bool
    done = False
    begun = False

    def __init__(self, letters: PointToPoint, peer: int) -> None:
        self._letters = letters
        self.peer = peer

    def wait(self, timeout_s: float | None = None) -> Any:
        if not self.done:
            self._letters.wait(self, timeout_s)
        return self.result()

    def test(self) -> bool:
        if not self.done:
            self._letters.test(self)
        if self.done:
            self.result()
        return self.done

    @abstractmethod
    def result(self) -> Any:
        """Return what ``wait`` returns, of a message that is done."""

    def __repr__(self) -> str:
        way = "to" if self.sending else "from"
        return f"<Request {way} rank {self.peer}, {'done' if self.done else 'pending'}>"


class _Outgoing(_ArrayRequest):
    """A message to another rank: its header, and the bytes that are not in the channel yet."""

    sending = True

    def __init__(self, letters: PointToPoint, dest: int, header: bytes, data: Array) -> None:
        super().__init__(letters, dest)
        self.header = header
        self.data = data

    def result(self) -> None:
        """Return nothing: it has gone."""


class _Expected(_ArrayRequest):
    """A message that is to be received."""

    sending = False

    def __init__(self, letters: PointToPoint, source: int, tag: int, out: Array | None) -> None:
        super().__init__(letters, source)
        self.tag = tag
        self.out = out
        self.array: Array = _NOTHING

    def take(self, array: Array) -> None:
        """Take the message that has arrived for it: ``out`` itself, or another array."""
        self.done = True
        self.array = array
        if self.out is not None and array is not self.out and _fits(self.out, kind_of(array)):
            np.copyto(self.out, array)
            self.array = self.out

    def result(self) -> Any:
        if self.out is None:
            return bare(self.array)
        if self.array is not self.out:
            dtype, shape = kind_of(self.array)
            raise MismatchError(
                f"out of recv is {self.out.dtype} {self.out.shape}, but rank {self.peer} sent "
                f"{dtype} {shape}; the message is lost",
                calls={self.peer: f"send({dtype} {shape})"},
            )
        return self.out


class PointToPoint:
    """Messages to and from single ranks."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._early: dict[tuple[int, int], deque[Array]] = {}
        self._senders: dict[Any, Callable[[Array], None]] = {}
        self._receivers: dict[Any, Callable[[Any], Array]] = {}
        self._outgoing: dict[int, deque[_Outgoing]] = {}  # by receiver
        self._expected: dict[int, deque[_Expected]] = {}  # by sender
        # By sender: the tag of a message of which some pieces have come, where it is written, and
        # the bytes of that which are still missing.
        self._arriving: dict[int, tuple[int, Array, Array]] = {}
        self._pending = 0  # messages in these queues
        self._torn = False  # a blocking call gave up half-way

    def send(self, x: Array, dest: int, tag: int, timeout_s: float | None) -> None:
        """Send one array; see ``Communicator.send``."""
        key = (dest, tag, x.dtype, x.shape)
        quick = self._senders.get(key)
        if quick is not None and timeout_s is None and not self._pending:
            quick(x)
            return
        steps = self._steps
        kind = kind_of(x)
        header = _header(_checked(tag), kind)
        message = _Outgoing(self, dest, header, flat_bytes(contiguous(x)))
        nbytes = message.data.nbytes
        self._inside(self._run, message, steps.deadline(timeout_s))
        if dest != steps.rank and nbytes <= steps.fabric.piece_bytes:
            quick = steps.fabric.sender(dest, header, kind, steps.guard, steps.timeout_s)
            _learn(self._senders, key, quick)

    def receive(self, source: int, tag: int, out: Array | None, timeout_s: float | None) -> Any:
        """Receive one array; see ``Communicator.recv``."""
        if timeout_s is None and not self._early and not self._pending:
            quick = self._receivers.get(
                (source, tag, None) if out is None else (source, tag, out.dtype, out.shape)
            )
            if quick is not None:
                return quick(out)
        message = _Expected(self, source, _checked(tag), out)
        self._inside(self._run, message, self._steps.deadline(timeout_s))
        result = message.result()
        self._learn_receiving(message)
        return result

    def begin_sending(self, x: Array, dest: int, tag: int) -> Request:
        """Begin to send one array; see ``Communicator.isend``."""
        header = _header(_checked(tag), kind_of(x))
        message = _Outgoing(self, dest, header, flat_bytes(contiguous(x)))
        self._inside(self._begin, message)
        return message

    def begin_receiving(self, source: int, tag: int, out: Array | None) -> Request:
        """Begin to receive one array; see ``Communicator.irecv``."""
        message = _Expected(self, source, _checked(tag), out)
        self._inside(self._begin, message)
        return message

    def wait(self, message: _ArrayRequest, timeout_s: float | None) -> None:
        """Wait until a message is done."""
        self._inside(self._attend, message, self._steps.deadline(timeout_s))

    def move(self) -> float | None:
        """Move messages on while this rank waits for what is none; return seconds until the next
        time, None if no message is under way to or from another rank."""
        fabric = self._steps.fabric

        def look() -> bool:
            fabric.look()
            return True

        for sending, queues in ((True, self._outgoing), (False, self._expected)):
            peer = next((peer for peer in list(queues) if peer != fabric.rank), None)
            if peer is not None:
                attend = partial(fabric.attend, look, peer, sending=sending)
                try:
                    self._inside(attend, self._steps.deadline(None))
                except CommError as exc:
                    if is_of_watch(exc):
                        raise
                    # What ends this group ends the other.
                return fabric.slice_s
        return None

    def test(self, message: _ArrayRequest) -> None:
        """Move what can be moved; raise if a message cannot be done any more."""
        self._inside(self._try, message)

    def finish(self) -> None:
        """Move everything out before this rank leaves, if there is somebody to take it.

        Raises:
            CommTimeout: a rank has not taken its messages.
        """
        guard = self._steps.guard
        if not self._outgoing:
            return
        try:
            guard.__enter__()
        except CommError:  # the group has ended, or another thread is inside
            return
        try:
            deadline = self._steps.deadline(None)
            for last in [queue[-1] for queue in self._outgoing.values()]:
                with contextlib.suppress(AbortedError, PeerLost):
                    self._attend(last, deadline)
        finally:
            guard.leave(None, in_step=True)

    def forget(self) -> None:
        """Drop what keeps alive the memory of the channels, and the user's arrays."""
        for known in (self._senders, self._receivers, self._outgoing, self._expected):
            known.clear()
        self._arriving.clear()

    # -- one call, from when it enters until it leaves --------------------------------------

    def _inside(self, act: Callable[..., None], *args: Any) -> None:
        guard = self._steps.guard
        guard.__enter__()
        try:
            act(*args)
        except BaseException as exc:
            guard.leave(exc, in_step=self._is_calm(exc))
            raise
        guard.leave(None, in_step=True)

    def _is_calm(self, exc: BaseException) -> bool:
        """Return whether an exception of a call has left the two ranks in step."""
        return isinstance(exc, MismatchError) or (isinstance(exc, CommTimeout) and not self._torn)

    def _run(self, message: _ArrayRequest, deadline: float) -> None:
        """Send or receive a message; take it back if the time is up before it has begun."""
        self._post(message)
        try:
            self._attend(message, deadline)
        except CommTimeout:
            self._torn |= message.begun
            if not message.begun:
                self._unpost(message)
            raise

    def _begin(self, message: _ArrayRequest) -> None:
        self._post(message)
        self._move(message)
        if self._pending:
            self._steps.fabric.advance = self._advance

    def _try(self, message: _ArrayRequest) -> None:
        self._move(message)
        rank, peer = self._steps.rank, message.peer
        if not message.done and peer != rank and self._steps.fabric.gone((peer,)) is not None:
            # What it sent last, or the reason of its end, may be on the way here.
            self._attend(message, self._steps.deadline(None))

    def _move(self, message: _ArrayRequest) -> None:
        """Move what can be moved now."""

        def once() -> bool:
            self._advance()
            return True

        if not message.done and message.peer != self._steps.rank:
            attend, deadline = self._steps.fabric.attend, self._steps.deadline(None)
            attend(once, message.peer, deadline, sending=message.sending)

    def _attend(self, message: _ArrayRequest, deadline: float) -> None:
        """Wait until a message is done."""
        rank, peer, fabric = self._steps.rank, message.peer, self._steps.fabric
        if message.done:
            return
        if peer == rank:
            raise CommTimeout(
                f"rank {rank} has sent itself nothing that this recv could take",
                missing={rank: "is the one that waits"},
            )
        is_alone = self._pending == 1

        def is_done() -> bool:
            self._advance()
            return message.done

        def is_done_alone() -> bool:  # the same, quicker
            while not message.done and is_ready(peer):
                move()
            return message.done

        is_ready, move = (
            (fabric.has_place, partial(self._put, message))
            if type(message) is _Outgoing
            else (fabric.has_come, partial(self._take_in, peer))
        )

        fabric.advance = None if is_alone else self._advance
        try:
            fabric.attend(
                is_done_alone if is_alone else is_done, peer, deadline, sending=message.sending
            )
        finally:
            if self._pending:
                fabric.advance = self._advance

    # -- the queues -------------------------------------------------------------------------

    def _post(self, message: _ArrayRequest) -> None:
        """Put a message into its queue, or do at once what needs no other rank."""
        rank, peer = self._steps.rank, message.peer
        queues: dict[int, Any] = self._outgoing
        if type(message) is _Expected:  # quicker than isinstance, whose class is abstract
            queues = self._expected
            early = self._early.get((peer, message.tag))
            if early:
                message.take(early.popleft())
                if not early:
                    del self._early[peer, message.tag]
                return
        elif type(message) is _Outgoing and peer == rank:
            tag, (dtype, shape) = _read_header(message.header)
            self._deliver(rank, tag, typed(message.data.copy(), text_dtype(dtype), shape))
            message.done = True
            return
        queues.setdefault(peer, deque()).append(message)
        self._pending += 1

    def _unpost(self, message: _ArrayRequest) -> None:
        """Take a message out of its queue."""
        queues: dict[int, Any] = self._outgoing if message.sending else self._expected
        queue = queues[message.peer]
        queue.remove(message)
        if not queue:
            del queues[message.peer]
        self._pending -= 1
        if not self._pending:
            self._steps.fabric.advance = None

    def _first_expected(self, source: int, tag: int) -> _Expected | None:
        """Return the receive that is to get the next message of a tag, if one was posted."""
        for message in self._expected.get(source, ()):
            if message.tag == tag:
                return message
        return None

    def _advance(self) -> bool:
        """Move what can be moved now; inside ``Fabric.attend`` or as ``Fabric.advance`` only.

        Returns:
            Whether there was anything to move.
        """
        fabric, moved = self._steps.fabric, False
        for dest in list(self._outgoing):
            while dest in self._outgoing and fabric.has_place(dest):
                self._put(self._outgoing[dest][0])
                moved = True
        for source in list(self._expected):
            while source in self._expected and source != fabric.rank and fabric.has_come(source):
                self._take_in(source)
                moved = True
        return moved

    def _put(self, message: _Outgoing) -> None:
        """Put the next piece of a message, the first of its queue, into the channel."""
        fabric, data = self._steps.fabric, message.data
        piece = data[: fabric.piece_bytes]
        fabric.put(message.peer, b"" if message.begun else message.header, piece)
        message.begun = True
        if piece.nbytes < data.nbytes:
            message.data = data[piece.nbytes :]
        else:
            message.data = _NOTHING  # the array is the user's again
            message.done = True
            self._unpost(message)

    def _take_in(self, source: int) -> None:
        """Take the next piece out of the channel."""
        fabric = self._steps.fabric
        header, piece = fabric.piece(source)
        arriving = self._arriving.pop(source, None)
        if arriving is None:
            tag, kind = _read_header(header)
            target = self._target(source, tag, kind)
            rest = flat_bytes(target)
        else:
            tag, target, rest = arriving
        nbytes = piece.nbytes
        np.copyto(rest[:nbytes], piece)
        fabric.release(source)
        if nbytes < rest.nbytes:
            self._arriving[source] = tag, target, rest[nbytes:]
        else:
            self._deliver(source, tag, target)

    def _target(self, source: int, tag: int, kind: Kind) -> Array:
        """Return where to write a message that begins to arrive."""
        message = self._first_expected(source, tag)
        if message is not None:
            out = message.out
            if out is not None and out.flags.c_contiguous and _fits(out, kind):
                message.begun = True
                return out
        return np.empty(kind[1], text_dtype(kind[0]))

    def _deliver(self, source: int, tag: int, array: Array) -> None:
        """Give a message to the first receive that was posted for it; keep it if there is none."""
        message = self._first_expected(source, tag)
        if message is not None:
            self._unpost(message)
            message.take(array)
        else:
            self._early.setdefault((source, tag), deque()).append(array)

    # -- shortcuts --------------------------------------------------------------------------

    def _learn_receiving(self, message: _Expected) -> None:
        steps, source, tag, array = self._steps, message.peer, message.tag, message.array
        if source == steps.rank or array.nbytes > steps.fabric.piece_bytes:
            return
        kind = kind_of(array)

        def otherwise(out: Any, deadline: float) -> Any:
            self._receivers.pop((source, tag, None), None)
            message = _Expected(self, source, tag, out)
            self._run(message, deadline)
            return message.result()

        quick = steps.fabric.receiver(
            source, _header(tag, kind), kind, steps.guard, steps.timeout_s, otherwise, self._is_calm
        )
        _learn(self._receivers, (source, tag, None), quick)
        _learn(self._receivers, (source, tag, array.dtype, array.shape), quick)


def _learn(known: dict[Any, Any], key: Any, quick: Any) -> None:
    if quick is not None:
        if len(known) >= _QUICK_ENTRIES:
            known.clear()
        known[key] = quick


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


def _checked(tag: int) -> int:
    number = operator.index(tag)
    if number < 0:
        raise ValueError(f"tag must be a number from 0, got {tag!r}")
    return number


def _fits(out: Any, kind: Kind) -> bool:
    return bool(out.dtype == text_dtype(kind[0]) and out.shape == kind[1])
