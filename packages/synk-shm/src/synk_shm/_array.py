"""Making, growing and giving up shared arrays."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from typing import Any, Union

import numpy as np

from synk_shm import _header, _names, _posix, _session
from synk_shm._cleanup import process
from synk_shm._segment import Array, Segment, create, segment
from synk_shm._space import ANONYMOUS, check_space
from synk_shm.exceptions import ShmNotFoundError

Shape = Union[int, Iterable[int]]


def empty(
    shape: Shape,
    dtype: Any = float,
    *,
    order: str = "C",
    name: str | None = None,
    capacity: int | None = None,
    mode: int = 0o600,
    backend: str = "shm",
) -> Array:
    """A new shared array. Its elements are zero, since new pages are.

    The memory is allocated here and now: writing to the array can never raise SIGBUS.

    Args:
        shape: an int or ints, as in NumPy.
        dtype: any dtype of a fixed size. Objects and variable-length strings are refused.
        order: "C" or "F".
        name: a name of up to 22 bytes by which other processes may `attach`; without it
            only those can that are given a `handle`.
        capacity: length of the first axis to which `resize` can grow the array in place.
            Room is mapped at once and allocated when it is used. Needs order="C".
        mode: permissions of the segment, exactly (the umask does not apply to more than
            0o600). Others of this group or machine get in only if you say so here.
        backend: "shm" for a segment in the system's shared memory, "memfd" for one without
            any name (Linux): not bound by the size of /dev/shm, and attached through this
            process, which has to be alive then.

    Returns:
        A plain `numpy.ndarray`. The memory lives as long as it or any view of it does; the
        segment's name goes when the last of them in this process dies, or at its exit.

    Raises:
        TypeError, ValueError: for arguments that make no array.
        ShmExistsError: `name` is taken.
        ShmFullError: not enough memory (a MemoryError too); nothing was changed.
    """
    lengths = _check_shape(shape)
    kind = np.dtype(dtype)
    _header.check_dtype(kind)
    nbytes = _header.count_bytes(lengths, kind)
    if order not in ("C", "F"):
        raise ValueError(f'order must be "C" or "F", got {order!r}')
    mapping = create(
        lengths,
        kind,
        fortran=order == "F",
        capacity=_check_capacity(capacity, lengths, kind, nbytes, order),
        name=_check_name(name, backend),
        mode=_check_mode(mode),
        backend=backend,
    )
    return mapping.segment.array()


def zeros(shape: Shape, dtype: Any = float, **options: Any) -> Array:
    """A new shared array of zeros; arguments as `empty`."""
    return empty(shape, dtype, **options)


def ones(shape: Shape, dtype: Any = float, **options: Any) -> Array:
    """A new shared array of ones; arguments as `empty`."""
    return full(shape, 1, dtype, **options)


def full(shape: Shape, fill_value: Any, dtype: Any = None, **options: Any) -> Array:
    """A new shared array filled with `fill_value`, and by default of its dtype; see `empty`."""
    array = empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype, **options)
    array[...] = fill_value
    return array


def empty_like(prototype: Any, dtype: Any = None, **options: Any) -> Array:
    """A new shared array of zeros, with the shape, dtype and memory order of `prototype`."""
    model = np.asanyarray(prototype)
    options.setdefault("order", _order_of(model))
    return empty(model.shape, model.dtype if dtype is None else dtype, **options)


def zeros_like(prototype: Any, dtype: Any = None, **options: Any) -> Array:
    """The same as `empty_like`: new shared memory is zero."""
    return empty_like(prototype, dtype, **options)


def ones_like(prototype: Any, dtype: Any = None, **options: Any) -> Array:
    """A new shared array of ones; arguments as `empty_like`."""
    return full_like(prototype, 1, dtype, **options)


def full_like(prototype: Any, fill_value: Any, dtype: Any = None, **options: Any) -> Array:
    """A new shared array filled with `fill_value`; arguments as `empty_like`."""
    array = empty_like(prototype, dtype, **options)
    array[...] = fill_value
    return array


def share(
    array: Any,
    *,
    copy: bool | None = None,
    name: str | None = None,
    mode: int = 0o600,
    backend: str = "shm",
) -> Array:
    """The array in shared memory: a copy, or the array itself if it is shared already.

    Args:
        array: anything `numpy.asarray` takes, of a dtype that `empty` takes.
        copy: None copies if needed (not needed: shared, writable, and no `name` asked for),
            True always, False never.
        name, mode, backend: as in `empty`.

    Raises:
        ValueError: copy=False, and the array is not shared.
        TypeError, ShmExistsError, ShmFullError: as in `empty`.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("a masked array is two arrays; share its .data and its .mask")
    source = np.asarray(array)
    known = segment(source)
    usable = known is not None and not (known.closed or known.unlinked)
    if usable and source.flags.writeable and name is None and not copy:
        return source
    if copy is False:
        raise ValueError(
            "copy=False, but this array is not in shared memory, or read-only, or not so named"
        )
    _header.check_dtype(source.dtype)
    order = _order_of(source)
    flat = source.T if order == "F" else source
    contiguous = flat.flags.c_contiguous and source.size > 0
    data = flat.reshape(-1).view(np.uint8).data if contiguous else None
    mapping = create(
        source.shape,
        source.dtype,
        fortran=order == "F",
        name=_check_name(name, backend),
        mode=_check_mode(mode),
        backend=backend,
        data=data,
    )
    result = mapping.segment.array()
    if not contiguous:
        result[...] = source
    return result


