"""Memory that several processes share and that has no name, so that nothing can be left over."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Iterator

_LARGE = 1 << 26


def _available() -> int | None:
    """Return how many bytes this machine and this container still have, if that can be known."""
    found = []
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        found.append(int(fields["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        pass
    try:
        with (
            open("/sys/fs/cgroup/memory.max") as limit,
            open("/sys/fs/cgroup/memory.current") as current,
        ):
            found.append(int(limit.read()) - int(current.read()))
    except (OSError, ValueError):  # no such files, or "max"
        pass
    return min(found) if found else None


def anonymous_memory(nbytes: int, sparse: int = 0) -> int:
    """Return a descriptor (not inheritable) of ``nbytes`` of zeroed shared memory.

    On Linux a memfd, which counts as memory of this process and is not bound by the size of
    /dev/shm; elsewhere a file that is unlinked before it is used. All of it but the last
    ``sparse`` bytes is allocated here: a full memory is a MemoryError now, not a SIGBUS later.
    """
    if sys.platform == "linux":
        fd = os.memfd_create("synk-comm", os.MFD_CLOEXEC)
        os.fchmod(fd, 0o600)  # they begin as everybody's; only /proc keeps others away then
    else:
        fd, path = tempfile.mkstemp(prefix="synk-comm-")
        os.unlink(path)
    try:
        with memory_errors(nbytes):
            os.ftruncate(fd, nbytes)
        allocate(fd, 0, nbytes - sparse)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def memory_errors(nbytes: int) -> Iterator[None]:
    """Raise MemoryError, with the cure, in place of a system's error that means the same."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise
        raise _no_room(nbytes, str(exc)) from exc


def _no_room(nbytes: int, why: str) -> MemoryError:
    return MemoryError(
        f"no room for {nbytes / 2**20:.1f} MB of shared memory for a group of ranks: {why}; "
        "free some, or raise this container's limit, or ulimit -v, or for large files ulimit -f"
    )


def allocate(fd: int, start: int, nbytes: int) -> None:
    """Make sure that there is memory for a part of a file; MemoryError if not."""
    if nbytes > _LARGE:
        # The kernel would go on until it has to kill a process.
        available = _available()
        if available is not None and nbytes > available:
            raise _no_room(nbytes, f"{available / 2**20:.0f} MB are left")
    with memory_errors(nbytes):
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, start, nbytes)
        else:
            os.pwrite(fd, bytes(nbytes), start)
