"""NumPy arrays in shared memory: plain ndarrays that several processes use at once.

README.md in this folder has the map of the files.
"""

from __future__ import annotations

from synk_shm._arrays import pickling
from synk_shm._arrays.constructors import (
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
from synk_shm._arrays.handle import Handle, attach, handle
from synk_shm._arrays.listing import SegmentInfo, cleanup, free_space, leave
from synk_shm._arrays.listing import list_segments as list  # noqa: A004
from synk_shm._arrays.pickling import rebuild_array as _rebuild  # noqa: F401 (pickles name it)
from synk_shm._arrays.pickling import register_joblib
from synk_shm._arrays.removal import close, is_shared, unlink
from synk_shm._arrays.resize import resize
from synk_shm._arrays.segment import Segment, segment
from synk_shm._processes.process import process as _process
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

# `process` is below `pickling` and does not import it.
_process.at_first = pickling.register

# fmt: off
__all__ = [  # noqa: RUF022 (grouped by what you do with them)
    # make
    "empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like", "full_like",
    "share",
    # send and receive
    "handle", "Handle", "attach", "register_joblib",
    # use
    "resize", "is_shared", "segment", "Segment",
    # give up
    "close", "unlink",
    # inspect
    "leave", "list", "SegmentInfo", "cleanup", "free_space",
    # errors
    "ShmError", "ShmExistsError", "ShmFormatError", "ShmFullError", "ShmNotFoundError",
    "ShmPermissionError", "ShmTimeoutError",
]
# fmt: on


# The builtin `list` is hidden here.
def __dir__() -> tuple[str, ...]:
    return (*__all__, "exceptions")