def resize(a: Array, new_length: int) -> Array:
    """Change the length of the first axis and return the array at its new shape.

    Within the capacity the data stay where they are: older arrays and views remain valid,
    here and in other processes, and show the same memory. Beyond it a new segment is made
    that holds the old contents and leaves room for as much again; a name that was given
    goes over to it, while processes that mapped the old one keep that. New rows hold zeros,
    or what was there before the array was made shorter. Memory is not given back.

    Args:
        a: the whole of an array that this process made, in C order, at its present shape.
        new_length: the number of rows.

    Raises:
        ValueError: `a` is a view, in Fortran order, read-only, out of date, 0-d, or was
            made by another process.
        ShmFullError: not enough memory; the array is as it was.
    """
    found = _check_whole(a)
    length = _check_length(new_length)
    rest = found.shape[1:]
    nbytes = _header.count_bytes((length, *rest), found.dtype)
    reserved = found.reserved
    if nbytes > found.capacity or (nbytes > reserved and found.unlinked):
        return _move(a, found, length)
    if nbytes > reserved:
        where = ANONYMOUS if found.backend == "memfd" else _posix.DIRECTORY or "shared memory"
        start = found.data_offset
        check_space(nbytes - reserved, where)
        fd = found.reopen()
        try:
            _posix.allocate(fd, start + reserved, start + nbytes, where)
        finally:
            os.close(fd)
    found.set_length(length, max(reserved, nbytes))
    return found.array()


def close(a: Array) -> None:
    """Give up this process's hold on the segment under `a`.

    Its owner removes the name at once, as `unlink` does. The memory itself is returned
    with the last reference to `a`: no array ever points to memory that has gone.
    Does nothing if it is closed already.

    Raises:
        BufferError: other arrays still lie on this memory; says how many.
        ValueError: `a` is not in shared memory.
    """
    found = segment(a)
    if found is None:
        raise ValueError("this array is not in shared memory; there is nothing to close")
    if found.closed:
        return
    others = found.live_views() - 1
    if others > 0:
        raise BufferError(
            f"{others} other array{'s lie' if others > 1 else ' lies'} on the memory of "
            f"{found.name}; delete them first, or only unlink() it"
        )
    if found.owner:
        _remove_names(found)
    found.release()


def unlink(a_or_name: Array | str, missing_ok: bool = False) -> None:
    """Remove a segment's names, so that nobody can attach it any more.

    Processes that have it keep it until their last array dies. Messages of multiprocessing
    that are under way lose it. Any process of the same user may do this.

    Args:
        a_or_name: a shared array, or a name as `attach` takes it.
        missing_ok: do not complain if it has gone already.

    Raises:
        ShmNotFoundError: there is no such segment, unless `missing_ok`.
        ValueError: this array is not in shared memory.
    """
    if isinstance(a_or_name, str):
        name = _names.system_name(a_or_name)
        if not _unlink_name(name) and not missing_ok:
            raise ShmNotFoundError(2, "no such segment (or it is unlinked already)", name)
        return
    found = segment(a_or_name)
    if found is None:
        raise ValueError("this array is not in shared memory; there is nothing to unlink")
    if not _remove_names(found) and not missing_ok:
        raise ShmNotFoundError(2, "this segment is unlinked already", found.name)


def is_shared(x: object) -> bool:
    """Whether `x` is an array in shared memory of this package, or a view of one."""
    return segment(x) is not None


