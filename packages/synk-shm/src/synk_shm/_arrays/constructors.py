"""Constructors of shared arrays."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from typing import Any, Union

import numpy as np

from synk_shm._arrays.segment import Array, Bytes, Mapping, Segment, map_memory, segment
from synk_shm._processes.process import process
from synk_shm._segments import dtypes, headers, naming, posix
from synk_shm._segments.memory import LARGE, WORTH_THREADS, allocate, check_space, populate

Shape = Union[int, Iterable[int]]
NOTHING = object()


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
    """Return a new shared array. Its elements are zero, since new pages are.

    It allocates the memory at once: a write to the array can never raise SIGBUS.

    Args:
        shape: an int or ints, as in NumPy.
        dtype: any dtype of a fixed size. Objects and variable-length strings are refused.
        order: "C" or "F".
        name: a name of up to 22 bytes by which other processes may `attach`; without it they
            need a `handle`.
        capacity: length of the first axis to which `resize` can grow the array in place: mapped
            at once, allocated when used. Needs order="C".
        mode: exact permissions of the segment (the umask does not apply to more than 0o600): by
            default no other user gets in.
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
    options: dict[str, Any] = {"name": name, "capacity": capacity, "mode": mode, "backend": backend}
    return full(shape, NOTHING, np.dtype(dtype), order=order, **options)


def zeros(shape: Shape, dtype: Any = float, **options: Any) -> Array:
    """Return a new shared array of zeros; arguments as `empty`."""
    return empty(shape, dtype, **options)


def ones(shape: Shape, dtype: Any = float, **options: Any) -> Array:
    """Return a new shared array of ones; arguments as `empty`."""
    return full(shape, 1, dtype, **options)


def full(
    shape: Shape,
    fill_value: Any,
    dtype: Any = None,
    *,
    order: str = "C",
    name: str | None = None,
    capacity: int | None = None,
    mode: int = 0o600,
    backend: str = "shm",
) -> Array:
    """Return a new shared array of `fill_value`, by default of its dtype; arguments as `empty`."""
    lengths = _check_shape(shape)
    kind = np.asarray(fill_value).dtype if dtype is None else np.dtype(dtype)
    if order not in ("C", "F"):
        raise ValueError(f'order must be "C" or "F", got {order!r}')
    room = None
    if capacity is not None:
        rows = check_length(capacity)
        if order != "C" or not lengths:
            raise ValueError('capacity needs order="C" and at least one dimension')
        if rows < lengths[0]:
            raise ValueError(f"capacity {rows} is less than the length {lengths[0]}")
        room = dtypes.count_bytes((rows, *lengths[1:]), kind)
    return create(lengths, kind, order == "F", room, name, mode, backend, contents=fill_value)


def empty_like(prototype: Any, dtype: Any = None, **options: Any) -> Array:
    """Return a new shared array of zeros, with the shape, dtype and memory order of `prototype`."""
    return full_like(prototype, NOTHING, dtype, **options)


def zeros_like(prototype: Any, dtype: Any = None, **options: Any) -> Array:
    """Return a new shared array of zeros, as `empty_like`: new shared memory is zero."""
    return empty_like(prototype, dtype, **options)


def ones_like(prototype: Any, dtype: Any = None, **options: Any) -> Array:
    """Return a new shared array of ones; arguments as `empty_like`."""
    return full_like(prototype, 1, dtype, **options)


def full_like(prototype: Any, fill_value: Any, dtype: Any = None, **options: Any) -> Array:
    """Return a new shared array filled with `fill_value`; arguments as `empty_like`."""
    model = np.asanyarray(prototype)
    kind = model.dtype if dtype is None else dtype
    axes = sorted(range(model.ndim), key=lambda axis: -abs(model.strides[axis]))
    if model.flags.forc or axes == sorted(axes) or {"capacity", "order"} & set(options):
        options.setdefault("order", "F" if model.flags.fnc else "C")
        return full(model.shape, fill_value, kind, **options)
    made = full([model.shape[axis] for axis in axes], NOTHING, kind, **options)
    result = made.transpose(np.argsort(axes))
    if fill_value is not NOTHING:
        result[...] = fill_value
    return result


