"""Read a segment's header without mapping the segment."""

from __future__ import annotations

import os

from synk_shm import _header, _posix
from synk_shm.exceptions import ShmError


def read_header(fd: int, size: int, name: str) -> tuple[_header.Header, bytes] | None:
    """The header of an open segment of `size` bytes, and its nonce; None if it has none yet.

    Raises:
        ShmFormatError: not a segment of ours, or one that contradicts itself.
    """
    start = _posix.read_start(fd, size, _header.PEEK) if size else b""
    needed = _header.needed(start)
    if not needed:
        return None
    if needed > len(start):
        start = _posix.read_start(fd, size, needed)
    return _header.parse(start[:needed], size, name)


def peek(name: str) -> tuple[_header.Header | None, os.stat_result] | None:
    """What a name stands for; None if it is gone, a header of None if it is no usable segment."""
    try:
        fd = _posix.open_existing(name, readonly=True)
    except ShmError:
        return None
    try:
        status = os.fstat(fd)
        try:
            found = read_header(fd, status.st_size, name)
        except OSError:
            found = None
        return None if found is None else found[0], status
    finally:
        os.close(fd)
