"""Making shared arrays."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Union

import numpy as np

from synk_shm._arrays.create import NOTHING, create
from synk_shm._arrays.segment import Array, segment
from synk_shm._segments import dtypes, naming

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
    """Return a new shared array. Its elements are zero, since new pages are.

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
    return create(
        lengths, kind, order == "F", room, *_check_place(name, mode, backend), contents=fill_value
    )


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
        options.setdefault("order", _order_of(model))
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
    order = _order_of(source)
    flat = source.T if order == "F" else source
    whole = flat.flags.c_contiguous and source.size > 0
    return create(
        source.shape,
        source.dtype,
        order == "F",
        None,
        *_check_place(name, mode, backend),
        data=flat.reshape(-1).view(np.uint8) if whole else None,
        contents=NOTHING if whole else source,
    )


def check_length(length: Any) -> int:
    """Return a length as an int; refuse bools and negative numbers."""
    if isinstance(length, (bool, np.bool_)):
        raise TypeError(f"a length must be an int, got {length!r}")
    value = operator.index(length)
    if value < 0:
        raise ValueError(f"a length must not be negative, got {value}")
    return value


def _check_shape(shape: Shape) -> tuple[int, ...]:
    """Return the shape as a tuple of ints; TypeError or ValueError if it is none."""
    if type(shape) is int and shape >= 0:  # by far the most frequent
        return (shape,)
    given = (shape,) if isinstance(shape, (int, np.integer)) else shape
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"a shape is an int or a sequence of ints, got {shape!r}")
    lengths, most = tuple(map(check_length, given)), dtypes.MAX_DIMENSIONS
    if len(lengths) > most:
        raise ValueError(f"NumPy arrays have up to {most} dimensions, got {len(lengths)}")
    return lengths


def _check_place(name: str | None, mode: int, backend: str) -> tuple[str | None, int, str]:
    """Return the system's name for a given name, the permission bits, and the backend."""
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
    return full, bits, backend


def _order_of(array: Array) -> str:
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
