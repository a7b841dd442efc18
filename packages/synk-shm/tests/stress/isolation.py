"""A /dev/shm of one's own, where every name that is left over must be one's own fault."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000


def isolate() -> bool:
    """Give this process and its children a /dev/shm of their own, if the system lets us.

    To be called before there are threads: NumPy starts some. A child tries it first, since
    what works in part only cannot be undone.
    """
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if _isolate() else 1)
        except OSError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0 and _isolate()


def _isolate() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWNS) != 0:
        if libc.unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0:
            return False
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    if libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        return False
    return bool(libc.mount(b"synk", b"/dev/shm", b"tmpfs", 0, b"size=64m,mode=1777") == 0)
