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
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from synk_comm._core.calls import chain
from synk_comm._core.guard import deadline_after
from synk_comm._core.lists import as_array
from synk_comm._core.ops import Array, ReduceOp
from synk_comm._core.steps import Run, Steps
from synk_comm.abc import Communicator, Request
from synk_comm.exceptions import CommTimeout, PeerLost

from .gathering import Gathering
from .point_to_point import PointToPoint
from .reducing import Reducing

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_CLOSE_S = 1.0
"""Seconds that a call may take to end after its group."""

_Prepare = Callable[["Nonblocking"], Run]
"""Checks the arguments of a call, which is to be made by another communicator of the same ranks."""


class _Begun(Request):
    """A collective that a thread makes, or is going to make."""

    def __init__(self, kind: str, act: Callable[[], Any], steps: Steps, letters: PointToPoint):
        self._kind = kind
        self._act: Callable[[], Any] | None = act
        self._steps = steps
        self._letters = letters
        self._numpy = _numpy_settings()
        self._over = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Make the call, and keep what comes of it."""
        act, self._act = self._act, None  # with the caller's arrays
        assert act is not None  # noqa: S101 - it is run once
        try:
            # NumPy 1 counts wrongly who has other settings, if the same are set once more.
            same = self._numpy == _numpy_settings()
            with nullcontext() if same else np.errstate(**self._numpy):
                self._result = act()
        except BaseException as exc:  # noqa: BLE001 - raised where it is waited for
            for link in chain(exc):  # a traceback would keep the arrays of its frames alive
                link.__traceback__ = None
            self._error = exc
        self._over.set()

    def wait(self, timeout_s: float | None = None) -> Any:
        began = time.monotonic()
        deadline = None if timeout_s is None else deadline_after(timeout_s)
        while not self._over.is_set():
            slice_s = self._move_letters() or threading.TIMEOUT_MAX
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise CommTimeout(
                        f"rank {self._steps.rank} waited {time.monotonic() - began:.3g} s for its "
                        f"{self._kind}, which is still under way, and can be waited for again"
                    )
                slice_s = min(left, slice_s)
            self._over.wait(slice_s)
        return self._outcome()

    def test(self) -> bool:
        if not self._over.is_set():
            self._move_letters()
        if self._over.is_set():
            self._outcome()
            return True
        return False

    def _move_letters(self) -> float | None:
        if self._steps.guard.forked:
            raise self._steps.guard.refusal()
        return self._letters.move()

    def _outcome(self) -> Any:
        error = self._error
        if error is None:
            return self._result
        guard = self._steps.guard
        if isinstance(error, PeerLost) and not (guard.closed or guard.forked):
            # Who is gone may have left because of what its other group, this one, knows.
            cause = self._steps.fabric.gone(())
            if cause is not None and getattr(cause, "rank", None) != error.rank:
                error = self._error = cause
        raise guard.mark(_copied(error))

    def __repr__(self) -> str:
        return f"<Request of {self._kind}, {'done' if self._over.is_set() else 'pending'}>"


class Background:
    """The group and the thread that make the collectives which were begun.

    Args:
        child: a communicator of the same ranks; that of the thread from now on.
        owner: ends when ``child`` does; if it is dropped, the thread ends.
    """

    def __init__(self, child: Nonblocking, owner: Nonblocking) -> None:
        self.child = child
        self._steps = owner._steps
        self._guard = owner._steps.guard
        self._letters = owner._point_to_point
        self._guard.bind(child._steps.guard)
        child._steps.fabric.give_way()
        self._begun: queue.SimpleQueue[Optional[_Begun]] = queue.SimpleQueue()
        over = threading.Event()
        weakref.finalize(owner, self._begun.put, None).atexit = False
        self._thread = threading.Thread(
            target=_serve, args=(self._begun, child, over), name="synk-comm", daemon=True
        )
        # When the process ends; before the child's own finalizers, which were made earlier.
        weakref.finalize(self._thread, _finish, self._begun, child, over)
        self._thread.start()

    def begin(self, kind: str, act: Callable[[], Any]) -> Request:
        """Have a call made after those that were begun before."""
        begun = _Begun(kind, act, self._steps, self._letters)
        with self._guard:
            self._begun.put(begun)
        return begun

    def close(self, was_open: bool) -> None:
        """Leave the group when what was begun has ended, after as long as one call may take.

        Args:
            was_open: whether the owner had not ended before it was closed.
        """
        if self._guard.forked:  # without the thread
            self.child.close()
            return
        self._begun.put(None)
        try:
            self._join(min(self._steps.timeout_s, threading.TIMEOUT_MAX) if was_open else _CLOSE_S)
        finally:
            if self._thread.is_alive():
                self.child.abort("the communicator was closed while its collectives were under way")
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
    """Return what NumPy does about overflow and its like, which each thread sets for itself."""
    return {"call": np.geterrcall(), **np.geterr()}


def _serve(
    begun: queue.SimpleQueue[_Begun | None], child: Communicator, over: threading.Event
) -> None:
    try:
        for request in iter(begun.get, None):
            request.run()
            del request  # it may be the last to hold the result
        child.close()
    finally:
        over.set()


def _finish(
    begun: queue.SimpleQueue[_Begun | None], child: Nonblocking, over: threading.Event
) -> None:
    """Have the thread end, before what it uses is taken from it."""
    begun.put(None)
    if not (child._steps.guard.forked or over.wait(_CLOSE_S)):
        child.abort("the process ended while its collectives were under way")
        over.wait(_CLOSE_S)


class Nonblocking(Communicator):
    """The methods that begin a collective."""

    _steps: Steps
    _point_to_point: PointToPoint
    _reducing: Reducing
    _gathering: Gathering

    def raised(self, error: BaseException) -> bool:
        return self._steps.guard.raised(error)

    @abstractmethod
    def _begin(self, kind: str, prepare: _Prepare, *arrays: Any) -> Request:
        """Begin a call.

        Args:
            arrays: what ``prepare`` knows of the caller's.
        """

    def ibarrier(self) -> Request:
        return self._begin("barrier", lambda child: lambda _: child.barrier())

    def iall_reduce(
        self,
        x: ArrayLike | Sequence[Array] | None,
        op: str | ReduceOp = "sum",
        *,
        weight: float | None = None,
        out: Any = None,
    ) -> Request:
        return self._begin_reduction("all_reduce", x, op, None, weight, out)

    def ireduce(
        self,
        x: ArrayLike | Sequence[Array] | None,
        op: str | ReduceOp = "sum",
        root: int = 0,
        *,
        weight: float | None = None,
        out: Any = None,
    ) -> Request:
        root = self._steps.check_rank(root)
        return self._begin_reduction("reduce", x, op, root, weight, out)

    def _begin_reduction(
        self,
        kind: str,
        x: Any,
        op: str | ReduceOp,
        root: int | None,
        weight: float | None,
        out: Any,
    ) -> Request:
        def prepare(child: Nonblocking) -> Run:
            job = child._reducing.prepare(kind, x, op, root, weight, out)
            return _raising(partial(child._reducing.run, job))

        return self._begin(kind, prepare, x, out)

    def ireduce_scatter(
        self,
        x: ArrayLike | Sequence[Array],
        op: str | ReduceOp = "sum",
        *,
        weight: float | None = None,
        out: Array | None = None,
    ) -> Request:
        def prepare(child: Nonblocking) -> Run:
            return _raising(child._reducing.scatter(x, op, weight, out))

        return self._begin("reduce_scatter", prepare, x, out)

    def ibroadcast(
        self, x: Array | Sequence[Array] | complex | np.generic | None, root: int = 0
    ) -> Request:
        root = self._steps.check_rank(root)

        def prepare(child: Nonblocking) -> Run:
            if not isinstance(x, (int, float, complex, np.generic)):
                return child._gathering.broadcast(x, root)
            run = child._gathering.broadcast(as_array(x), root)
            return lambda timeout_s: run(timeout_s)[()]

        return self._begin("broadcast", prepare, x)

    def iscatter(
        self,
        xs: Sequence[ArrayLike] | Array | None,
        root: int = 0,
        *,
        out: Array | None = None,
    ) -> Request:
        root = self._steps.check_rank(root)
        self._steps.check_only_root("scatter", xs, root)

        def prepare(child: Nonblocking) -> Run:
            return child._gathering.scatter("scatter", xs, root, out)

        return self._begin("scatter", prepare, xs, out)

    def igather(
        self, x: ArrayLike | Sequence[Array] | None, root: int = 0, *, out: Any = None
    ) -> Request:
        root = self._steps.check_rank(root)

        def prepare(child: Nonblocking) -> Run:
            return child._gathering.gather("gather", x, root, out)

        return self._begin("gather", prepare, x, out)

    def iall_gather(self, x: ArrayLike | Sequence[Array] | None, *, out: Any = None) -> Request:
        def prepare(child: Nonblocking) -> Run:
            return child._gathering.gather("all_gather", x, None, out)

        return self._begin("all_gather", prepare, x, out)

    def iall_to_all(self, xs: Sequence[ArrayLike] | Array, *, out: Any = None) -> Request:
        def prepare(child: Nonblocking) -> Run:
            return child._gathering.all_to_all("all_to_all", xs, out)

        return self._begin("all_to_all", prepare, xs, out)


def _raising(run: Run) -> Run:
    """Return a reduction that raises what NumPy raised about overflow and its like."""

    def reduce(timeout_s: float | None) -> Any:
        result, accident = run(timeout_s)
        if accident is not None:
            raise accident
        return result

    return reduce
