"""Processes in the system: their machine, their identity, and, by pidfds, their end."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
from typing import NamedTuple


class Identity(NamedTuple):
    """Identity of a process on this machine since boot; zeros for unknown parts."""

    pid: int
    started: int
    namespace: int


def identity() -> Identity:
    """Return the identity of the calling process."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return Identity(os.getpid(), _start_time(os.getpid()) or 0, namespace)


def machine_name() -> str:
    """Return the name of the running kernel."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return os.uname().nodename


def stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third, the state, on.

    Raises:
        OSError: there is no such process, or it is invisible.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name, in parentheses, may hold anything.
        return file.read().rpartition(b")")[2].split()


def _start_time(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot; None if it is invisible."""
    try:
        return int(stat(pid)[19])
    except (OSError, IndexError, ValueError):
        return None


class WatchedProcess:
    """A process of this machine, this one's child or not; never another that was given its pid.

    Args:
        started: its start in clock ticks since boot; 0 if that is not known.

    Raises:
        ProcessLookupError: it has ended.
        OSError: this system has no pidfds, or no more descriptors.
    """

    def __init__(self, pid: int, started: int = 0) -> None:
        self.fd = -1  # a pidfd, but if it is closed
        if not hasattr(os, "pidfd_open"):
            raise OSError(errno.ENOSYS, "this system has no pidfds")
        self.pid = pid
        self.fd = os.pidfd_open(pid)
        self._end = select.poll()
        self._end.register(self.fd, select.POLLIN)
        if started and _start_time(pid) not in (None, started):
            self.close()
            raise ProcessLookupError(errno.ESRCH, "this number is another process's now")

    def is_gone(self) -> bool:
        """Return whether the process has ended."""
        return bool(self._end.poll(0))

    def send_signal(self, number: int) -> None:
        """Send a signal to it, if it has not ended."""
        if self.fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.fd, number)

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    __del__ = close


class Pidfds:
    """Watches peers' processes in the same pid namespace; it cannot see others."""

    def __init__(self) -> None:
        self._watched: dict[int, WatchedProcess] = {}
        self._gone: list[int] = []

    def add(self, rank: int, peer: Identity) -> None:
        """Begin to watch the process of a rank."""
        if peer.namespace and peer.namespace == identity().namespace:
            try:
                self._watched[rank] = WatchedProcess(peer.pid, peer.started)
            except ProcessLookupError:
                self._gone.append(rank)
            except OSError:
                return

    def gone(self) -> list[int]:
        """Return the ranks whose processes have ended."""
        for rank in [rank for rank, one in list(self._watched.items()) if one.is_gone()]:
            self._watched.pop(rank).close()
            self._gone.append(rank)
        return self._gone

    def close(self) -> None:
        while self._watched:
            self._watched.popitem()[1].close()
