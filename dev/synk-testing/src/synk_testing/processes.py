"""Read from ``/proc`` which processes there are, and what they have open."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Collection, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set

MARK = "PROGRAM_UNDER_TEST"
"""Name of the environment variable that all processes of a program inherit."""


class Stat(NamedTuple):
    """A process: its state as `ps` shows it, and its start in clock ticks since boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start: int


def stat(pid: int) -> Optional[Stat]:
    """Read a process's state; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in parentheses, may hold anything.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return Stat(pid, fields[0].decode(), *(int(fields[i]) for i in (1, 2, 3, 19)))


def everyone() -> Iterator[Stat]:
    """Yield all processes of this machine, zombies included."""
    for name in os.listdir("/proc"):
        found = stat(int(name)) if name.isdigit() else None
        if found is not None:
            yield found


def is_there(pid: int) -> bool:
    """Return whether a process holds anything; a zombie does only while a thread of it is left."""
    found = stat(pid)
    if found is None or found.state not in "ZX":
        return found is not None
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def children(pid: Optional[int] = None) -> Set[int]:
    """Return the children of a process, by default this one's, zombies included."""
    found: Set[int] = set()
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid or 'self'}/task"):
            path = f"/proc/{pid or 'self'}/task/{task}/children"
            with contextlib.suppress(OSError), open(path) as file:  # the thread may have ended
                found.update(map(int, file.read().split()))
    return found


def descendants(pid: int) -> List[int]:
    """Return the children of a process, and theirs, parents first."""
    found, place = [pid], 0
    while place < len(found):
        found += sorted(children(found[place]) - set(found))
        place += 1
    return found[1:]


def members(sessions: Collection[int], mark: str = "") -> List[int]:
    """Return the processes that hold anything of these sessions, or of the program of a mark."""
    entry = f"{MARK}={mark}".encode()
    return [
        one.pid
        for one in everyone()
        if (one.session in sessions or (mark and _has(one.pid, entry))) and is_there(one.pid)
    ]


def _has(pid: int, entry: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry in file.read().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return False


def descriptors(pid: Optional[int] = None) -> Dict[int, str]:
    """Return what a process, by default this one, has open, and what each leads to."""
    found: Dict[int, str] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid or 'self'}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile, such as the listing's own
                found[int(name)] = os.readlink(f"/proc/{pid or 'self'}/fd/{name}")
    return found


def wait_gone(pids: Iterable[int], limit_s: float = 10.0) -> float:
    """Wait until none of these processes holds anything; return the seconds, or name the rest."""
    began, left = time.monotonic(), list(pids)
    while left := [pid for pid in left if is_there(pid)]:
        seconds = time.monotonic() - began
        assert seconds < limit_s, f"still there after {seconds:.1f} s: {described(left)}"
        time.sleep(0.002)
    return time.monotonic() - began


def described(pids: Iterable[int]) -> Dict[int, str]:
    """Return processes with their command lines."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            found[pid] = file.read().replace(b"\0", b" ").decode(errors="replace")[:200]
    return found


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to processes, of which some may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
