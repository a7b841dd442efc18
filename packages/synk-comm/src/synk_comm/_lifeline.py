"""How a rank ends with its parent, however that ends, and takes its own children along."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def end_with_parent(fd: int, parent: int) -> None:
    """Let this process, and its process group, be killed when the parent is gone.

    Args:
        fd: the reading end of a pipe whose writing end only the parent holds, and into which
            nothing is written any more.
        parent: its pid.
    """
    if not _kernel_kills_group(fd):
        threading.Thread(
            target=_await_end, args=(fd,), name="synk-comm-parent", daemon=True
        ).start()
    if sys.platform == "linux":
        # The pipe may have been copied into a child that the parent forked: then it lives on.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # What has happened before now leaves no signal.
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    if os.getppid() != parent or waiting.poll(0):
        _kill_group()


def _kernel_kills_group(fd: int) -> bool:
    """Ask the kernel for SIGKILL to the whole group when the pipe ends; Linux can.

    It needs no thread (with which ``os.fork()`` would warn), and it finds a process that is
    stopped, that never lets go of the interpreter's lock, and the children of this one.
    """
    try:
        import fcntl

        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp() if _leads_group() else os.getpid())
        fcntl.fcntl(fd, fcntl.F_SETSIG, int(signal.SIGKILL))
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    except (ImportError, AttributeError, OSError):
        return False
    return True


def _leads_group() -> bool:
    return os.getpgrp() == os.getpid()


def _await_end(fd: int) -> None:
    while select.select([fd], [], [], 60.0) == ([], [], []):
        pass
    _kill_group()


def _kill_group() -> None:
    if _leads_group():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
