"""Families of processes, and the removal of the names of dead families: see README.md."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import time

from synk_shm._segments import naming, posix
from synk_shm._segments.headers import peek
from synk_shm.exceptions import ShmError, ShmTimeoutError

_OPEN_S = 5.0
_GRACE_S = 60.0
_FLOCK = struct.Struct("@hhqqi0q")  # type, whence, start, length, pid: all of the file


def home_family() -> str:
    """Return the family of this process: eight hex digits, the same in all its children."""
    import hashlib  # slow to import, as multiprocessing is: only when needed
    import multiprocessing

    key = bytes(multiprocessing.current_process().authkey)
    return hashlib.blake2b(key, digest_size=4, person=b"synk-shm").hexdigest()


def hold(family: str, *, create: bool) -> int | None:
    """Return a descriptor that holds a shared lock on a family's lock file; None without a file."""
    if posix.DIRECTORY is None:
        return None
    path = posix.path_of(naming.lock_name(family))
    flags = os.O_RDWR | posix.CAREFUL | (os.O_CREAT if create else 0)
    deadline = time.monotonic() + _OPEN_S
    while True:
        try:
            fd = os.open(path, flags, 0o600)
        except FileNotFoundError:
            return None
        except OSError as error:
            posix.raise_mapped(error, path)
        if _lock(fd, fcntl.LOCK_SH) and _is_current(fd, family):
            _mark(fd)
            if create:
                os.utime(fd)  # there is a member again: end the grace
            return fd
        os.close(fd)  # a sweep holds it exclusively, or has just removed it: try again
        if time.monotonic() > deadline:
            reason = f"the lock file stayed locked for {_OPEN_S} s"
            raise ShmTimeoutError(errno.ETIMEDOUT, reason, path)
        time.sleep(0.001)


def postpone_if_alone(fd: int) -> None:
    """Postpone the removal of a family's names if no other process holds this lock file."""
    if not _is_marked(fd):
        until = time.time() + _GRACE_S
        os.utime(fd, (until, until))


def is_alive(family: str) -> bool:
    """Return whether any process holds this family's lock file, without locking it."""
    fd = _open_lock(family, os.O_RDONLY)
    if fd is None:
        return False
    try:
        marked = _is_marked(fd)
        # Without such locks: try for the other kind.
        held = not _lock(fd, fcntl.LOCK_EX) if marked is None else marked
        return held or not _is_due(fd)
    finally:
        os.close(fd)


def sweep(family: str, *, at_once: bool = False) -> list[str]:
    """Remove all names of a family if none of its processes is left; return those names.

    With `at_once` also if that was postponed: no process can read the messages. A family with an
    unreadable segment, such as one of another version, is left as it is.
    """
    fd = _open_lock(family, os.O_RDWR)
    if fd is None:
        return []
    try:
        is_dead = _lock(fd, fcntl.LOCK_EX) and _is_current(fd, family)
        if not is_dead or not (at_once or _is_due(fd)):
            return []
        try:
            names = _names_of(family)
        except ShmError:
            return []
        removed = [name for name in names if posix.remove(name)]
        posix.remove(naming.lock_name(family))  # last, because a sweep searches for lock files
        return removed
    finally:
        os.close(fd)


def sweep_all() -> list[str]:
    """Remove the names of every dead family of this user; return those names."""
    found = [naming.family_of_lock(name) for name, _ in _files_of_user()]
    return [name for family in found if family is not None for name in sweep(family)]


def names_of_user() -> list[tuple[str, os.stat_result]]:
    """Return every segment entry that belongs to this user, and its status."""
    return [entry for entry in _files_of_user() if naming.is_segment(entry[0])]


def _files_of_user() -> list[tuple[str, os.stat_result]]:
    if posix.DIRECTORY is None:
        return []
    user, found = os.geteuid(), []
    with os.scandir(posix.DIRECTORY) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False) if entry.name[:5] == "synk." else None
                if status and status.st_uid == user and stat.S_ISREG(status.st_mode):
                    found.append(("/" + entry.name, status))
    return found


def _names_of(family: str) -> list[str]:
    """Return the names of a family's segments: users' names, then its own.

    If a process that removes them is killed, the next one finds the rest by the last ones.
    """
    entries = [(name, status.st_ino) for name, status in names_of_user()]
    own = {name: inode for name, inode in entries if naming.family_of(name) == family}
    inodes = set(own.values())
    given = [name for name, inode in entries if naming.is_user_name(name) and inode in inodes]
    headers = [(name, peek(name)) for name in [*given, *own]]
    # Its own may be names of messages that carry a segment of another family.
    return [name for name, header in headers if name in own or (header and header.family == family)]


def _open_lock(family: str, access: int) -> int | None:
    try:
        return os.open(posix.path_of(naming.lock_name(family)), access | posix.CAREFUL)
    except OSError:
        return None


def _is_due(fd: int) -> bool:
    """Return whether no grace is left, also after the clock was set back."""
    left_s = os.fstat(fd).st_mtime - time.time()
    return not 0 < left_s <= _GRACE_S


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _mark(fd: int) -> None:
    """Take a second lock, which other processes can test without taking it."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))


def _is_marked(fd: int) -> bool | None:
    """Return whether another process has marked the file; None where there are no such locks."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with contextlib.suppress(OSError, AttributeError):
        return bool(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)
    return None


def _is_current(fd: int, family: str) -> bool:
    """Return whether this is still the family's lock file, and this user owns it."""
    held, found = os.fstat(fd), posix.status_of(naming.lock_name(family))
    return found is not None and os.path.samestat(found, held) and held.st_uid == os.geteuid()
