"""Open a segment of another process, believing nothing until it is checked."""

from __future__ import annotations

import errno
import os
import stat
import time

from synk_shm import _header, _posix
from synk_shm._cleanup import process
from synk_shm._segment import Mapping, find_mapped, map_opened
from synk_shm.exceptions import (
    ShmFormatError,
    ShmNotFoundError,
    ShmPermissionError,
    ShmTimeoutError,
)


def open_segment(
    name: str,
    *,
    readonly: bool,
    timeout_s: float = 1.0,
    nonce: bytes | None = None,
    owner_uid: int | None = None,
) -> Mapping:
    """Map the segment of this system name (or ``/proc`` path).

    Args:
        timeout_s: how long to wait for a segment that is still being made.
        nonce: the one that the segment must have, if known.
        owner_uid: the user whose segment it must be; by default the caller.

    Raises:
        ShmNotFoundError: there is none, or another one took its name.
        ShmPermissionError: it belongs to another user, or may not be opened.
        ShmFormatError: it is no segment, or contradicts itself.
        ShmTimeoutError: it was not ready in time.
    """
    if nonce is not None:
        known = find_mapped(nonce, readonly)
        if known is not None:
            return known
    process.arm()  # removes what dead processes left, before it can be mistaken for alive
    if name.startswith("/proc/"):
        fd = _posix.open_anonymous(name, readonly)
    else:
        fd = _posix.open_existing(name, readonly)
    try:
        header = _wait_for_header(fd, name, timeout_s, owner_uid)
        if nonce is not None and header.nonce != nonce:
            raise ShmNotFoundError(errno.ENOENT, "another segment has taken this name", name)
    except ShmFormatError as error:
        os.close(fd)
        if nonce is not None and name.startswith("/proc/"):
            raise ShmNotFoundError(
                errno.ENOENT, "the process closed this memory and reused its number", name
            ) from error
        raise
    except BaseException:
        os.close(fd)
        raise
    return map_opened(fd, name, header, readonly)


def _wait_for_header(fd: int, name: str, timeout_s: float, owner_uid: int | None) -> _header.Header:
    expected = os.geteuid() if owner_uid is None else owner_uid
    deadline = time.monotonic() + timeout_s
    while True:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) and _posix.DIRECTORY is not None:
            raise ShmFormatError(errno.EINVAL, "not a segment of synk_shm but no file", name)
        if status.st_uid != expected:
            raise ShmPermissionError(
                errno.EACCES,
                f"the segment belongs to user {status.st_uid}, expected {expected}; if you "
                f"trust them: attach(..., owner_uid={status.st_uid})",
                name,
            )
        start = _posix.read_start(fd, status.st_size, _header.PEEK) if status.st_size else b""
        if not _header.is_blank(start):
            needed = _header.needed(start)
            if needed > len(start):
                start = _posix.read_start(fd, status.st_size, needed)
            return _header.parse(start, status.st_size, name)
        if time.monotonic() >= deadline:
            raise ShmTimeoutError(
                errno.ETIMEDOUT, f"the segment was not ready after {timeout_s} s", name
            )
        time.sleep(0.001)
