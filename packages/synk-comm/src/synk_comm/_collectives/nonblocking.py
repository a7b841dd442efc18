"""Collectives that return at once: the blocking ones, in a thread and a group of their own.

The first of them splits off a group of the same ranks, and starts a thread that makes this group's
calls, one after the other, in the order in which they were begun. So they have the blocking calls'
comparison, time limits, errors and results, and go on while the rank computes. Arguments are
checked, and laid out for travel, where the call is begun.

The two groups end together: ``Guard.bind``.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from contextlib import nullcontext, suppress
from copy import copy
from functools import partial
from typing import Any, Callable

import numpy as np

from synk_comm._core.calls import chain
from synk_comm._core.guard import deadline_after
from synk_comm._core.steps import CheckedCall, Result, Steps
from synk_comm.abc import Request
from synk_comm.exceptions import CommTimeout, PeerLost

_CLOSE_S = 1.0
"""Seconds that a call may take to end after its group."""


class _Begun(Request):
    """A collective that a thread makes, or is going to make."""

    def __init__(self, kind: str, run: Callable[[], Result], steps: Steps) -> None:
        self._kind = kind
        self._run: Callable[[], Result] | None = run
        self._steps = steps
        self._numpy = _numpy_settings()
        self._over = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def make(self) -> None:
        """Make the call, and keep its result or error."""
        run, self._run = self._run, None  # with the caller's arrays
        assert run is not None  # noqa: S101 - it is made once
        try:
            # NumPy 1 miscounts the threads with other settings if the same are set once more.
            same = self._numpy == _numpy_settings()
            with nullcontext() if same else np.errstate(**self._numpy):
                self._result, accident = run()
            if accident is not None:
                raise accident
        except BaseException as exc:  # noqa: BLE001 - raised where it is waited for
            for link in chain(exc):  # a traceback would keep the arrays of its frames alive
                link.__traceback__ = None
            self._error = exc
        self._over.set()

    def wait(self, timeout_s: float | None = None) -> Any:
        if timeout_s is not None:
            deadline_after(timeout_s)
        if not self._over.is_set():
            self._refuse_if_forked()
            began = time.monotonic()
            limit_s = threading.TIMEOUT_MAX if timeout_s is None else timeout_s
            if not self._over.wait(min(limit_s, threading.TIMEOUT_MAX)):
                raise CommTimeout(
                    f"rank {self._steps.rank} waited {time.monotonic() - began:.3g} s for its "
                    f"{self._kind}, which is still under way, and can be waited for again"
                )
        return self._outcome()

    def test(self) -> bool:
        if self._over.is_set():
            self._outcome()
            return True
        self._refuse_if_forked()
        return False

    def _refuse_if_forked(self) -> None:
        if self._steps.guard.forked:  # the thread is the parent's
            raise self._steps.guard.refusal()

    def _outcome(self) -> Any:
        error = self._error
        if error is None:
            return self._result
        guard = self._steps.guard
        if isinstance(error, PeerLost) and not (guard.closed or guard.forked):
            # That rank may have left because its other group, this one, has ended.
            cause = self._steps.fabric.gone(())
            if cause is not None and getattr(cause, "rank", None) != error.rank:
                error = self._error = cause
        raise guard.mark(_copied(error))

    def __repr__(self) -> str:
        return f"<Request of {self._kind}, {'done' if self._over.is_set() else 'pending'}>"


class Background:
    """The group and the thread that make the collectives which were begun.

    Args:
        child: a ``RoundCommunicator`` of the same ranks; that of the thread from now on.
        owner: another one, which ends when ``child`` does; if it is dropped, the thread ends.

    Attributes:
        steps: of ``child``.
    """

    def __init__(self, child: Any, owner: Any) -> None:
        self._child = child
        self.steps: Steps = child._steps
        self._owner: Steps = owner._steps
        self._owner.guard.bind(self.steps.guard)
        self.steps.fabric.give_way()
        self._begun: queue.SimpleQueue[_Begun | None] = queue.SimpleQueue()
        over = threading.Event()
        weakref.finalize(owner, self._begun.put, None).atexit = False
        self._thread = threading.Thread(
            target=_serve, args=(self._begun, child, over), name="synk-comm", daemon=True
        )
        # When the process ends; before the child's own finalizers, which were made earlier.
        weakref.finalize(self._thread, _finish, self._begun, child, over)
        self._thread.start()

    def begin(self, kind: str, prepared: CheckedCall) -> Request:
        """Make a call after those that were begun before."""
        begun = _Begun(kind, partial(self.steps.make, prepared, None), self._owner)
        with self._owner.guard:
            self._begun.put(begun)
        return begun

    def close(self, was_open: bool) -> None:
        """Leave the group when all begun calls have ended, after at most the time of one call.

        Args:
            was_open: whether the owner had not ended before it was closed.
        """
        if self._owner.guard.forked:  # without the thread
            self._child.close()
            return
        self._begun.put(None)
        try:
            self._join(min(self.steps.timeout_s, threading.TIMEOUT_MAX) if was_open else _CLOSE_S)
        finally:
            if self._thread.is_alive():
                self._child.abort(
                    "the communicator was closed while its collectives were under way"
                )
                self._join(_CLOSE_S)

    def _join(self, limit_s: float) -> None:
        if threading.current_thread() is not self._thread:  # which may be in `watch`
            self._thread.join(limit_s)


def _copied(error: BaseException) -> BaseException:
    """Return an error to be raised in place of one that is kept: the traceback of that would keep
    the arrays of all frames that it passes alive."""
    with suppress(Exception):  # some cannot be copied
        copied = copy(error)
        copied.__cause__ = error.__cause__
        return copied
    return error


def _numpy_settings() -> dict[str, Any]:
    """Return NumPy's settings for overflow and its like, which each thread has of its own."""
    return {"call": np.geterrcall(), **np.geterr()}


def _serve(begun: queue.SimpleQueue[_Begun | None], child: Any, over: threading.Event) -> None:
    try:
        for request in iter(begun.get, None):
            request.make()
            del request  # it may be the last to hold the result
        child.close()
    finally:
        over.set()


def _finish(begun: queue.SimpleQueue[_Begun | None], child: Any, over: threading.Event) -> None:
    """End the thread, before the memory that it uses is freed."""
    begun.put(None)
    if not (child._steps.guard.forked or over.wait(_CLOSE_S)):
        child.abort("the process ended while its collectives were under way")
        over.wait(_CLOSE_S)
