"""What the system says of processes: their cores, who they are, and, by pidfds, that they ended."""

from __future__ import annotations

import os
import select
import weakref
from typing import NamedTuple


class Identity(NamedTuple):
    """Identity of a process on this machine since boot; zeros for unknown parts."""

    pid: int
    started: int
    namespace: int


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def identity() -> Identity:
    """Return the identity of the calling process."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return Identity(os.getpid(), _start_time(os.getpid()) or 0, namespace)


def _start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it cannot be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in parentheses, may hold anything; the start time is field 22.
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


class Pidfds:
    """Watches peers' processes where that is possible: Linux, same pid namespace.

    Elsewhere it sees nothing, and the death of a peer shows as a timeout, or to ``watch``.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._ranks: dict[int, int] = {}
        self._gone: list[int] = []
        weakref.finalize(self, _close, self._ranks).atexit = False

    def add(self, rank: int, peer: Identity) -> None:
        """Begin to watch the process of a rank."""
        if not hasattr(os, "pidfd_open") or not peer.namespace:
            return
        if peer.namespace != identity().namespace:
            return
        try:
            fd = os.pidfd_open(peer.pid)
        except ProcessLookupError:
            self._gone.append(rank)
            return
        except OSError:
            return
        if peer.started and _start_time(peer.pid) not in (None, peer.started):
            os.close(fd)
            self._gone.append(rank)
            return
        self._ranks[fd] = rank
        self._poll.register(fd, select.POLLIN)

    def gone(self) -> list[int]:
        """Return the ranks whose processes have ended."""
        for fd, _ in self._poll.poll(0):
            self._gone.append(self._ranks.pop(fd))
            self._poll.unregister(fd)
            os.close(fd)
        return self._gone

    def close(self) -> None:
        """Close all descriptors."""
        for fd in self._ranks:
            self._poll.unregister(fd)
        _close(self._ranks)


def _close(descriptors: dict[int, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[0])
