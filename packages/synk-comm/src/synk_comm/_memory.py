"""Memory that several processes share and that has no name, so that nothing can be left over."""

from __future__ import annotations

import errno
import os
import sys
import tempfile


def anonymous_memory(nbytes: int) -> int:
    """Return a descriptor (not inheritable) of ``nbytes`` of zeroed shared memory.

    On Linux a memfd, which counts as memory of this process and is not bound by the size of
    /dev/shm; elsewhere a file that is unlinked before it is used. All of it is allocated here:
    a full memory is a MemoryError now, not a SIGBUS later.
    """
    if sys.platform == "linux":
        fd = os.memfd_create("synk-comm", os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix="synk-comm-")
        os.unlink(path)
    try:
        os.ftruncate(fd, nbytes)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, nbytes)
        else:
            os.pwrite(fd, bytes(nbytes), 0)
    except OSError as exc:
        os.close(fd)
        if exc.errno in (errno.ENOSPC, errno.ENOMEM):
            raise MemoryError(
                f"no room for {nbytes / 2**20:.1f} MB of shared memory for a group of ranks; "
                "free some, or raise the memory limit of this container"
            ) from exc
        raise
    return fd
