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
from synk_shm.exceptions import ShmTimeoutError

_OPEN_S = 5.0
_GRACE_S = 60.0
# Never follows a link that another user made, and never waits: for a pipe's other end, or until the
# kernel breaks a lease, which takes up to 45 s.
_CAREFUL = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FLOCK = struct.Struct("@hhqqi0q")  # type, whence, start, length, pid: all of the file


def home_family() -> str:
    """Return the family of this process: eight hex digits, the same in all its children."""
    import hashlib  # slow to import, as multiprocessing is: only when needed
    import multiprocessing

    key = bytes(multiprocessing.current_process().authkey)
    return hashlib.blake2b(key, digest_size=4, person=b"synk-shm").hexdigest()


def hold(family: str, *, create: bool) -> int | None:
    """Take a shared lock on a family's lock file and return the descriptor that holds it.

    None if there is no such file and `create` is False, or where segments are not files.
    """
    if posix.DIRECTORY is None:
        return None
    path = _lock_path(family)
    flags = os.O_RDWR | _CAREFUL | (os.O_CREAT if create else 0)
    deadline = time.monotonic() + _OPEN_S
    while True:
        try:
            fd = os.open(path, flags, 0o600)
        except FileNotFoundError:
            return None
        except OSError as error:
            posix.raise_mapped(error, path)
        if _lock(fd, fcntl.LOCK_SH) and _is_current(fd, path):
            _mark(fd)
            if create:
                os.utime(fd)  # there is a member again: end the grace
            return fd
        # A sweep holds it exclusively, or has just removed it: try again.
        os.close(fd)
        if time.monotonic() > deadline:
            reason = f"the lock file stayed locked for {_OPEN_S} s"
            raise ShmTimeoutError(errno.ETIMEDOUT, reason, path)
        time.sleep(0.001)


def has_names(family: str) -> bool:
    """Return whether there is anything that a sweep of this family would remove."""
    return any(naming.family_of(name) == family for name, _ in names_of_user())


def postpone_if_alone(fd: int) -> None:
    """Postpone the removal of a family's names if no other process holds this lock file."""
    try:
        alone = not _is_marked(fd)
    except (OSError, AttributeError):
        alone = True
    if alone:
        until = time.time() + _GRACE_S
        os.utime(fd, (until, until))


def is_linked(fd: int) -> bool:
    """Return whether the lock file behind this descriptor still has its name."""
    return os.fstat(fd).st_nlink > 0


def is_alive(family: str) -> bool:
    """Return whether any process holds this family's lock file, without locking it."""
    fd = _open_lock(family, os.O_RDONLY)
    if fd is None:
        return False
    try:
        return _is_marked(fd) or not _is_due(fd)
    except (OSError, AttributeError):  # no such locks here: try for the other kind
        return not _lock(fd, fcntl.LOCK_EX) or not _is_due(fd)
    finally:
        os.close(fd)


def sweep(family: str, *, at_once: bool = False) -> list[str]:
    """Remove all names of a family if none of its processes is left; return those names.

    With `at_once` also if it was postponed, because no process can read the messages.
    """
    fd, path = _open_lock(family, os.O_RDWR), _lock_path(family)
    if fd is None:
        return []
    try:
        is_dead = _lock(fd, fcntl.LOCK_EX) and _is_current(fd, path)
        if not is_dead or not (at_once or _is_due(fd)):
            return []
        # Its own names last: if this process is killed, the next one finds the rest by them.
        removed = [name for name in _names_of(family) if posix.remove(name)]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # last, because a sweep searches for lock files
        return removed
    finally:
        os.close(fd)


def sweep_all() -> list[str]:
    """Remove the names of every dead family of this user; return those names."""
    owners = [naming.lock_owner(name[1:]) for name, _ in _files_of_user()]
    user = os.geteuid()
    return [name for owner in owners if owner and owner[0] == user for name in sweep(owner[1])]


def names_of_user() -> list[tuple[str, os.stat_result]]:
    """Return every segment entry that belongs to this user, and its status."""
    return [entry for entry in _files_of_user() if naming.is_segment(entry[0])]


def _files_of_user() -> list[tuple[str, os.stat_result]]:
    """Return the names of this user's regular files that may be ours, and their status."""
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
    """Return the names of what a family made: those that users gave, then its own."""
    entries = [(name, status.st_ino) for name, status in names_of_user()]
    own = {name: inode for name, inode in entries if naming.family_of(name) == family}
    inodes = set(own.values())
    given = [name for name, inode in entries if naming.is_user_name(name) and inode in inodes]
    # Its own may be names of messages that carry a segment of another family.
    headers = [(name, peek(name)) for name in given]
    return [name for name, header in headers if header and header.family == family] + list(own)


def _lock_path(family: str) -> str:
    return posix.path_of("/" + naming.lock_name(os.geteuid(), family))


def _open_lock(family: str, access: int) -> int | None:
    """Return a descriptor of a lock file; None if there is none, or it is another user's."""
    try:
        return os.open(_lock_path(family), access | _CAREFUL)
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


def _is_marked(fd: int) -> bool:
    """Return whether another process than the descriptor's has marked the file."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _is_current(fd: int, path: str) -> bool:
    """Return whether the path still leads to this file, and this user owns it."""
    held = os.fstat(fd)
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(path, follow_symlinks=False)
        return os.path.samestat(found, held) and held.st_uid == os.geteuid()
    return False
