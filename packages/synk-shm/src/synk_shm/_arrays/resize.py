"""Growing an array in place."""

from __future__ import annotations

import os

from synk_shm._arrays.constructors import check_length, create
from synk_shm._arrays.segment import Array, Segment, raise_taken, require_segment
from synk_shm._segments import dtypes, naming, posix
from synk_shm._segments.memory import allocate, check_space, populate


def resize(a: Array, new_length: int) -> Array:
    """Change the length of the first axis and return the array at its new shape.

    Within the capacity the data stay where they are: older arrays and views remain valid, here and
    in other processes, and show the same memory. Beyond it the contents and your name go to a new
    segment with room for as much again; processes that mapped the old one keep it. New rows hold
    zeros, or the values of rows that an earlier call cut off. Memory is not given back.

    Args:
        a: the whole of an array that this process made, in C order, at its present shape.
        new_length: the number of rows.

    Raises:
        ValueError: `a` is a view, in Fortran order, read-only, out of date, 0-d, or was
            made by another process.
        ShmFullError: not enough memory; the array is as it was.
    """
    found = _check_whole(a)
    length = check_length(new_length)
    shape = (length, *a.shape[1:])
    nbytes = dtypes.count_bytes(shape, found.dtype)
    reserved = found.reserved
    if nbytes > found.capacity or (nbytes > reserved and not _allocate(found, reserved, nbytes)):
        return _move(a, found, shape)
    found.set_length(length, max(reserved, nbytes))
    return found.array(shape)


def _allocate(found: Segment, reserved: int, nbytes: int) -> bool:
    """Allocate mapped bytes; return False if that cannot be done in place."""
    where = posix.PLACES[found.backend]
    begin, end = found.header.data_offset + reserved, found.header.data_offset + nbytes
    check_space(end - begin, where)
    try:
        if populate(found.memory(), begin, end):
            return True
        if found.unlinked:
            return False
        open_ = posix.open_existing if found.backend == "shm" else posix.open_anonymous
        fd = open_(found.address_name, readonly=False)
        try:
            if os.fstat(fd).st_ino != found.inode:
                raise_taken(found.name)
            allocate(fd, begin, end)
        finally:
            os.close(fd)
    except OSError as error:
        posix.raise_mapped(error, where, asked=end - begin)
    return True


def _move(a: Array, found: Segment, shape: tuple[int, ...]) -> Array:
    """Return the contents of `a` in a new segment with room to grow."""
    if posix.DIRECTORY is None and any(map(naming.is_user_name, found.names)):
        raise ValueError(
            "on this system a named array cannot outgrow its capacity; make it with more"
        )
    result = create(
        shape,
        found.dtype,
        capacity=max(dtypes.count_bytes(shape, found.dtype), 2 * found.capacity),
        mode=found.mode,
        backend=found.backend,
    )
    kept = min(shape[0], len(a))
    result[:kept] = a[:kept]
    new = require_segment(result)
    for name in filter(naming.is_user_name, found.names):
        if posix.links(name, found.inode):  # else it is unlinked, or names another segment now
            step = naming.random_name(new.family)
            posix.link(new.address_name, step)
            os.replace(posix.path_of(step), posix.path_of(name))  # in one step
            found.owned.remove(name)
            new.owned.append(name)
    return result


def _check_whole(a: Array) -> Segment:
    found = require_segment(a)
    if found.closed:
        raise ValueError(f"segment {found.name} is closed")
    if not found.owner:
        raise ValueError("only the process that made a shared array can resize it")
    if found.header.fortran or a.ndim == 0:
        raise ValueError("only arrays in C order with a first axis can be resized")
    if a.dtype != found.dtype or not a.flags.c_contiguous or found.offset_of(a):
        raise ValueError("a view cannot be resized; pass the whole array")
    if a.shape != found.shape:
        raise ValueError(f"this array has shape {a.shape}, but the segment now {found.shape}")
    if not a.flags.writeable:
        raise ValueError("a read-only array cannot be resized")
    return found
