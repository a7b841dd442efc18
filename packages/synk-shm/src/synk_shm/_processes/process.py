"""The state of this process, and its release: at exit, after a fork, when arrays are freed.

`process` is the one mutable state of the package. The first segment of a process arms it, not
``import synk_shm``: the import of multiprocessing takes longer than the rest.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from synk_shm._processes import families
from synk_shm._segments import naming

_CHECK_EVERY_S = 0.1  # other programs may remove lock files; a check each time would cost a tenth


class _Membership:
    """The membership of this process in a family: a lock, and how many segments need it."""

    fd: int | None = None
    count = 0


class ProcessState:
    """The families this process belongs to, and the names it owns."""

    def __init__(self) -> None:
        self.home = ""  # its family, once it is armed
        # The `Segment`s by nonce and read-only flag, for a second attach, and for their names at
        # exit. No weak references: late in the exit Python calls no finalizers, while threads of
        # multiprocessing's queues still drop arrays.
        self.mapped: dict[tuple[bytes, bool], Any] = {}
        self.at_first: Callable[[], None] = lambda: None  # called before the first segment
        self._memberships: dict[str, _Membership] = {}
        self._leaving: collections.deque[str] = collections.deque()
        self._lock = threading.Lock()
        self._arming = threading.Lock()
        self._ended = False
        self._inherits = False
        self._find_parent: Callable[[], Any] = lambda: None
        self._check_at = self._send_check_at = -math.inf
        self._user = os.geteuid()
        self._other_users: dict[int, int] = {}

    def ready(self, named: bool = True) -> None:
        """Prepare this process for segments, and check its lock file every tenth of a second.

        Segments without names need no lock file, and leave none when the process is killed.
        """
        if time.monotonic() >= self._check_at or os.geteuid() != self._user:
            with self._arming:
                if not self.home:
                    self._arm(named)
                if named:
                    self._hold_home()
                    self._check_at = time.monotonic() + _CHECK_EVERY_S

    def _arm(self, named: bool) -> None:
        """Prepare for shared arrays, once: exit, fork, multiprocessing; sweep dead families."""
        from multiprocessing import parent_process, util

        self._find_parent = parent_process  # nothing can be imported late in the exit
        self.at_first()
        os.register_at_fork(after_in_child=self._after_fork)
        # multiprocessing forgets finalizers in its forked children, then calls these.
        util.register_after_fork(self, ProcessState._finalize_at_exit)
        self._finalize_at_exit()
        self.home = families.home_family()
        # In a handler of atexit: Python does not call finalizers registered now.
        self._ended = not threading.main_thread().is_alive()
        with contextlib.suppress(OSError):  # no directory, or a file of another program fails
            if named:
                self._hold_home()  # before the sweep: its own family is alive
            families.sweep_all()

    def _hold_home(self) -> None:
        """Keep the home family alive: take its lock, again if the file was removed."""
        with self._locked():
            member = self._memberships.setdefault(self.home, _Membership())
            user = os.geteuid()
            if user != self._user:  # each user has a file; the other one stays locked, too
                if member.fd is not None:
                    self._other_users[self._user] = member.fd
                self._user, member.fd = user, self._other_users.pop(user, None)
            self._renew(member)

    def _renew(self, member: _Membership) -> None:
        if member.fd is None or not os.fstat(member.fd).st_nlink:
            lost, member.fd = member.fd, families.hold(self.home, create=True)
            if lost is not None:
                os.close(lost)
                self._inherits = False  # a parent that forked this process may hold the old one

    def enter(self, family: str) -> tuple[str, ...]:
        """Keep a family alive for one more segment; return the families to `leave` after it.

        The home family is held until the exit, others while their segments are mapped.
        """
        if family == self.home:
            return ()
        with self._locked():
            member = self._memberships.setdefault(family, _Membership())
            if member.fd is None:
                member.fd = families.hold(family, create=False)
            member.count += 1
        return (family,)

    def belongs_to(self, family: str) -> bool:
        """Return whether this process keeps that family alive as one of its own members."""
        return family == self.home and family in self._memberships

    def sending(self) -> None:
        """Grant the grace of README.md for a message to a process that holds no lock yet."""
        if time.monotonic() >= self._send_check_at:
            self._send_check_at = time.monotonic() + _CHECK_EVERY_S
            member = self._memberships.get(self.home)
            if member is not None and member.fd is not None and self._is_awaited():
                families.postpone_if_alone(member.fd)

    def forget(self, segment: object, key: tuple[bytes, bool]) -> None:
        """Remove a segment that is no longer mapped here."""
        if self.mapped.get(key) is segment:
            self.mapped.pop(key, None)  # another thread may have mapped and dropped it again
        if self._ended and not self.mapped:
            self._leave_all()  # used by a handler of atexit that ran after ours

    def leave(self, family: str) -> None:
        """Reverse one `enter`. The last member of a family that leaves removes its names."""
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
                    family = self._leaving.popleft()
                    member = self._memberships.get(family, _Membership())
                    member.count -= 1
                    if member.count <= 0:
                        self._memberships.pop(family, None)
                        self._release(family, member)
            finally:
                self._lock.release()

    def _release(self, family: str, member: _Membership) -> None:
        if member.fd is None:
            return
        is_home = has_names = family == self.home
        with contextlib.suppress(OSError):  # no caller could catch it
            names = families.names_of_user() if is_home else []
            has_names = any(naming.family_of(name) == family for name, _ in names)
            if has_names:
                self._renew(member)  # so that the last messages are not swept
        awaited = is_home and self._is_awaited()
        if awaited and has_names:
            families.postpone_if_alone(member.fd)
        os.close(member.fd)
        with contextlib.suppress(OSError):
            families.sweep(family, at_once=is_home and not awaited)

    def _is_awaited(self) -> bool:
        """Return whether a process outside of the family may still receive messages of this one.

        That is its parent by multiprocessing, unless that forked it with the family's lock, and
        holds this lock, too.
        """
        parent = None if self._inherits else self._find_parent()
        if parent is None:
            return False
        with contextlib.suppress(ValueError):  # a worker of loky has no sentinel of its parent
            if not parent.is_alive():
                return False
        try:  # children forked later keep the pipe open whose end is the sign of its end
            os.kill(parent.pid, 0)
        except OSError as error:
            return error.errno == errno.EPERM
        return True

    def _finalize_at_exit(self) -> None:
        from multiprocessing import util

        util.Finalize(None, self._at_exit, exitpriority=-100)

    def _at_exit(self) -> None:
        self._ended = True
        for mapped in list(self.mapped.values()):
            with contextlib.suppress(OSError):
                mapped.remove_owned_names()
        self._leave_all()

    def leave_families(self) -> None:
        """Release all locks, and nothing else: see `synk_shm.leave`."""
        with self._locked():
            memberships, self._memberships = self._memberships, {}
            self._inherits, self._check_at = False, -math.inf
            for member in memberships.values():
                if member.fd is not None:
                    os.close(member.fd)

    def _leave_all(self) -> None:
        self._check_at = -math.inf
        memberships, self._memberships = self._memberships, {}
        for family, member in memberships.items():
            self._release(family, member)

    def _after_fork(self) -> None:
        """Replace locks in a forked child: threads that do not exist there may hold them."""
        self._lock = threading.Lock()
        self._arming = threading.Lock()
        self._inherits = self.home in self._memberships
        for mapped in list(self.mapped.values()):
            mapped.disown()
        self._finalize_at_exit()


process = ProcessState()
