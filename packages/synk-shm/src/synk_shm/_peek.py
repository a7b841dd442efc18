"""Look at a segment's header without mapping it."""

from __future__ import annotations

import os

from synk_shm import _header, _posix
from synk_shm.exceptions import ShmError


def peek(name: str) -> tuple[_header.Header | None, os.stat_result] | None:
    """What a name stands for; None if it is gone, a header of None if it is no usable segment."""
    try:
        fd = _posix.open_existing(name, readonly=True)
    except ShmError:
        return None
    try:
        status = os.fstat(fd)
        try:
            size = status.st_size
            needed = _header.needed(_posix.read_start(fd, size, _header.PEEK))
            if not needed:
                return None, status
            header, _ = _header.parse(_posix.read_start(fd, size, needed), size, name)
        except OSError:
            return None, status
        return header, status
    finally:
        os.close(fd)
