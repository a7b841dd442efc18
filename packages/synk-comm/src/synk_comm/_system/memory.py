"""Memory that several processes share and that has no name, so that nothing can be left over."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from io import FileIO

_LARGE = 1 << 26


def _memfd() -> int:
    fd = os.memfd_create("synk-comm", os.MFD_CLOEXEC)
    os.fchmod(fd, 0o600)  # they begin as everybody's; only /proc keeps others away then
    return fd


def memory_file(data: bytes) -> FileIO:
    """Return a file in memory that holds these bytes, for processes that inherit it."""
    file = open(_memfd(), "r+b", buffering=0)  # noqa: SIM115 - the caller's
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    file.seek(0)
    return file


def anonymous_memory(nbytes: int, sparse: int = 0) -> int:
    """Return a descriptor (not inheritable) of ``nbytes`` of zeroed shared memory.

    It counts as memory of this process, and is not bound by the size of /dev/shm.
    All of it but the last ``sparse`` bytes is allocated here: a full memory is a MemoryError now,
    not a SIGBUS later.
    """
    fd = _memfd()
    try:
        with memory_errors(nbytes):
            os.ftruncate(fd, nbytes)
            needed = nbytes - sparse
            # The kernel would go on until it has to kill a process.
            available = _available() if needed > _LARGE else None
            if available is not None and needed > available:
                raise _no_room(nbytes, f"{available / 2**20:.0f} MB are left")
            os.posix_fallocate(fd, 0, needed)
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


def _available() -> int | None:
    """Return how many bytes this machine and this container still have, if that can be known."""
    found = []
    with contextlib.suppress(OSError, KeyError, ValueError), open("/proc/meminfo") as file:
        fields = dict(line.split(":", 1) for line in file)
        found.append(int(fields["MemAvailable"].split()[0]) * 1024)
    # No such files, or "max" in them.
    with (
        contextlib.suppress(OSError, ValueError),
        open("/sys/fs/cgroup/memory.max") as limit,
        open("/sys/fs/cgroup/memory.current") as current,
    ):
        found.append(int(limit.read()) - int(current.read()))
    return min(found) if found else None
