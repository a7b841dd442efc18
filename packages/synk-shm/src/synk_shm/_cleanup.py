"""What this process holds, and how it lets go: at exit, after a fork, when arrays die.

The one mutable module state of the package, `process`, lives here. It is armed by the
first segment of a process, not by ``import synk_shm``: a process without shared arrays
has nothing to clean up, and importing multiprocessing takes longer than the rest.

Finalizers may run at any moment, inside any allocation of any thread. Therefore `leave`
only queues its work when the lock is taken, and whoever holds the lock does the work.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Protocol

from synk_shm import _session


class Owner(Protocol):
    """What may hold names that have to be removed at exit."""

    def remove_owned_names(self) -> None: ...


class _Membership:
    """This process's place in one family: a lock, and how many segments need it."""

    __slots__ = ("count", "fd")

    def __init__(self) -> None:
        self.fd: int | None = None
        self.count = 0


class Process:
    """The families this process belongs to, the names it owns, the locks it holds."""

    def __init__(self) -> None:
        self.home = ""
        # Not weak: late in the exit Python stops calling finalizers, while threads of
        # multiprocessing's queues still drop arrays. `_at_exit` must find those here.
        self.owners: set[Owner] = set()
        self.lock_fds: set[int] = set()
        self._memberships: dict[str, _Membership] = {}
        self._leaving: collections.deque[str] = collections.deque()
        self._lock = threading.Lock()
        self._arming = threading.Lock()
        self._armed = False

    def arm(self) -> None:
        """Prepare for shared arrays, once: exit, fork, multiprocessing; sweep the dead."""
        if self._armed:
            return
        with self._arming:
            self._arm()

    def _arm(self) -> None:
        if self._armed:  # another thread was faster
            return
        from multiprocessing import util

        from synk_shm import _reduction

        self.home = _session.home_family()
        _reduction.register()
        os.register_at_fork(after_in_child=self._after_fork)
        # multiprocessing forgets finalizers in its forked children, then calls these.
        util.register_after_fork(self, Process._finalize_at_exit)
        self._finalize_at_exit()
        self._armed = True
        self.enter(self.home)  # for good, and before the sweep: its own family is alive
        with contextlib.suppress(OSError):  # another program's trouble is not this one's
            _session.sweep_all()

    def enter(self, family: str) -> None:
        """Count one more segment of a family, and keep the family alive meanwhile."""
        with self._locked():
            member = self._memberships.get(family)
            if member is None:
                member = self._memberships[family] = _Membership()
            home = family == self.home
            if member.fd is None or (home and not _session.is_linked(member.fd)):
                # Not there yet, or taken away by some cleaner of temporary files.
                lost, member.fd = member.fd, _session.hold(family, create=home)
                if lost is not None:
                    os.close(lost)
            member.count += 1

    def belongs_to(self, family: str) -> bool:
        """Whether this process keeps that family alive as one of its own members."""
        return self._armed and family == self.home and family in self._memberships

    def leave(self, family: str) -> None:
        """Take back one `enter`. The last one out of a dead family removes what it left."""
        self._leaving.append(family)
        self._drain()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            yield
        self._drain()

    def _drain(self) -> None:
        while self._leaving and self._lock.acquire(blocking=False):
            try:
                while self._leaving:
                    self._leave(self._leaving.popleft())
            finally:
                self._lock.release()

    def _leave(self, family: str) -> None:
        member = self._memberships.get(family)
        if member is None:
            return
        member.count -= 1
        if member.count <= 0 and family != self.home:
            del self._memberships[family]
            self._release(family, member)

    def _release(self, family: str, member: _Membership) -> None:
        if member.fd is not None:
            if family == self.home and _has_parent():
                _session.postpone(family, member.fd)
            os.close(member.fd)
            with contextlib.suppress(OSError):  # runs where nobody could catch it
                _session.sweep(family)

    def _finalize_at_exit(self) -> None:
        """Run `_at_exit` after multiprocessing has joined its children and queues.

        Its forked children leave by os._exit, without atexit; these finalizers they run.
        """
        from multiprocessing import util

        util.Finalize(None, self._at_exit, exitpriority=-100)

    def _at_exit(self) -> None:
        for owner in list(self.owners):
            with contextlib.suppress(OSError):
                owner.remove_owned_names()
        memberships, self._memberships = self._memberships, {}
        for family, member in memberships.items():
            self._release(family, member)

    def _after_fork(self) -> None:
        """In a forked child: locks may be held by threads that do not exist here."""
        self._lock = threading.Lock()
        self._arming = threading.Lock()
        held, self.lock_fds = self.lock_fds, set()
        for fd in held:
            os.close(fd)  # a lock belongs to its file, which parent and child share
        self._finalize_at_exit()


def _has_parent() -> bool:
    """Whether a process of multiprocessing that started this one may expect its messages."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    return parent is not None and parent.is_alive()


process = Process()
