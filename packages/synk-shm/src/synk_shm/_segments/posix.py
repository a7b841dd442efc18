"""The only file that opens, sizes and removes shared memory in the system.

It opens segments as files if they show as files (Linux). Otherwise it uses posix_ipc, so that its
faults have no effect: names are checked before (a NUL kills the process), its ``size=`` is never
used (on an existing segment it resizes, and on failure removes it), descriptors are always closed
(it has no finalizer), and its errors, which are not `OSError`, are translated.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import resource
import stat
from typing import NoReturn

import posix_ipc

from synk_shm.exceptions import (
    ShmError,
    ShmExistsError,
    ShmFullError,
    ShmNotFoundError,
    ShmPermissionError,
)

_SHM = "/dev/shm"  # noqa: S108 (names in it are unguessable and created exclusively)
# Where segments show as files (Linux); None where the system hides them (macOS).
DIRECTORY: str | None = _SHM if os.path.isdir(_SHM) else None
_ANONYMOUS = "anonymous memory"
# Where the memory of each backend comes from, as errors name it.
PLACES = {"shm": DIRECTORY or "shared memory", "memfd": _ANONYMOUS}

CAN_ALLOCATE = hasattr(os, "posix_fallocate")
_DESCRIPTORS = "/proc/self/fd/"
_FULL = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG)
# Never follows a link that another user made, and never waits: for a pipe's other end, or until the
# kernel breaks a lease, which takes up to 45 s.
CAREFUL = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | CAREFUL


def path_of(name: str) -> str:
    """Return the file of a segment, for systems with a `DIRECTORY`, as are all callers."""
    if DIRECTORY is None:
        raise ShmError(errno.ENOTSUP, "this system does not show segments as files", name)
    return DIRECTORY + name


def create(name: str, mode: int) -> int:
    """Create an empty segment, never open one that exists. Return its descriptor."""
    try:
        if DIRECTORY is not None:
            return os.open(DIRECTORY + name, _CREATE, mode)
        return int(posix_ipc.SharedMemory(name, flags=posix_ipc.O_CREX, mode=mode).fd)
    except (posix_ipc.Error, OSError, MemoryError) as error:
        if getattr(error, "errno", None) == errno.ENOENT or "No shared memory" in str(error):
            raise ShmError(
                errno.ENOENT, 'there is no shared memory here; use backend="memfd"', name
            ) from error
        raise_mapped(error, name, existential=errno.EEXIST)
    except BaseException:  # a signal's, which may come when the kernel has made the file
        if DIRECTORY is not None:
            _close(f"{DIRECTORY}{name}")
            remove(name)
        raise


def _close(file: str) -> None:
    """Close the descriptor that an interrupted call has made, if any: its name is random."""
    with contextlib.suppress(FileNotFoundError):  # no /proc: the descriptor cannot be found
        for fd in os.listdir(_DESCRIPTORS):
            with contextlib.suppress(OSError):
                if os.readlink(_DESCRIPTORS + fd) == file:
                    os.close(int(fd))


def open_existing(name: str, readonly: bool) -> int:
    """Open a segment by its name. Return its descriptor."""
    try:
        if DIRECTORY is not None:
            return os.open(DIRECTORY + name, (os.O_RDONLY if readonly else os.O_RDWR) | CAREFUL)
        return int(posix_ipc.SharedMemory(name, flags=0, read_only=readonly).fd)
    except (posix_ipc.Error, OSError, MemoryError) as error:
        raise_mapped(error, name)


def create_anonymous(label: str) -> int:
    """Create a memory file without a name, but with a label (Linux). Return its descriptor."""
    if not hasattr(os, "memfd_create"):
        raise ValueError('backend="memfd" exists on Linux only; use backend="shm"')
    try:
        return os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise_mapped(error, "a memory file")
    except BaseException:  # a signal's, as above
        _close(f"/memfd:{label} (deleted)")
        raise


def open_anonymous(path: str, readonly: bool) -> int:
    """Open the memory file behind ``/proc/<pid>/fd/<n>``. Return a new descriptor."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a FIFO or a terminal may have effects
            raise ShmNotFoundError(errno.ENOENT, "the process closed this memory", path)
        return os.open(path, (os.O_RDONLY if readonly else os.O_RDWR) | CAREFUL & ~os.O_NOFOLLOW)
    except OSError as error:
        raise_mapped(error, path)


def remove(name: str, inode: int | None = None) -> bool:
    """Remove a name; False if it is gone already. The memory stays where it is mapped.

    With `inode`, remove it only while it still stands for that segment: a name that users
    give may have been removed and given again.
    """
    try:
        if DIRECTORY is None:
            posix_ipc.unlink_shared_memory(name)
        elif inode is not None and not links(name, inode):
            return False
        else:
            os.unlink(DIRECTORY + name)
    except (posix_ipc.ExistentialError, FileNotFoundError):
        return False
    except (posix_ipc.Error, OSError) as error:
        raise_mapped(error, name)
    return True


