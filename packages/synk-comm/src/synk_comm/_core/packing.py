"""Arrays as flat stretches of bytes.

Small arrays of one dtype in a list are packed into one stretch, to save rounds. Large ones stay
alone: packing would copy them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from .calls import Kind, count_bytes, text_dtype
from .ops import Array

PACKED_BYTES = 1 << 16
"""Longest array that is packed."""
BUNDLE_BYTES = 1 << 22
# NumPy 2 has it elsewhere than NumPy 1.
_bounds: Any = getattr(np, "byte_bounds", None) or cast(Any, np.lib).array_utils.byte_bounds
NUMBERS = (int, float, complex, np.generic)


class Bundle(NamedTuple):
    """The arrays of a list that make one stretch."""

    dtype: np.dtype[Any]
    members: tuple[int, ...]
    nbytes: int


def bundles(kinds: Sequence[Kind]) -> list[Bundle]:
    """Decide, from dtypes and shapes alone, which arrays travel together."""
    last_of: dict[str, Bundle] = {}  # small ones of a dtype
    done: list[Bundle] = []
    for which, kind in enumerate(kinds):
        alone = Bundle(text_dtype(kind[0]), (which,), count_bytes(kind))
        last = last_of.get(kind[0])
        if alone.nbytes > PACKED_BYTES:
            done.append(alone)
        elif last is None or last.nbytes + alone.nbytes > BUNDLE_BYTES:
            done += [last] if last is not None else []
            last_of[kind[0]] = alone
        else:
            members, nbytes = (*last.members, which), last.nbytes + alone.nbytes
            last_of[kind[0]] = Bundle(alone.dtype, members, nbytes)
    return [*done, *last_of.values()]


def pack(arrays: Sequence[Array], bundle: Bundle) -> Array:
    """Return the bundle's arrays as flat bytes; a single one in its own memory if contiguous."""
    if len(bundle.members) == 1:
        return flat_bytes(contiguous(arrays[bundle.members[0]]))
    packed = np.empty(sum(arrays[which].size for which in bundle.members), bundle.dtype)
    # Without ``out`` the result would be of native byte order.
    np.concatenate([arrays[which].reshape(-1) for which in bundle.members], out=packed)
    return flat_bytes(packed)


def unpack(flat: Array, bundle: Bundle, arrays: Sequence[Array]) -> None:
    """Copy flat bytes into the bundle's arrays, unless they are its only array's memory."""
    start = 0
    for which in bundle.members:
        array = arrays[which]
        stop = start + array.nbytes
        values = typed(flat[start:stop], array.dtype, array.shape)
        if len(bundle.members) > 1 or not _same_memory(values, array):
            np.copyto(array, values)
        start = stop


def place_for(bundle: Bundle, arrays: Sequence[Array], avoid: Array | None = None) -> Array:
    """Return flat memory for a bundle: its only array's, unless ``avoid`` overlaps in part."""
    if len(bundle.members) == 1:
        array = arrays[bundle.members[0]]
        if array.flags.c_contiguous:
            flat = flat_bytes(array)
            if avoid is None or not np.may_share_memory(flat, avoid) or _same_memory(flat, avoid):
                return flat
    return np.empty(bundle.nbytes, np.uint8)


def new_arrays(kinds: Sequence[Kind]) -> list[Array]:
    return [np.empty(shape, text_dtype(dtype)) for dtype, shape in kinds]


def typed(flat: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return flat bytes as an array over the same memory."""
    if not flat.nbytes:  # NumPy makes no view of items without bytes
        return np.empty(shape, dtype)
    return flat.view(dtype).reshape(shape)


def overlap(sources: Sequence[Array], targets: Sequence[Array]) -> bool:
    """Return whether writing some target may overwrite another source of the list."""
    if all(source is target for source, target in zip(sources, targets)):
        return False
    spans = [(*_bounds(x), which, False) for which, x in enumerate(sources)]
    spans += [(*_bounds(x), which, True) for which, x in enumerate(targets)]
    spans = sorted(span for span in spans if span[1] > span[0])
    reach: list[tuple[int, int, bool]] = []
    for begin, end, which, is_target in spans:
        reach = [old for old in reach if old[0] > begin]
        if any(old[2] != is_target and old[1] != which for old in reach):
            return True
        reach.append((end, which, is_target))
    return False


def is_list(x: Any) -> bool:
    """Return whether an argument is a list of arrays rather than one array."""
    return isinstance(x, (list, tuple)) and len(x) > 0 and isinstance(x[0], np.ndarray)


def as_array(x: Any) -> Array:
    """Return an argument as an array; TypeError if it is an object."""
    array = np.asarray(x)
    if array.dtype.hasobject and not hasattr(x, "dtype"):
        raise TypeError(
            f"got a {type(x).__name__}, expected an array, numbers or a list of arrays; of a dict "
            "give list(d.values()); objects go by the *_object methods"
        )
    return array


def can_receive(out: Any, x: Array) -> bool:
    """Return whether ``out`` can receive an array like ``x``."""
    alike = type(out) is np.ndarray and out.dtype == x.dtype and out.shape == x.shape
    return bool(alike and out.flags.writeable)


def bare(x: Array) -> Any:
    """Return a new array; without axes as a scalar, as NumPy's functions do."""
    return x if x.ndim else x[()]


def contiguous(x: Array) -> Array:
    """Return ``x`` in C order, itself if it is; unlike ascontiguousarray this keeps 0-d."""
    return np.asarray(x, order="C")


def flat_bytes(x: Array) -> Array:
    """Return the memory of a C-contiguous array as flat bytes."""
    if not x.nbytes:
        return np.empty(0, np.uint8)
    return x.reshape(-1).view(np.uint8)


def address(x: Array) -> int:
    """Return where an array begins in memory."""
    return int(x.__array_interface__["data"][0])


def _same_memory(x: Array, y: Array) -> bool:
    return y.flags.c_contiguous and (not y.nbytes or address(x) == address(y))
