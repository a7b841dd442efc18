"""A lock on a shared array, which the kernel releases when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator

from synk_shm._arrays.handle import reachable_segment
from synk_shm._arrays.segment import Array
from synk_shm._processes.process import process
from synk_shm._segments import posix
from synk_shm.exceptions import ShmError, ShmTimeoutError


@contextlib.contextmanager
def lock(a: Array, timeout_s: float | None = None) -> Iterator[None]:
    """Exclude all other holders of this lock, in all processes and threads.

    It protects nothing by itself: every writer has to take it. There is one per
    segment. It is not reentrant, is not inherited by fork, and is free as soon as its holder
    leaves the block or ends in any way.

    Args:
        a: a shared array or a view of one, whose segment still has its name.
        timeout_s: how long to wait, in seconds; None waits as long as the holder lives.

    Raises:
        ShmTimeoutError: another holder kept it for `timeout_s`.
        RuntimeError: this thread holds it already.
        ValueError: `a` is not in shared memory, or its segment is closed or unlinked.
        ShmNotFoundError: the owner has removed the segment's name.
        ShmError: the system cannot lock shared memory (macOS).
    """
    found = reachable_segment(a)
    if posix.DIRECTORY is None:
        raise ShmError(errno.ENOTSUP, "this system cannot lock shared memory", found.name)
    me = (os.getpid(), threading.get_ident())
    if found.lock_holder == me:
        raise RuntimeError(f"this thread holds the lock of {found.name} already")
    fd = found.reopen()
    process.lock_fds.add(fd)
    try:
        _acquire(fd, timeout_s, found.name)
        found.lock_holder = me
        try:
            yield
        finally:
            if os.getpid() == me[0]:
                found.lock_holder = None
                fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough while a fork has it
    finally:
        if os.getpid() == me[0]:  # a forked child has closed its copy at the fork
            process.lock_fds.discard(fd)
            os.close(fd)


def _acquire(fd: int, timeout_s: float | None, name: str) -> None:
    if timeout_s is None:
        fcntl.flock(fd, fcntl.LOCK_EX)
        return
    deadline = time.monotonic() + timeout_s
    pause_s = 0.0001
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise ShmTimeoutError(
                    errno.ETIMEDOUT, f"another process or thread held it for {timeout_s} s", name
                ) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.01)
        else:
            return
