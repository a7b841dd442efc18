"""Convolutions and pooling of NumPy arrays: views of windows, and products by BLAS.

They are as fast as loops that Numba compiles, and need no seconds of compiling. Images have the
shape (rows, channels, height, width); a geometry has two numbers or pairs each, for both axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import numpy as np

CHUNK = 2**20
"""Bytes: windows of so many images are copied together as have this size, but of one at least."""


def margins(size: Any, dilation: Any, padding: Any) -> Any:
    """Return the padding before and after an axis, for windows of a size, perhaps an expression.

    A negative padding is "same": as many entries as windows with a step of 1 lack, the larger half
    of them after the axis.
    """
    lacking = (size - 1) * dilation
    return padding if padding[0] >= 0 else (lacking // 2, lacking - lacking // 2)


def number_of_windows(length: Any, size: Any, step: Any, padding: Any, dilation: Any = 1) -> Any:
    """Return the number along an axis, perhaps an expression; None if it is unknown."""
    if length is None or size is None:
        return None
    around = sum(margins(size, dilation, padding))
    count = (length + around - (size - 1) * dilation - 1) // step + 1
    if isinstance(count, int) and count < 1:
        raise ValueError(
            f"a window of {size}, dilation {dilation}, is larger than {length} + padding"
        )
    return count


def _windows(
    x: Any, size: Any, step: Any, padding: Any, dilation: Any = (1, 1), fill: float = 0
) -> tuple[Any, Any]:
    """Return views of a padded copy: the images, and windows of the axes rows, channels, 2 within a
    window, 2 of windows."""
    counts = map(number_of_windows, x.shape[2:], size, step, padding, dilation)
    shape = (*x.shape[:2], *size, *counts)
    around = [(0, 0), (0, 0), *map(margins, size, dilation, padding)]
    # np.pad does the same, and takes longer for a chunk of rows.
    whole = np.full([n + sum(both) for n, both in zip(x.shape, around)], fill, x.dtype)
    images = whole[tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, around))]
    images[:] = x
    down, across = whole.strides[2:]
    within = down * dilation[0], across * dilation[1]
    strides = (*whole.strides[:2], *within, down * step[0], across * step[1])
    return images, np.lib.stride_tricks.as_strided(whole, shape, strides)


def _by_chunks(x: Any, w: Any, geometry: Any) -> Iterator[Any]:
    """Yield slices of the rows, with their padded images and windows."""
    step, padding, dilation, groups = geometry
    if w.shape[1] * groups != x.shape[1]:
        raise ValueError(f"got {x.shape[1]} channels, expected {w.shape[1]} for each of {groups}")
    bytes_each = math.prod(x.shape[1:] + w.shape[2:]) * x.itemsize // (step[0] * step[1])
    several = max(1, CHUNK // max(1, bytes_each))
    for start in range(0, len(x), several):
        rows = slice(start, start + several)
        yield rows, *_windows(x[rows], w.shape[2:], step, padding, dilation)


def _columns(windows: Any, groups: int) -> Any:
    """Return windows as matrices of a column each, for each row and group."""
    rows, *within, height, width = windows.shape
    return windows.reshape(rows, groups, math.prod(within) // groups, height * width)


def convolve(geometry: Any, x: Any, w: Any) -> Any:
    """Return the outputs, of images and filters."""
    *ways, groups = geometry
    counts = map(number_of_windows, x.shape[2:], w.shape[2:], *ways)
    y = np.empty((len(x), len(w), *counts), x.dtype)
    filters = w.reshape(groups, len(w) // groups, -1)
    for rows, _, windows in _by_chunks(x, w, geometry):
        y[rows] = np.matmul(filters, _columns(windows, groups)).reshape(y[rows].shape)
    return y


def to_images(geometry: Any, w: Any, y: Any, like: Any) -> Any:
    """Return the gradient for images, of filters, the gradient for outputs, and the images."""
    x = np.zeros(like.shape, y.dtype)
    filters = w.reshape(geometry[3], len(w) // geometry[3], -1).transpose(0, 2, 1)
    for rows, images, windows in _by_chunks(x, w, geometry):
        columns = np.matmul(filters, _columns(y[rows], geometry[3])).reshape(windows.shape)
        for i, j in np.ndindex(*w.shape[2:]):
            windows[:, :, i, j] += columns[:, :, i, j]
        x[rows] = images
    return x


def to_filters(geometry: Any, x: Any, y: Any, like: Any) -> Any:
    """Return the gradient for filters, of images, the gradient for outputs, and the filters."""
    groups = geometry[3]
    w = np.zeros((groups, len(like) // groups, like[0].size), x.dtype)
    for rows, _, windows in _by_chunks(x, like, geometry):
        columns = _columns(windows, groups).transpose(0, 1, 3, 2)
        w += np.matmul(_columns(y[rows], groups), columns).sum(axis=0)
    return w.reshape(like.shape)


def _entries(geometry: Any, x: Any, fill: float = 0) -> tuple[Any, list[Any]]:
    """Return views of a padded copy: the images, and for each place in a window its entries."""
    size, step, padding, _ = geometry
    images, windows = _windows(x, size, step, padding, fill=fill)
    return images, [windows[:, :, i, j] for i, j in np.ndindex(*size)]


def pool(geometry: Any, x: Any) -> Any:
    """Return the maxima or averages of windows."""
    is_max = geometry[3]
    first, *others = _entries(geometry, x, -np.inf if is_max else 0)[1]
    result = first.copy()
    for entries in others:
        (np.maximum if is_max else np.add)(result, entries, out=result)
    return result if is_max else result / x.dtype.type(1 + len(others))


def _chosen(geometry: Any, x: Any) -> Iterator[Any]:
    """Yield for each place in a window whether the (first) maximum is there."""
    best = pool(geometry, x)
    left = np.ones(best.shape, bool)
    for entries in _entries(geometry, x, -np.inf)[1]:
        there = left & (entries == best)
        left &= ~there
        yield there


def pool_along(geometry: Any, z: Any, x: Any) -> Any:
    """Return the entries of z where the windows' maxima of x are, or averages of z."""
    if not geometry[3]:
        return pool(geometry, z)
    pairs = zip(_chosen(geometry, x), _entries(geometry, z)[1])
    return sum(np.where(there, entries, 0) for there, entries in pairs)


def pool_back(geometry: Any, y: Any, x: Any) -> Any:
    """Return the gradient for images, of the gradient for windows, and the images."""
    images, places = _entries(geometry, np.zeros_like(x))
    parts: Any = repeat(y / y.dtype.type(len(places)))
    if geometry[3]:
        parts = (np.where(there, y, 0) for there in _chosen(geometry, x))
    for entries, part in zip(places, parts):
        entries += part
    return np.ascontiguousarray(images)