def status_of(name: str) -> os.stat_result | None:
    """Return the status of the file of this name; None if it is gone."""
    try:
        return os.stat(path_of(name), follow_symlinks=False)
    except FileNotFoundError:
        return None


def links(name: str, inode: int) -> int:
    """Return how many names the segment behind this one has; 0 if the name is gone or another's."""
    status = status_of(name)
    return status.st_nlink if status is not None and status.st_ino == inode else 0


def link(name: str, new_name: str) -> None:
    """Give a segment a second name, atomically."""
    try:
        os.link(path_of(name), path_of(new_name), follow_symlinks=False)
    except OSError as error:
        raise_mapped(error, name if error.errno == errno.ENOENT else new_name)


def write(fd: int, start: int, data: memoryview) -> bool:
    """Write bytes through the descriptor, faster than through a new mapping; False on macOS.

    OSError if there is not enough memory.
    """
    if DIRECTORY is None:
        return False
    while data:
        written = os.pwrite(fd, data, start)
        start, data = start + written, data[written:]
    return True


def read_start(fd: int, size: int, length: int) -> bytes:
    """Return up to `length` bytes of a segment of `size` bytes; a mapping could raise SIGBUS."""
    length = min(length, size)
    if DIRECTORY is not None:
        return os.pread(fd, length, 0)
    with mmap.mmap(fd, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as view:
        return bytes(view[:length])


def seal(fd: int) -> None:
    """Fix the size of an anonymous segment, so that no peer can shrink it under another."""
    with contextlib.suppress(AttributeError, OSError):  # an extra, where the kernel has it
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)


def space(where: str) -> tuple[int, int] | None:
    """Return (free, total) bytes of the file system at `where`; None if it has no limit."""
    try:
        status = os.statvfs(where)
    except (OSError, AttributeError):
        return None
    both = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    return both if status.f_blocks else None  # a tmpfs mounted with size=0 has none


def full_error(asked: int, where: str, number: int = errno.ENOSPC) -> ShmFullError:
    """Return the error for a full file system, or another limit: its state, and the cure."""
    cure = "free some memory or ask for less"
    if number == errno.EFBIG:
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        state = f"the limit of file sizes holds for it: {most} (raise it: ulimit -f)"
    elif number == errno.ENOMEM:
        state = "this process may map no more memory (raise ulimit -v, or sysctl vm.max_map_count)"
    else:
        free = [in_bytes(count) for count in space(where) or ()]
        state = "{} are free of {} in total".format(*free) if free else "the system has no more"
        if where != _ANONYMOUS:
            cure = (
                'remove segments (synk_shm.list(), synk_shm.cleanup()), use backend="memfd", or '
                "make it larger (docker run --shm-size=..., Kubernetes: an emptyDir of medium "
                f"Memory, else: mount -o remount,size=... {where})"
            )
    return ShmFullError(number, f"asked for {in_bytes(asked)} in {where}: {state}; {cure}", where)


def in_bytes(count: int) -> str:
    """Return a number of bytes as text, also in a unit that suits it."""
    power = min(max(count.bit_length() - 1, 0) // 10, 4)
    exact = f"{count} bytes"
    return f"{count / 1024**power:.1f} {'KMGT'[power - 1]}iB ({exact})" if power else exact


_KINDS = {
    errno.EACCES: (ShmPermissionError, "this segment may not be opened that way by this user"),
    errno.EEXIST: (ShmExistsError, "a segment of this name exists; attach() to it or unlink() it"),
    errno.ENOENT: (ShmNotFoundError, "no such segment (or its owner has removed it)"),
}
_SAME = {errno.EPERM: errno.EACCES, errno.ESRCH: errno.ENOENT}


def raise_mapped(
    error: BaseException,
    name: str,
    *,
    existential: int = errno.ENOENT,
    asked: int = mmap.PAGESIZE,
) -> NoReturn:
    """Raise a `ShmError` for an error of posix_ipc or the system, with its cause.

    `existential` is the number for posix_ipc's ExistentialError; `asked` is in bytes.
    """
    if isinstance(error, ShmError):
        try:
            raise error
        finally:
            del error  # else it refers to itself through this frame, and keeps its arrays
    number = getattr(error, "errno", None) or errno.EIO
    numbers = {posix_ipc.PermissionsError: errno.EACCES, posix_ipc.ExistentialError: existential}
    number = {**numbers, MemoryError: errno.ENOMEM}.get(type(error), _SAME.get(number, number))
    if number in _KINDS:
        kind, reason = _KINDS[number]
        raise kind(number, reason, name) from error
    if number in _FULL:
        where = _ANONYMOUS if name == _ANONYMOUS or name.startswith("/proc/") else PLACES["shm"]
        raise full_error(asked, where, number) from error
    reason = getattr(error, "strerror", None) or str(error)
    if number == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        reason += f", of which this process may have {most} (raise it: ulimit -n)"
    raise ShmError(number, reason, name) from error
