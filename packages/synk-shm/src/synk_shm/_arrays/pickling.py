"""Send shared arrays through multiprocessing, as handles that hold their memory.

A message carries, besides the handle, a directory entry of its own for the segment. So the
sender may drop the array, or exit, while the message is under way: the entry keeps the
memory. The process that receives the message owns the entry from then on. Entries of messages
that are never received are removed when their family ends. See README.md in this folder.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from synk_shm._arrays.handle import Handle, attach, handle, open_segment, view
from synk_shm._arrays.segment import Array, find_mapped, raise_taken, segment
from synk_shm._processes.process import process
from synk_shm._segments import naming, posix
from synk_shm.exceptions import ShmNotFoundError


def register() -> None:
    """Have multiprocessing's pickler, and no other, send shared arrays as handles.

    pickle, copy, numpy.save and other libraries' picklers keep copying values.
    """
    from multiprocessing.reduction import ForkingPickler

    ForkingPickler.register(np.ndarray, reduce_array)


def reduce_array(array: Array) -> Any:
    """Return what multiprocessing sends for an array: a handle if it is shared, else its bytes."""
    found = segment(array)
    if found is None:
        return array.__reduce__()
    address = handle(array)
    packed = None
    if posix.DIRECTORY is not None and found.backend == "shm":
        entry = naming.random_name(process.home)
        posix.link(address.name, entry)
        if not posix.links(entry, found.inode):
            posix.remove(entry)
            raise_taken(address.name)
        packed = naming.pack(entry)
        process.sending()
    return rebuild_array, (packed, not array.flags.writeable, *address.__reduce__()[1])


def rebuild_array(packed: bytes | None, readonly: bool, *parts: Any) -> Array:
    """Attach the array that `reduce_array` sent, and own the entry of its message."""
    address = Handle.unpack(*parts)
    if packed is None:
        return attach(address, readonly=readonly)
    entry = naming.system_name(naming.unpack(packed))
    mapping = find_mapped(address.nonce, readonly)
    if mapping is None:
        try:
            mapping = open_segment(entry, readonly, nonce=address.nonce)
        except ShmNotFoundError:
            return attach(address, readonly=readonly)  # a message that is unpickled again
    elif posix.status_of(entry) is None:
        return view(mapping, address)  # likewise
    array = view(mapping, address)
    mapping.segment.adopt(entry)
    return array


# Its pickle names it: a shorter one, and it survives a move of this file.
rebuild_array.__module__, rebuild_array.__qualname__ = "synk_shm", "_rebuild"
