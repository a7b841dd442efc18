"""Send shared arrays through multiprocessing and joblib, as handles that hold their memory.

A message carries, besides the handle, a directory entry of its own for the segment: see *Memory
and names* in README.md of the package.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Callable

import numpy as np

from synk_shm._arrays.handle import Handle, attach, handle, open_segment, view
from synk_shm._arrays.segment import Array, find_mapped, raise_taken, segment
from synk_shm._processes.process import process
from synk_shm._segments import naming, posix
from synk_shm.exceptions import ShmNotFoundError

# joblib's pools and executors have reducers of their own: they copy small arrays, and write large
# ones to files that workers map read-only. No public way puts another one before them.
_MAKER = "get_memmapping_reducers"


def register() -> None:
    """Make multiprocessing's pickler, and no other, send shared arrays as handles."""
    from multiprocessing.reduction import ForkingPickler

    ForkingPickler.register(np.ndarray, reduce_array)


def reduce_array(array: Array) -> Any:
    """Reduce an array for multiprocessing: to a handle if it is shared, else to its bytes."""
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


def _reduce(otherwise: Callable[[Array], Any], array: Array) -> Any:
    """Send a shared array as a handle, and any other one as another reducer does."""
    return otherwise(array) if segment(array) is None else reduce_array(array)


def _make_reducers(make: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Return joblib's reducers of both directions, with this package's before them."""
    both = make(*args, **keywords)
    for reducers in both:
        reducers[np.ndarray] = functools.partial(_reduce, reducers[np.ndarray])
    return both


def register_joblib() -> None:
    """Make joblib and its loky pass shared arrays by handle, for the rest of this program.

    Call it once, before the first ``Parallel``. Workers then get the same memory, writeable if it
    was, and return it so. Without it, joblib copies shared arrays, or gives workers read-only files
    of them, as it goes on to do with other arrays.

    Raises:
        ImportError: there is no joblib, or one of another make.
    """
    try:
        modules = [importlib.import_module(f"joblib.{name}") for name in ("executor", "pool")]
        reduction = importlib.import_module("joblib.externals.loky.backend.reduction")
        makers = [getattr(module, _MAKER) for module in modules]
        register = reduction.register
    except AttributeError as error:
        raise ImportError(f"this joblib makes its reducers in another way: {error}") from error
    register(np.ndarray, functools.partial(_reduce, np.ndarray.__reduce__))
    for module, maker in zip(modules, makers):
        if getattr(maker, "func", None) is not _make_reducers:
            setattr(module, _MAKER, functools.partial(_make_reducers, maker))
