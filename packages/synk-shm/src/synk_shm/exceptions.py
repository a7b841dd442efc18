"""The errors of synk_shm.

Every error from the operating system or a segment's contents is a `ShmError` (an `OSError` with
`errno` and `filename`), and also of the builtin kind that a caller would catch. Wrong arguments are
plain `ValueError` and `TypeError`.
"""

from __future__ import annotations


class ShmError(OSError):
    """Base of all errors of synk_shm."""


class ShmExistsError(ShmError, FileExistsError):
    """A segment of this name exists already; it has not been touched."""


class ShmNotFoundError(ShmError, FileNotFoundError):
    """No such segment: never created, removed by its owner, or replaced by another one."""


class ShmPermissionError(ShmError, PermissionError):
    """The segment belongs to another user, or its mode forbids this kind of access."""


class ShmFormatError(ShmError, ValueError):
    """The file is not a segment of synk_shm, or its header contradicts its size."""


class ShmFullError(ShmError, MemoryError):
    """Not enough shared memory; nothing was written and nothing is left behind."""


class ShmTimeoutError(ShmError, TimeoutError):
    """The segment did not become ready, or a family's lock file free, in time."""