def share(
    array: Any,
    *,
    copy: bool | None = None,
    name: str | None = None,
    mode: int = 0o600,
    backend: str = "shm",
) -> Array:
    """Return the array in shared memory: a copy, or the array itself if it is shared already.

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
    dtypes.check(source.dtype)
    fortran = source.flags.fnc  # and not in C order, too
    flat = source.T if fortran else source
    whole = flat.flags.c_contiguous and source.size > 0
    data, contents = (flat.reshape(-1).view(np.uint8), NOTHING) if whole else (None, source)
    return create(source.shape, source.dtype, fortran, None, name, mode, backend, data, contents)


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

    `capacity` are the bytes to map now and allocate when needed.
    """
    full_name, mode = _check_place(name, mode, backend)
    anonymous = backend == "memfd"
    process.ready(not anonymous)
    family = process.home
    plan, packed = headers.plan(shape, dtype, fortran, capacity, family)
    where = posix.PLACES[backend]
    if plan.stop >= LARGE:
        check_space(plan.stop, where)
    noise = os.urandom(headers.NONCE_BYTES + naming.RANDOM_BYTES)
    nonce = noise[: headers.NONCE_BYTES]
    first = naming.segment_name(family, noise[headers.NONCE_BYTES :])
    if full_name is not None and posix.DIRECTORY is None:
        first = full_name  # a second entry is impossible there
    pid = os.getpid()
    # A signal raises in calls: from here to the block no call may lose the descriptor.
    if anonymous:
        fd = posix.create_anonymous(f"synk-shm:{first[1:]}")
        first, owned = f"/proc/{pid}/fd/{fd}", []
    else:
        fd, owned = posix.create(first, mode), [first]
    try:
        try:
            if mode & 0o077 or anonymous:  # an explicit mode: the umask does not apply
                os.fchmod(fd, mode)
            mapping = _map_new(fd, plan, first, data)
            posix.seal(fd)  # no effect on files with names
        except OSError as error:
            posix.raise_mapped(error, where, asked=plan.stop)
        headers.write(mapping, packed, nonce)
        inode = os.fstat(fd).st_ino
        made = Segment(mapping, first, plan, nonce, mode, False, inode, owned)
        made.owner = True
        array = made.array(shape)
        if contents is not NOTHING:
            array[...] = contents
        if full_name is not None and full_name != first:
            posix.link(first, full_name)  # under this name the segment is complete
            owned.append(full_name)
    except BaseException:
        for done in owned:
            posix.remove(done)
        owned.clear()
        os.close(fd)
        raise
    if anonymous:
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
    allocate(fd, 0, stop if is_small else offset)  # large data begin on another page
    is_there = data is not None and stop < WORTH_THREADS and posix.write(fd, offset, data.data)
    mapping = map_memory(fd, plan.length, name)
    if not (is_small or is_there):
        memory = np.frombuffer(mapping, np.uint8)
        if not populate(memory, offset, stop, data):
            allocate(fd, offset, stop)
            if data is not None:
                memory[offset:stop] = data
    return mapping


def check_length(length: Any) -> int:
    """Return a length as an int; refuse bools and negative numbers."""
    if isinstance(length, (bool, np.bool_)):
        raise TypeError(f"a length must be an int, got {length!r}")
    value = operator.index(length)
    if value < 0:
        raise ValueError(f"a length must not be negative, got {value}")
    return value


def _check_shape(shape: Shape) -> tuple[int, ...]:
    if type(shape) is int and shape >= 0:  # by far the most frequent
        return (shape,)
    given = (shape,) if isinstance(shape, (int, np.integer)) else shape
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"a shape is an int or a sequence of ints, got {shape!r}")
    lengths, most = tuple(map(check_length, given)), dtypes.MAX_DIMENSIONS
    if len(lengths) > most:
        raise ValueError(f"NumPy arrays have up to {most} dimensions, got {len(lengths)}")
    return lengths


def _check_place(name: str | None, mode: int, backend: str) -> tuple[str | None, int]:
    """Return the system's name for a given name, and the permission bits."""
    if backend not in ("shm", "memfd"):
        raise ValueError(f'backend must be "shm" or "memfd", got {backend!r}')
    full = None
    if name is not None:
        if backend == "memfd":
            raise ValueError('backend="memfd" has no names; pass a handle, or use backend="shm"')
        full = naming.system_name(name)
        if name.startswith("/"):
            raise ValueError(f"a name must not contain '/', got {name!r}")
    bits = operator.index(mode)
    if isinstance(mode, bool) or bits & ~0o777 or bits & 0o600 != 0o600:
        raise ValueError(f"mode must be within 0o600 and 0o777, got {bits:#o}")
    return full, bits
