"""NumPy arrays in shared memory: plain ndarrays that several processes see at once.

The map of the package, from the user down to the system (README.md here tells the rest)::

    _array  _growth  _removal  _handle  _scope  _lock  _listing      what you call
       \\______|________|__      |
                _create   _attach  <-  _reduction        how a process comes by memory
                     \\     /
                    _segment        memory, its names, and who owns them
                        |
                     _process       this process: exit, fork, families
                        |
    _header  _dtypes _family        locks of families, sweeping the dead
    _names   _space  _pages  _posix                      the system
"""

from __future__ import annotations

from synk_shm import _reduction
from synk_shm._array import (
    empty,
    empty_like,
    full,
    full_like,
    ones,
    ones_like,
    share,
    zeros,
    zeros_like,
)
from synk_shm._growth import resize
from synk_shm._handle import Handle, attach, handle
from synk_shm._listing import SegmentInfo, cleanup, free_space, leave
from synk_shm._listing import list_segments as list  # noqa: A004
from synk_shm._lock import lock
from synk_shm._process import process as _process
from synk_shm._reduction import rebuild_array as _rebuild  # noqa: F401 (pickles name it)
from synk_shm._removal import close, is_shared, unlink
from synk_shm._scope import Scope, scope
from synk_shm._segment import Segment, segment
from synk_shm.exceptions import (
    ShmError,
    ShmExistsError,
    ShmFormatError,
    ShmFullError,
    ShmNotFoundError,
    ShmPermissionError,
    ShmTimeoutError,
)

__version__ = "0.1.0"

# The one place where this is wired: below `_reduction` nothing knows it.
_process.at_first.append(_reduction.register)

__all__ = [  # noqa: RUF022 (grouped by what you do with them)
    # make
    "empty",
    "zeros",
    "ones",
    "full",
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "share",
    "scope",
    "Scope",
    # send and receive
    "handle",
    "Handle",
    "attach",
    # use
    "resize",
    "lock",
    "is_shared",
    "segment",
    "Segment",
    # give up
    "close",
    "unlink",
    # look around
    "leave",
    "list",
    "SegmentInfo",
    "cleanup",
    "free_space",
    # errors
    "ShmError",
    "ShmExistsError",
    "ShmFormatError",
    "ShmFullError",
    "ShmNotFoundError",
    "ShmPermissionError",
    "ShmTimeoutError",
]


# `list` is something else here.
def __dir__() -> tuple[str, ...]:
    return (*__all__, "exceptions")
