"""Collectives that return at once: the blocking ones, in a thread and a group of their own.

The rank's own thread checks and lays out the arguments. The two groups end together:
``Guard.bind``.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from contextlib import nullcontext
from typing import Any

import numpy as np

from synk_comm._core.calls import chain
from synk_comm._core.guard import deadline_after
from synk_comm._core.requests import Request
from synk_comm._core.steps import CheckedCall, Steps
from synk_comm.exceptions import CommTimeout, PeerLost

CLOSE_S = 1.0
"""Seconds that a call may take to end after its group."""


class _BegunCollective(Request):
    """A collective that a thread makes; ``owner`` has begun it."""

    def __init__(self, kind: str, owner: Steps) -> None:
        super().__init__("of", kind)
        self._owner = owner
        self._numpy = _numpy_settings()
        self._over = threading.Event()

    def make(self, prepared: CheckedCall, steps: Steps) -> None:
        try:
            # NumPy 1 miscounts the threads with other settings if the same are set once more.
            same = self._numpy == _numpy_settings()
            with nullcontext() if same else np.errstate(**self._numpy):
                self._result = steps.make(prepared, None)
        except BaseException as exc:  # noqa: BLE001 - raised where it is waited for
            for link in chain(exc):  # a traceback would keep the arrays of its frames alive
                link.__traceback__ = None
            self._error = self._owner.guard.mark(exc)
        self._done = True
        self._over.set()

    def _go_on(self, timeout_s: float | None, *, once: bool) -> None:
        guard, began = self._owner.guard, time.monotonic()
        left_s = threading.TIMEOUT_MAX if timeout_s is None else deadline_after(timeout_s) - began
        if guard.forked and not self._done:  # the thread is the parent's
            raise guard.refusal()
        if not once and not self._over.wait(min(left_s, threading.TIMEOUT_MAX)):
            raise CommTimeout(
                f"rank {self._owner.rank} waited {time.monotonic() - began:.3g} s for its "
                f"{self._what[1]}, which is still under way, and can be waited for again"
            )
        error = self._error
        if isinstance(error, PeerLost) and not (guard.closed or guard.forked):
            # That rank may have left because its other group, this one, has ended.
            cause = self._owner.fabric.gone(())
            if cause is not None and getattr(cause, "rank", None) != error.rank:
                self._error = guard.mark(cause)


class Background(threading.Thread):
    """The thread that makes the begun calls of ``owner``, in their order, by ``child``.

    Both are ``RoundCommunicator`` objects of the same ranks. The thread ends with the owner.
    """

    def __init__(self, child: Any, owner: Any) -> None:
        super().__init__(name="synk-comm", daemon=True)
        self._child, self.steps, self._owner = child, child._steps, owner._steps
        self._owner.guard.bind(self.steps.guard)
        self.steps.fabric.give_way()
        self._begun: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.start()
        weakref.finalize(owner, self._begun.put, None).atexit = False
        # When the process ends; before the child's own finalizers, which were made earlier.
        weakref.finalize(child, self.close, CLOSE_S)

    def begin(self, kind: str, prepared: CheckedCall) -> Request:
        """Queue a call."""
        begun = _BegunCollective(kind, self._owner)
        with self._owner.guard:
            self._begun.put((begun, prepared))
        return begun

    def run(self) -> None:
        child, self._child = self._child, None
        for begun, prepared in iter(self._begun.get, None):
            begun.make(prepared, self.steps)
            del begun, prepared  # they may be the last to hold the result, and the caller's arrays
        child.close()

    def close(self, limit_s: float) -> None:
        """End after all begun calls; abort these if they take too long."""
        self._begun.put(None)
        is_here = threading.current_thread() is self  # in `watch`, or the last that had the child
        join = (lambda _: None) if is_here else self.join
        try:
            join(min(limit_s, threading.TIMEOUT_MAX))
        finally:
            if self.is_alive():
                self.steps.guard.abort(
                    "the communicator was closed while its collectives were under way"
                )
                join(CLOSE_S)
            elif self.steps.guard.forked:  # without the thread
                self.steps.guard.close()


def _numpy_settings() -> dict[str, Any]:
    """Return this thread's settings of NumPy for overflow and its like."""
    return {"call": np.geterrcall(), **np.geterr()}
