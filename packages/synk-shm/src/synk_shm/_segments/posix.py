"""The only file that opens, sizes and removes shared memory in the system.

Where segments show as files (Linux) they are opened as files: the same system calls as
shm_open's, without an object in between. Elsewhere it is posix_ipc, wrapped so that its
faults have no effect: names are checked before (a NUL kills the process), its ``size=`` is never
used (on an existing segment it resizes, and on failure removes it), descriptors are always closed
(it has no finalizer), and its errors, which are not `OSError`, are translated.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from typing import NoReturn

import posix_ipc

from synk_shm._segments.free_space import ANONYMOUS, full_error, limit_of
from synk_shm.exceptions import ShmError, ShmExistsError, ShmNotFoundError, ShmPermissionError

_SHM = "/dev/shm"  # noqa: S108 (names in it are unguessable and created exclusively)
DIRECTORY: str | None = _SHM if os.path.isdir(_SHM) else None
"""Where segments show as files (Linux); None where the system hides them (macOS).

Without it there are no second entries, no listing and no sweeps: see README.md of the package.
"""

PLACES = {"shm": DIRECTORY or "shared memory", "memfd": ANONYMOUS}
"""Where the memory of each backend comes from, as errors name it."""

_DESCRIPTORS = "/proc/self/fd/"
_CAN_ALLOCATE = hasattr(os, "posix_fallocate")
_FULL = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG)
_CHUNK = 16 << 20  # some kernels restart an interrupted allocation from its beginning
# Never follows a link that another user made, and never waits at a pipe.
_CAREFUL = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | _CAREFUL


def path_of(name: str) -> str:
    """Return the file of a segment. Only where `DIRECTORY` is known."""
    if DIRECTORY is None:
        raise ShmError(errno.ENOTSUP, "this system does not show segments as files", name)
    return DIRECTORY + name


def create(name: str, mode: int) -> int:
    """Create an empty segment, never open one that exists. Return its descriptor."""
    try:
        if DIRECTORY is not None:
            fd = os.open(DIRECTORY + name, _CREATE, mode)
        else:
            fd = int(posix_ipc.SharedMemory(name, flags=posix_ipc.O_CREX, mode=mode).fd)
    except (posix_ipc.Error, OSError, MemoryError) as error:
        if getattr(error, "errno", None) == errno.ENOENT or "No shared memory" in str(error):
            raise ShmError(
                errno.ENOENT, 'there is no shared memory here; use backend="memfd"', name
            ) from error
        raise_mapped(error, name, existential=errno.EEXIST)
    except BaseException:  # a signal's, which may come when the kernel has made the file
        if DIRECTORY is not None:
            _take_back(name)
        raise
    if mode & 0o077:  # an explicit mode: the umask does not apply
        try:
            os.fchmod(fd, mode)
        except BaseException:
            os.close(fd)
            remove(name)
            raise
    return fd


def _take_back(name: str) -> None:
    """Close and remove what an interrupted `create` may have made: names there are random."""
    with contextlib.suppress(FileNotFoundError):  # no /proc: the descriptor cannot be found
        for fd in os.listdir(_DESCRIPTORS):
            with contextlib.suppress(OSError):
                if os.readlink(_DESCRIPTORS + fd) == f"{DIRECTORY}{name}":
                    os.close(int(fd))
    remove(name)


def open_existing(name: str, readonly: bool) -> int:
    """Open a segment by its name. Return its descriptor."""
    try:
        if DIRECTORY is not None:
            return os.open(DIRECTORY + name, (os.O_RDONLY if readonly else os.O_RDWR) | _CAREFUL)
        return int(posix_ipc.SharedMemory(name, flags=0, read_only=readonly).fd)
    except (posix_ipc.Error, OSError, MemoryError) as error:
        raise_mapped(error, name)


def create_anonymous(mode: int) -> int:
    """Create a memory file without a name (Linux). Return its descriptor."""
    if not hasattr(os, "memfd_create"):
        raise ValueError('backend="memfd" exists on Linux only; use backend="shm"')
    try:
        fd = os.memfd_create("synk-shm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise_mapped(error, "a memory file")
    os.fchmod(fd, mode)
    return fd


def open_anonymous(path: str, readonly: bool) -> int:
    """Open the memory file behind ``/proc/<pid>/fd/<n>``. Return a new descriptor."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a FIFO or a terminal may have effects
            raise ShmNotFoundError(errno.ENOENT, "the process closed this memory", path)
        access = os.O_RDONLY if readonly else os.O_RDWR
        return os.open(path, access | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except ShmError:
        raise
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
    """Return the status of what has this name; None if it is gone. Only where `DIRECTORY` is."""
    try:
        return os.stat(path_of(name), follow_symlinks=False)
    except FileNotFoundError:
        return None


def links(name: str, inode: int) -> int:
    """Return how many names the segment behind this one has; 0 if the name is gone or another's."""
    status = status_of(name)
    return status.st_nlink if status is not None and status.st_ino == inode else 0


def link(name: str, new_name: str) -> None:
    """Give a segment a second name, atomically. Only where `DIRECTORY` is known."""
    try:
        os.link(path_of(name), path_of(new_name), follow_symlinks=False)
    except OSError as error:
        raise_mapped(error, name if error.errno == errno.ENOENT else new_name)


def set_size(fd: int, length: int, where: str) -> None:
    """Set the size of a new segment, once."""
    try:
        os.ftruncate(fd, length)
    except OSError as error:
        raise_mapped(error, where, asked=length)


def reserve(fd: int, stop: int, length: int, where: str) -> None:
    """Make a new segment `length` bytes long, and really allocate those up to `stop`.

    Raises:
        ShmFullError: there is not enough memory.
    """
    if length != stop or not _CAN_ALLOCATE:  # else allocating sets the size, too
        set_size(fd, length, where)
    allocate(fd, 0, stop, where)


def allocate(fd: int, start: int, stop: int, where: str) -> None:
    """Allocate bytes start:stop, so that writing them later cannot raise SIGBUS.

    Raises:
        ShmFullError: there is not enough memory, although `check_space` found enough.
    """
    if not _CAN_ALLOCATE:
        return  # macOS allocates on first touch, and has no limit of its own
    asked = stop - start
    try:
        while stop - start > _CHUNK:
            os.posix_fallocate(fd, start, _CHUNK)
            start += _CHUNK
        os.posix_fallocate(fd, start, stop - start)
    except OSError as error:
        raise_mapped(error, where, asked=asked)


def write_data(fd: int, start: int, data: bytes | memoryview, where: str) -> bool:
    """Write bytes through the descriptor, which is faster than through a new mapping.

    Return False where the system cannot do that (macOS).

    Raises:
        ShmFullError: there is not enough memory, although `check_space` found enough.
    """
    if DIRECTORY is None:
        return False
    written = 0
    while written < len(data):
        rest = data if not written else memoryview(data)[written:]
        try:
            written += os.pwrite(fd, rest, start + written)
        except OSError as error:
            raise_mapped(error, where, asked=len(data))
    return True


def read_start(fd: int, size: int, length: int) -> bytes:
    """Return the first `length` bytes of a segment of `size` bytes; less if it is shorter.

    Read through the descriptor: looking through a mapping could raise SIGBUS.
    """
    length = min(length, size)
    if DIRECTORY is not None:
        return os.pread(fd, length, 0)
    with mmap.mmap(fd, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as view:
        return bytes(view[:length])


def seal(fd: int) -> None:
    """Fix the size of an anonymous segment, so that no peer can shrink it under another."""
    import fcntl

    with contextlib.suppress(AttributeError, OSError):  # an extra, where the kernel has it
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)


def raise_mapped(
    error: BaseException,
    name: str,
    *,
    existential: int = errno.ENOENT,
    asked: int = mmap.PAGESIZE,
) -> NoReturn:
    """Raise a `ShmError` for an error of posix_ipc or the system, with its cause.

    `existential` is what posix_ipc's ExistentialError means here; `asked` is in bytes.
    """
    number = getattr(error, "errno", None)
    if isinstance(error, posix_ipc.PermissionsError) or number in (errno.EACCES, errno.EPERM):
        raise ShmPermissionError(
            errno.EACCES, "this segment may not be opened that way by this user", name
        ) from error
    if isinstance(error, posix_ipc.ExistentialError):
        number = existential
    if number == errno.EEXIST:
        raise ShmExistsError(
            errno.EEXIST, "a segment of this name exists; attach() to it or unlink() it", name
        ) from error
    if number in (errno.ENOENT, errno.ESRCH):
        raise ShmNotFoundError(
            errno.ENOENT, "no such segment (or its owner has removed it)", name
        ) from error
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    if number in _FULL:
        where = ANONYMOUS if name == ANONYMOUS or name.startswith("/proc/") else PLACES["shm"]
        raise full_error(asked, where, number) from error
    reason = getattr(error, "strerror", None) or str(error)
    if number == errno.EMFILE:
        reason += f", of which this process may have {limit_of('NOFILE')} (raise it: ulimit -n)"
    raise ShmError(number or errno.EIO, reason, name) from error