def _remove_names(found: Segment) -> bool:
    """Remove every entry of a segment, those of messages included."""
    gone = found.unlinked
    found.unlink()
    if found.backend == "memfd":
        return not gone
    if _posix.DIRECTORY is None:
        return _posix.remove(found.name)
    return _remove_inode(_session.names_of_user(), found.inode[1])


def _unlink_name(name: str) -> bool:
    if _posix.DIRECTORY is None:
        return _posix.remove(name)
    entries = _session.names_of_user()
    inode = dict(entries).get(name)
    if inode is None:
        return False
    for own in list(process.owners):
        if isinstance(own, Segment) and own.inode[1] == inode and own.backend == "shm":
            own.unlink()
    return _remove_inode(entries, inode)


def _remove_inode(entries: list[tuple[str, int]], inode: int) -> bool:
    removed = [_posix.remove(name) for name, number in entries if number == inode]
    return any(removed)


def _move(a: Array, found: Segment, length: int) -> Array:
    """The contents of `a` in a new segment with room to grow."""
    if found.has_user_name() and _posix.DIRECTORY is None:
        raise ValueError(
            "on this system a named array cannot outgrow its capacity; make it with more"
        )
    rest = found.shape[1:]
    row = _header.count_bytes((1, *rest), found.dtype)
    new = create(
        (length, *rest),
        found.dtype,
        capacity=max(length * row, 2 * found.capacity),
        mode=found.mode,
        backend=found.backend,
    )
    result = new.segment.array()
    kept = min(length, len(a))
    result[:kept] = a[:kept]
    new.segment.move_user_name(found)
    return result


def _check_whole(a: Array) -> Segment:
    found = segment(a)
    if found is None:
        raise ValueError("this array is not in shared memory; use share(array)")
    if found.closed:
        raise ValueError(f"segment {found.name} is closed")
    if not found.owner:
        raise ValueError("only the process that made a shared array can resize it")
    if found.fortran or a.ndim == 0:
        raise ValueError("only arrays in C order with a first axis can be resized")
    start = a.__array_interface__["data"][0] - found.address
    if a.dtype != found.dtype or not a.flags.c_contiguous or start != found.data_offset:
        raise ValueError("a view cannot be resized; pass the whole array")
    if a.shape != found.shape:
        raise ValueError(f"this array has shape {a.shape}, but the segment now {found.shape}")
    if not a.flags.writeable:
        raise ValueError("a read-only array cannot be resized")
    return found


def _check_shape(shape: Shape) -> tuple[int, ...]:
    given = (shape,) if isinstance(shape, (int, np.integer)) else shape
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"a shape is an int or a sequence of ints, got {shape!r}")
    lengths = tuple(_check_length(length) for length in given)
    if len(lengths) > _header.MAX_DIMENSIONS:
        raise ValueError(
            f"NumPy arrays have up to {_header.MAX_DIMENSIONS} dimensions, got {len(lengths)}"
        )
    return lengths


def _check_length(length: Any) -> int:
    if isinstance(length, (bool, np.bool_)):
        raise TypeError(f"a length must be an int, got {length!r}")
    value = operator.index(length)
    if value < 0:
        raise ValueError(f"a length must not be negative, got {value}")
    return value


def _check_capacity(
    capacity: int | None,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    nbytes: int,
    order: str,
) -> int:
    """The capacity in bytes for one in rows."""
    if capacity is None:
        return nbytes
    rows = _check_length(capacity)
    if order != "C" or not shape:
        raise ValueError('capacity needs order="C" and at least one dimension')
    if rows < shape[0]:
        raise ValueError(f"capacity {rows} is less than the length {shape[0]}")
    return _header.count_bytes((rows, *shape[1:]), dtype)


def _check_name(name: str | None, backend: str) -> str | None:
    if backend not in ("shm", "memfd"):
        raise ValueError(f'backend must be "shm" or "memfd", got {backend!r}')
    if name is None:
        return None
    if backend == "memfd":
        raise ValueError('backend="memfd" has no names; pass a handle, or use backend="shm"')
    full = _names.system_name(name)
    if name.startswith("/"):
        raise ValueError(f"a name must not contain '/', got {name!r}")
    return full


def _check_mode(mode: int) -> int:
    value = operator.index(mode)
    if isinstance(mode, bool) or value & ~0o777 or value & 0o600 != 0o600:
        raise ValueError(f"mode must be within 0o600 and 0o777, got {value:#o}")
    return value


def _order_of(array: Array) -> str:
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
