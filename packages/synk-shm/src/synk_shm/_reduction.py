"""How shared arrays travel through multiprocessing: as handles that hold their memory.

A message carries, besides the handle, a directory entry of its own for the segment. So the
sender may drop the array, or exit, while the message is under way: the entry keeps the
memory. Whoever receives the message owns the entry from then on. Entries of messages that
never arrive go when their family ends. See README.md in this folder.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from synk_shm import _names, _posix
from synk_shm._attach import open_segment
from synk_shm._cleanup import process
from synk_shm._handle import Handle, attach, handle, reachable_segment
from synk_shm._segment import Array, segment
from synk_shm.exceptions import ShmNotFoundError


def register() -> None:
    """Teach multiprocessing's pickler, and no other, about shared arrays.

    pickle, copy, numpy.save and other libraries' picklers keep copying values.
    """
    from multiprocessing.reduction import ForkingPickler

    ForkingPickler.register(np.ndarray, reduce_array)


def reduce_array(array: Array) -> Any:
    """What multiprocessing sends for an array: a handle if it is shared, else its bytes."""
    if segment(array) is None:
        return array.__reduce__()
    address = handle(array)
    entry = None
    if _posix.DIRECTORY is not None and reachable_segment(array).backend == "shm":
        entry = _names.random_name(process.home)
        _posix.link(address.name, entry)
    return rebuild_array, (address, entry, not array.flags.writeable)


def rebuild_array(address: Handle, entry: str | None, readonly: bool) -> Array:
    """Attach what `reduce_array` sent, and take over the entry that came with it."""
    if entry is None:
        return attach(address, readonly=readonly)
    try:
        mapping = open_segment(_names.system_name(entry), readonly=readonly, nonce=address.nonce)
    except ShmNotFoundError:
        return attach(address, readonly=readonly)  # a message that is unpickled again
    array = attach(address, readonly=readonly)
    mapping.segment.adopt(entry)
    return array
