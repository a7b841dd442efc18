"""Entry to collectives, and the end of a group by an exception."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from typing import TypeVar

from synk_comm.exceptions import ClosedError, CommError, EndOfGroup, MisuseError, PeerLost

from .calls import shorten
from .fabric import Endable, aborted, again, is_in_step, is_of_watch

DEFAULT_TIMEOUT_S = 300.0
"""Seconds that a call may take by default."""

_Raised = TypeVar("_Raised", bound=BaseException)
_RAISED_BY = "_raised_by"
_CLOSE_S = 1.0
_NAP_S = 0.001


class Guard:
    """The only way into a collective: ``with guard: ...``.

    An exception that leaves the ranks out of step ends the group.

    ``lock`` holds one key while a thread may enter: ``lock.pop()``, which is atomic, is all that a
    shortcut does. ``refusal`` says why the lock is empty.
    """

    def __init__(self, fabric: Endable) -> None:
        self.lock: list[None] = [None]
        self._kept: list[None] = []  # the key, once no thread may enter any more
        self._fabric = fabric
        self.forked = False  # whether this is a forked child's copy
        self.closed = False
        self._ended: CommError | None = None
        self.token = object()  # marks the errors that it raises; a pickled one loses it
        self._twin: Guard | None = None
        _guards.add(self)

    def bind(self, other: Guard) -> None:
        """Make two groups of the same ranks end together."""
        self._twin, other._twin = other, self

    def __enter__(self) -> None:
        try:
            self.lock.pop()
        except IndexError:
            raise self.refusal() from None
        try:
            ended = self.ended()
        except BaseException:  # an interrupt, such as Ctrl-C
            self.lock.append(None)
            raise
        if ended is not None:
            self._kept.append(None)
            raise ended

    def __exit__(self, _: object, exc: BaseException | None, traceback: object) -> None:
        self.leave(exc, in_step=exc is None or is_in_step(exc))

    def leave(self, exc: BaseException | None, *, in_step: bool) -> None:
        """Return the key; first end the group if the exception left the ranks out of step."""
        try:
            if exc is not None:
                self.mark(exc)
                if not in_step or is_of_watch(exc):
                    self._end(exc)
        finally:  # no call here, at whose start an interrupt could be raised: the key would be lost
            is_open = self._ended is None and not self.closed and not self.forked
            (self.lock if is_open else self._kept).append(None)

    def refusal(self) -> CommError:
        """Return why no thread may enter."""
        if self.forked:
            return MisuseError(
                "this communicator belongs to the parent process; a child made by os.fork() "
                "must join a group of its own"
            )
        return self.ended() or MisuseError(
            "another thread is inside a collective of this communicator; "
            "use one thread at a time, or one group per thread"
        )

    def mark(self, exc: _Raised) -> _Raised:
        """Mark an exception as raised by this guard, and return it."""
        exc.__dict__[_RAISED_BY] = self.token
        return exc

    def raised(self, exc: BaseException) -> bool:
        """Return whether this guard raised it."""
        return exc.__dict__.get(_RAISED_BY) is self.token

    def ended(self) -> CommError | None:
        """Return a fresh error if the communicator cannot be used any more."""
        if self.closed:
            return self.mark(ClosedError("this communicator is closed"))
        ended = self._ended or self._fabric.failure()
        if ended is None:
            return None
        self._ended = ended
        return self.mark(again(ended))

    @property
    def state(self) -> str:
        """``open``, ``closed``, or why the group ended."""
        if self.closed:
            return "closed"
        if self.forked:
            return "of the parent process"
        ended = self.ended()
        if isinstance(ended, PeerLost):
            return f"lost rank {ended.rank}"
        return "open" if ended is None else "aborted"

    def abort(self, reason: str) -> None:
        """End the group for all ranks."""
        if self.closed or self.forked:
            return
        reason = shorten(str(reason), 3000)
        twin, self._twin = self._twin, None
        if twin is not None:  # first: other threads leave at the own end, and may close it
            twin._twin = None
            twin.abort(reason)
        if self._ended is None:
            self._ended = aborted(self._fabric.rank, reason)
        self._shut()
        self._fabric.abort(reason)

    def close(self) -> None:
        """Leave the group once; first abort the collective of a thread that is inside."""
        if self.closed:
            return
        if self.forked:
            self.closed = True
            self._fabric.drop()
            return
        self._shut()
        if not self._kept:
            self.abort("the communicator was closed by another thread")
            deadline = time.monotonic() + _CLOSE_S
            while not self._kept:
                if self.closed or time.monotonic() > deadline:
                    return  # its memory may be in use there: the garbage collector frees it
                time.sleep(_NAP_S)
        try:
            self._kept.pop()
        except IndexError:  # another thread is closing it
            return
        self.closed = True
        self._fabric.close()

    def _shut(self) -> None:
        """Remove the key from the lock; a thread inside has it, and keeps it at its end."""
        with contextlib.suppress(IndexError):
            self._kept.append(self.lock.pop())

    def _end(self, exc: BaseException) -> None:
        if is_of_watch(exc) or not isinstance(exc, EndOfGroup):
            self.abort(f"{type(exc).__name__}: {exc}")
            return
        self._note(exc)
        if self._twin is not None and self._twin.ended() is None:
            self._twin._note(exc)
            self._twin._shut()

    def _note(self, exc: EndOfGroup) -> None:
        """Note the end of the group; inform the others if they may not know it."""
        self._ended = again(exc)
        if isinstance(exc, PeerLost) and exc.rank >= 0:
            self._fabric.lose(exc.rank)
        elif exc.rank == self._fabric.rank:  # it has aborted the group that this one comes from
            self._fabric.abort(exc.reason)


_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


def _disown_all() -> None:
    """In a forked child, refuse all calls of the parent's communicators."""
    for guard in list(_guards):
        guard.forked = True
        guard._shut()


os.register_at_fork(after_in_child=_disown_all)


def deadline_after(timeout_s: float) -> float:
    """Return the end, on the monotonic clock, of a wait that starts now."""
    if not timeout_s > 0:
        raise ValueError(f"timeout_s must be positive, got {timeout_s!r}")
    return time.monotonic() + timeout_s
