"""Make a segment: memory first, then its header, then its name."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from synk_shm._arrays.segment import Array, Bytes, Mapping, Segment, map_memory
from synk_shm._processes.process import process
from synk_shm._segments import headers, naming, posix
from synk_shm._segments.memory import LARGE, WORTH_THREADS, allocate, check_space, populate

NOTHING = object()
_NONCE = headers.NONCE_BYTES


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
    """Return the array of a new segment: of zeros, of bytes in memory order, or of `contents`.

    `capacity` are the bytes to map now and allocate when needed; `name` is a system's name.
    """
    anonymous = backend == "memfd"
    process.ready(not anonymous)
    family = process.home
    plan, packed = headers.plan(shape, dtype, fortran, capacity, family)
    where = posix.PLACES[backend]
    if plan.stop >= LARGE:
        check_space(plan.stop, where)
    noise = os.urandom(_NONCE + naming.RANDOM_BYTES)
    nonce, first = noise[:_NONCE], naming.segment_name(family, noise[_NONCE:])
    if name is not None and posix.DIRECTORY is None:
        first = name  # second entries are impossible there: it is the only one
    if anonymous:
        fd = posix.create_anonymous()
        first, owned = f"/proc/{os.getpid()}/fd/{fd}", []
    else:
        fd, owned = posix.create(first, mode), [first]
    try:
        try:
            if mode & 0o077 or anonymous:  # an explicit mode: the umask does not apply
                os.fchmod(fd, mode)
            mapping = _map_new(fd, plan, first, data)
        except OSError as error:
            posix.raise_mapped(error, where, asked=plan.stop)
        headers.write(mapping, packed, nonce)
        inode = os.fstat(fd).st_ino
        made = Segment(mapping, first, plan, nonce, mode, False, inode, owned)
        made.owner = True
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
    if anonymous:
        posix.seal(fd)
        made.fd = fd
    else:
        os.close(fd)
    return array


def _map_new(fd: int, plan: headers.Header, name: str, data: Bytes | None) -> Mapping:
    """Return the memory of a new segment, allocated, and filled with `data`."""
    offset, stop = plan.data_offset, plan.stop
    is_small = data is None and stop < LARGE
    if not is_small or plan.length != stop or not posix.CAN_ALLOCATE:
        os.ftruncate(fd, plan.length)  # else allocating sets the size, too
    if is_small:
        allocate(fd, 0, stop)
    elif data is not None and stop < WORTH_THREADS and posix.write(fd, offset, data.data):
        allocate(fd, 0, offset)
    else:
        # The page of the header is apart: data of this size begin on a page of their own.
        allocate(fd, 0, offset)
        mapping = map_memory(fd, plan.length, name)
        memory = np.frombuffer(mapping, np.uint8)
        if not populate(memory, offset, stop, data):
            allocate(fd, offset, stop)
            if data is not None:
                memory[offset:stop] = data
        return mapping
    return map_memory(fd, plan.length, name)
