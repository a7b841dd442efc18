"""Make a segment: memory first, then its header, then its name."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from synk_shm._arrays.segment import Array, Bytes, Mapping, Segment, map_memory
from synk_shm._processes.process import process
from synk_shm._segments import headers, naming, pages, posix
from synk_shm._segments.free_space import check_space

NOTHING = object()
_NONCE = headers.NONCE_BYTES
_NOISE = _NONCE + naming.RANDOM_BYTES


def create(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    fortran: bool = False,
    capacity: int | None = None,
    name: str | None = None,
    mode: int = 0o600,
    backend: str = "shm",
    data: Bytes | None = None,
    contents: Any = NOTHING,
) -> Array:
    """Return the array of a new segment, holding zeros, `data` or `contents`.

    Args:
        capacity: bytes to map now and allocate when needed.
        name: a system name that a user asked for.
        data: all bytes of the array, in memory order.
        contents: what to assign to the array.
    """
    process.ready(backend == "shm")
    family = process.home
    plan, packed = headers.plan(shape, dtype, fortran, capacity, family)
    where = posix.PLACES[backend]
    if plan.stop >= pages.LARGE:
        check_space(plan.stop, where)
    noise = os.urandom(_NOISE)
    nonce = noise[:_NONCE]
    wanted = naming.segment_name(family, noise[_NONCE:])
    if name is not None and posix.DIRECTORY is None:
        wanted = name  # second entries are impossible there: it is the only one
    first, fd = _open_new(backend, wanted, mode)
    owned = [] if backend == "memfd" else [first]
    try:
        if data is None and plan.stop < pages.LARGE:
            posix.reserve(fd, plan.stop, plan.length, where)
            mapping = map_memory(fd, plan.length, first)
        else:
            mapping = _filled(fd, plan, first, where, data)
        headers.write(mapping, packed, nonce)
        made = Segment(mapping, first, plan, nonce, mode, False, owned)
        made.mine = True
        made.inode = os.fstat(fd).st_ino
        array = made.array(shape)
        if contents is not NOTHING:
            array[...] = contents
        if name is not None and name != first:
            posix.link(first, name)  # under this name the segment is complete
            owned.append(name)
    except BaseException:
        for done in owned:
            posix.remove(done)
        owned.clear()
        os.close(fd)
        raise
    if backend == "memfd":
        posix.seal(fd)
        made.fd = fd
    else:
        os.close(fd)
    return array


def _open_new(backend: str, wanted: str, mode: int) -> tuple[str, int]:
    """Return a new empty segment: its name, and a descriptor."""
    if backend == "memfd":
        fd = posix.create_anonymous(mode)
        return f"/proc/{os.getpid()}/fd/{fd}", fd
    return wanted, posix.create(wanted, mode)


def _filled(fd: int, plan: headers.Header, name: str, where: str, data: Bytes | None) -> Mapping:
    """Return the memory of a new segment that is large, or gets its data now."""
    posix.set_size(fd, plan.length, where)
    if data is not None and plan.stop < pages.WORTH_THREADS:
        written = posix.write_data(fd, plan.data_offset, data.data, where)
        posix.allocate(fd, 0, plan.data_offset if written else plan.stop, where)
        mapping = map_memory(fd, plan.length, name)
        if not written:
            mapping[plan.data_offset : plan.stop] = data.data
        return mapping
    mapping = map_memory(fd, plan.length, name)
    memory = np.frombuffer(mapping, np.uint8)
    # The page of the header is apart: data of this size begin on a page of their own.
    posix.allocate(fd, 0, plan.data_offset, where)
    if not pages.populate(memory, plan.data_offset, plan.stop, where, data):
        posix.allocate(fd, plan.data_offset, plan.stop, where)
        if data is not None:
            memory[plan.data_offset : plan.stop] = data
    return mapping
