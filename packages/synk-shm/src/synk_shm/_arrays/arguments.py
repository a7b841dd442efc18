"""Check the arguments of users (shapes, lengths, names, modes) before they have effects."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Union

import numpy as np

from synk_shm._segments import dtypes, naming

Shape = Union[int, Iterable[int]]

BACKENDS = ("shm", "memfd")


def check_shape(shape: Shape) -> tuple[int, ...]:
    """Return the shape as a tuple of ints; TypeError or ValueError if it is none."""
    if type(shape) is int and shape >= 0:  # by far the most frequent
        return (shape,)
    given = (shape,) if isinstance(shape, (int, np.integer)) else shape
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"a shape is an int or a sequence of ints, got {shape!r}")
    lengths = tuple(map(check_length, given))
    if len(lengths) > dtypes.MAX_DIMENSIONS:
        raise ValueError(
            f"NumPy arrays have up to {dtypes.MAX_DIMENSIONS} dimensions, got {len(lengths)}"
        )
    return lengths


def check_length(length: Any) -> int:
    """Return a length as an int; refuse bools and negative numbers."""
    if isinstance(length, (bool, np.bool_)):
        raise TypeError(f"a length must be an int, got {length!r}")
    value = operator.index(length)
    if value < 0:
        raise ValueError(f"a length must not be negative, got {value}")
    return value


def check_capacity(capacity: int, shape: tuple[int, ...], dtype: np.dtype[Any], order: str) -> int:
    """Return the capacity in bytes for one in rows."""
    rows = check_length(capacity)
    if order != "C" or not shape:
        raise ValueError('capacity needs order="C" and at least one dimension')
    if rows < shape[0]:
        raise ValueError(f"capacity {rows} is less than the length {shape[0]}")
    return dtypes.count_bytes((rows, *shape[1:]), dtype)


def check_backend(backend: str, name: str | None) -> str | None:
    """Return the system's name for a given name; None for None."""
    if backend not in BACKENDS:
        raise ValueError(f'backend must be "shm" or "memfd", got {backend!r}')
    if name is None:
        return None
    if backend == "memfd":
        raise ValueError('backend="memfd" has no names; pass a handle, or use backend="shm"')
    full = naming.system_name(name)
    if name.startswith("/"):
        raise ValueError(f"a name must not contain '/', got {name!r}")
    return full


def check_mode(mode: int) -> int:
    """Return permission bits: at least the owner's, at most those of all users."""
    if mode == 0o600:
        return mode
    value = operator.index(mode)
    if isinstance(mode, bool) or value & ~0o777 or value & 0o600 != 0o600:
        raise ValueError(f"mode must be within 0o600 and 0o777, got {value:#o}")
    return value
