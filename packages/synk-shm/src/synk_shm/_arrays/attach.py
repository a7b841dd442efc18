"""Open a segment of another process, and check it before it is used."""

from __future__ import annotations

import errno
import os
import stat
import time

from synk_shm._arrays.segment import Mapping, Segment, find_mapped, map_memory, raise_taken
from synk_shm._processes.process import process
from synk_shm._segments import headers, posix
from synk_shm._segments.headers import read_header
from synk_shm.exceptions import (
    ShmFormatError,
    ShmNotFoundError,
    ShmPermissionError,
    ShmTimeoutError,
)


def open_segment(
    name: str,
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
    anonymous = name.startswith("/proc/")
    process.ready(not anonymous)  # removes what dead processes left, before it looks alive
    open_ = posix.open_anonymous if anonymous else posix.open_existing
    fd = open_(name, readonly)
    keep = False
    try:
        header, found_nonce, status = _wait_for_header(fd, name, timeout_s, owner_uid)
        if nonce is not None and found_nonce != nonce:
            raise_taken(name)
        known = find_mapped(found_nonce, readonly)
        if known is not None and known.segment.inode == status.st_ino:
            return known
        families = () if anonymous else process.enter(header.family)
        try:
            mapping = map_memory(fd, header.length, name, readonly)
        except BaseException:
            for family in families:
                process.leave(family)
            raise
        keep = anonymous
        opened = Segment(mapping, name, header, found_nonce, status.st_mode & 0o777, readonly, [])
        opened.families = families
        opened.inode = status.st_ino
        if anonymous:
            opened.fd = fd
        return mapping
    except ShmFormatError as error:
        if nonce is not None and anonymous:
            raise ShmNotFoundError(
                errno.ENOENT, "the process closed this memory and reused its number", name
            ) from error
        raise
    finally:
        if not keep:
            os.close(fd)


def _wait_for_header(
    fd: int, name: str, timeout_s: float, owner_uid: int | None
) -> tuple[headers.Header, bytes, os.stat_result]:
    expected = os.geteuid() if owner_uid is None else owner_uid
    deadline: float | None = None
    while True:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) and posix.DIRECTORY is not None:
            raise ShmFormatError(errno.EINVAL, "not a segment of synk_shm but no file", name)
        if status.st_uid != expected:
            raise ShmPermissionError(
                errno.EACCES,
                f"the segment belongs to user {status.st_uid}, expected {expected}; if you "
                f"trust them: attach(..., owner_uid={status.st_uid})",
                name,
            )
        found = read_header(fd, status.st_size, name)
        if found is not None:
            return *found, status
        if name.startswith("/proc/"):  # memory of that kind has no name before it is ready
            raise ShmNotFoundError(errno.ENOENT, "the process closed this memory", name)
        now = time.monotonic()
        deadline = now + timeout_s if deadline is None else deadline
        if now >= deadline:
            raise ShmTimeoutError(
                errno.ETIMEDOUT, f"the segment was not ready after {timeout_s} s", name
            )
        time.sleep(0.001)
