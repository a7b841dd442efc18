"""How a rank ends with its parent, however that ends, and takes its own children along."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
from io import FileIO
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1


class Lifeline(NamedTuple):
    """The parent's hold on a pipe to a rank.

    Attributes:
        reading: the end that the rank inherits.
        witness: another reading end, which the parent alone has.
        writing: the end whose end is the parent's.
    """

    reading: FileIO
    witness: FileIO
    writing: FileIO

    @classmethod
    def create(cls) -> Lifeline:
        """Make the pipe.

        When a process is killed, the kernel closes its files from the highest number to the
        lowest: the writing end while the witness is still open, which notices it.
        """
        low, high = os.pipe()
        # Objects, not numbers: if this is interrupted they close.
        reading = open(low, "rb", buffering=0)  # noqa: SIM115 - until close()
        with open(high, "wb", buffering=0) as writing:
            try:
                witness = open(f"/proc/self/fd/{low}", "rb", buffering=0)  # noqa: SIM115
            except OSError:  # another system, without such a message
                witness = open(os.dup(low), "rb", buffering=0)  # noqa: SIM115
            last = _copy_above(writing.fileno(), witness.fileno())
        return cls(reading, witness, open(last, "wb", buffering=0))

    def end_group_with_us(self, group: int) -> None:
        """Have the kernel kill a rank's process group when this process is gone.

        To be called when all has been written. The rank asks for the same, but if it dies amid the
        end of this process, what it has asked for may be gone before the pipe ends.
        """
        _kernel_kills(self.witness.fileno(), -group)

    def close(self) -> None:
        """Close all ends; a rank that is still there is killed."""
        for end in (self.writing, self.witness, self.reading):
            end.close()


def _copy_above(fd: int, below: int) -> int:
    """Return a copy of a descriptor whose number is higher than another's."""
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, below + 1)


def end_with_parent(fd: int, parent: int) -> None:
    """Let this process, and its process group, be killed when the parent is gone.

    Args:
        fd: the reading end of a pipe whose writing end only the parent holds, and into which
            nothing is written any more.
        parent: its pid.
    """
    if not _kernel_kills(fd, -os.getpgrp() if _leads_group() else os.getpid()):
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


def _kernel_kills(fd: int, owner: int) -> bool:
    """Ask the kernel for SIGKILL to a process when the pipe ends; Linux can.

    It needs no thread (with which ``os.fork()`` would warn), and it finds a process that is
    stopped, that never lets go of the interpreter's lock, and the children of this one.

    Args:
        owner: the pid; of a process group the negative number.
    """
    try:
        import fcntl

        fcntl.fcntl(fd, fcntl.F_SETOWN, owner)
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
