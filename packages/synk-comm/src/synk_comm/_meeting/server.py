"""The desk where ranks without a common parent meet.

Rank 0 keeps a desk at the address; each other rank calls there, with retries until rank 0 is up::

    rank r                                    rank 0
    magic, rank, nonce          -->           (the caller's user is checked on Unix sockets)
                                <--           nonce, proof
    proof                       -->
    goods: its size and card    -->           refuses, or
                                <--           goods: welcome

The lines stay open until all ranks have joined (``meeting.py``). Goods are JSON under a seal: a
length, a keyed mark that no other message has, the text. Nothing is parsed before its mark is
right, and nothing here is ever unpickled. Strangers are heard side by side and for a few seconds
only; when there are too many, those who have been silent longest are shown out.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from typing import Any, Callable, Tuple, Union

from synk_comm._core.fabric import SLICE_S
from synk_comm._system.auth import NONCE_BYTES, PROOF_BYTES, Handshake
from synk_comm.exceptions import CommError, CommTimeout, JoinError

from .link import Goods, HungUp, Line, Patience, wait_for

_MAGIC = b"synkcom2"
_CALL = struct.Struct(f"<8sI{NONCE_BYTES}s")
_STRANGER_S = 5.0
"""How long the desk listens to a caller who has not proved itself."""
_STRANGERS = 64
"""How many such callers it listens to at once, besides two for each rank."""
_DIAL_S = 3.0
"""How long one attempt to connect may take: more than any network needs."""

Where = Union[str, Tuple[str, int]]
"""A path, or a numeric IPv4 address and a port."""


class _Visitor:
    """A caller at the desk who has not been welcomed yet."""

    def __init__(self, raw: socket.socket, key: bytes) -> None:
        self.line = Line(raw)
        self.until = time.monotonic() + _STRANGER_S
        self.rank = -1
        self.proved = False
        self._key = key
        self._handshake: Handshake | None = None

    def advance(self) -> Goods | None:
        """Hear what has come; return the card of a rank that has proved itself."""
        if self._handshake is None:
            call = self.line.take(_CALL.size)
            if call is None:
                return None
            magic, rank, nonce = _CALL.unpack(call)
            if magic != _MAGIC or not rank:
                raise JoinError("this is no rank of a group")
            handshake = Handshake(self._key, 0, rank)
            handshake.meet(nonce)
            self.rank = rank
            self._handshake = handshake
            # Fits the buffers of a connection on which nothing was sent yet.
            self.line.send(handshake.nonce + handshake.proof(), Patience(0, 0.0, None))
        if not self.proved:
            proof = self.line.take(PROOF_BYTES)
            if proof is None:
                return None
            if not self._handshake.check(proof):
                raise JoinError("wrong token")
            self.line.shake_hands(self._handshake, 0, self.rank)
            self.proved = True
        return self.line.take_goods()


class Desk:
    """Where rank 0 receives the others.

    Attributes:
        lines: to the ranks that were welcomed; the given mapping, which fills.
        cards: what they said of themselves.
    """

    def __init__(
        self,
        listener: socket.socket,
        size: int,
        key: bytes,
        patience: Patience,
        lines: dict[int, Line],
    ) -> None:
        self._listener = listener
        self._size = size
        self._key = key
        self._patience = patience
        self._visitors: dict[int, _Visitor] = {}
        self._turned_away: dict[int, str] = {}
        self.lines = lines
        self.cards: dict[int, Any] = {}
        listener.listen(max(128, 2 * size))
        listener.setblocking(False)

    def receive_all(self, look: Callable[[], None]) -> None:
        """Wait until every other rank was welcomed; ``look`` watches those who were."""
        try:
            while len(self.lines) < self._size - 1:
                wanted = dict.fromkeys(self._visitors, select.POLLIN)
                wanted[self._listener.fileno()] = select.POLLIN
                ready = wait_for(wanted)
                if self._listener.fileno() in ready:
                    self._admit()
                for fd in ready & self._visitors.keys():
                    self._hear(fd)
                self._show_out()
                look()
                self._patience.look(self._absent)
        finally:
            for visitor in self._visitors.values():
                visitor.line.close()
            self._visitors.clear()

    def _admit(self) -> None:
        for _ in range(_STRANGERS):
            try:
                raw, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # gone before it was accepted, or too many descriptors are open
                return
            try:
                check_user(raw)
            except JoinError:
                raw.close()
                continue
            visitor = _Visitor(raw, self._key)
            self._visitors[raw.fileno()] = visitor

    def _show_out(self) -> None:
        """Make room: visitors are in the order in which they came."""
        now = time.monotonic()
        surplus = len(self._visitors) - _STRANGERS - 2 * self._size
        for fd, visitor in list(self._visitors.items()):
            if surplus <= 0 and now < visitor.until:
                return
            surplus -= 1
            del self._visitors[fd]
            visitor.line.close()

    def _hear(self, fd: int) -> None:
        visitor = self._visitors[fd]
        try:
            card = visitor.advance()
        except (JoinError, CommTimeout, OSError, ValueError):
            # A stranger; or a rank with another token, which has seen that for itself.
            if 0 < visitor.rank < self._size:
                self._turned_away[visitor.rank] = (
                    "has not joined yet (a caller that said it is this rank did not prove that "
                    "it knows the token)"
                )
            del self._visitors[fd]
            visitor.line.close()
            return
        if card is not None:
            del self._visitors[fd]
            self._receive(visitor, card)

    def _receive(self, visitor: _Visitor, card: Goods) -> None:
        """Welcome a rank that has proved itself, or tell it why not."""
        rank, line = visitor.rank, visitor.line
        size = card.get("size")
        if size != self._size or rank >= self._size:
            problem = (
                f"rank {rank} was started for a group of {size}, rank 0 for one of {self._size}; "
                "give all ranks the same size, and ranks from 0 to size - 1"
            )
            line.last_word({"refused": problem})
            raise JoinError(problem)
        if rank in self.lines:
            line.last_word({"refused": f"rank {rank} has already joined this group"})
            return
        try:
            line.send_goods({"welcome": True}, self._patience)
        except HungUp:
            line.close()
            return
        self.lines[rank] = line
        self.cards[rank] = card

    def _absent(self) -> dict[int, str]:
        return {
            rank: self._turned_away.get(rank, "has not joined yet")
            for rank in range(1, self._size)
            if rank not in self.lines
        }


def call_desk(
    where: Where,
    rank: int,
    key: bytes,
    card: Callable[[socket.socket], Goods],
    patience: Patience,
) -> Line:
    """Call rank 0's desk as soon as it is there, and return when it has welcomed this rank.

    A desk that hangs up before that is called again: it may have had too many visitors.
    """
    reason = "does not listen yet"
    while True:
        raw = _dial(where, patience)
        if raw is not None:
            line = Line(raw)
            try:
                return _introduce(line, rank, key, card, patience)
            except HungUp:
                line.close()
                reason = f"listens at {where}, but hangs up: is it the same group, or a program?"
            except BaseException:
                line.close()
                raise
        patience.look(lambda reason=reason: {0: reason})  # type: ignore[misc]
        time.sleep(SLICE_S)


def _introduce(
    line: Line,
    rank: int,
    key: bytes,
    card: Callable[[socket.socket], Goods],
    patience: Patience,
) -> Line:
    check_user(line.raw)
    handshake = Handshake(key, rank, 0)
    line.send(_CALL.pack(_MAGIC, rank, handshake.nonce), patience)
    answer = line.receive(NONCE_BYTES + PROOF_BYTES, patience, "listens, but does not answer")
    handshake.meet(answer[:NONCE_BYTES])
    if not handshake.check(answer[NONCE_BYTES:]):
        raise JoinError("who listens at this address does not know the token of this group")
    line.shake_hands(handshake, rank, 0)
    line.send(handshake.proof(), patience)
    line.send_goods(card(line.raw), patience)
    while True:
        goods = line.take_goods()
        if goods is not None:
            break
        wait_for({line.fileno(): select.POLLIN})
        patience.look(lambda: {0: "listens, but does not welcome this rank"})
    if not goods.get("welcome"):
        raise JoinError(f"rank 0 refused this rank: {goods.get('refused')}")
    return line


def _dial(where: Where, patience: Patience) -> socket.socket | None:
    """Return a connection, or None if nobody listens there (yet)."""
    raw = socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET)
    try:
        raw.setblocking(False)
        code = raw.connect_ex(where)
        until = time.monotonic() + _DIAL_S
        while code in (errno.EINPROGRESS, errno.EALREADY) and time.monotonic() < until:
            if wait_for({raw.fileno(): select.POLLOUT}):
                code = raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                break
            patience.look(lambda: {0: f"cannot be reached at {where}"})
        # A port of this machine that nobody listens at may connect to itself.
        if code == 0 and raw.getsockname() != raw.getpeername():
            return raw
    except CommError:
        raw.close()
        raise
    except OSError:
        pass
    except BaseException:
        raw.close()
        raise
    raw.close()
    return None


def check_user(raw: socket.socket) -> None:
    """Raise JoinError if the other end of a Unix socket is another user's."""
    if raw.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return
    credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    if user != os.geteuid():
        raise JoinError(f"the other end belongs to user {user}, not to this one")
