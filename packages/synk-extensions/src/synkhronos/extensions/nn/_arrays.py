"""Convolutions and pooling of NumPy arrays: views of windows, and products by BLAS.

They are as fast as loops that Numba compiles, and need no seconds of compiling. Images have the
shape (rows, channels, height, width); a geometry has two numbers or pairs each, for both axes.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """Return the number of windows along an axis, perhaps an expression."""
    around = sum(margins(size, dilation, padding))
    return (length + around - (size - 1) * dilation - 1) // step + 1


def _padded(x: Any, size: Any, padding: Any, dilation: Any, value: float = 0) -> Any:
    """Return a copy of images with their padding, and the part of it that they are."""
    height, width = x.shape[2:]
    (top, bottom), (left, right) = map(margins, size, dilation, padding)
    shape = (*x.shape[:2], top + height + bottom, left + width + right)
    whole = np.full(shape, value, x.dtype)
    inside = whole[:, :, top : top + height, left : left + width]
    inside[:] = x
    return whole, inside


def _windows(whole: Any, size: Any, step: Any, dilation: Any = (1, 1)) -> Any:
    """Return a view with the axes rows, channels, 2 within a window, 2 of windows."""
    counts = map(number_of_windows, whole.shape[2:], size, step, [(0, 0)] * 2, dilation)
    down, across = whole.strides[2:]
    strides = (down * dilation[0], across * dilation[1], down * step[0], across * step[1])
    shape = (*whole.shape[:2], *size, *counts)
    if min(shape[4:]) < 1:
        raise ValueError(f"images of {whole.shape[2:]} with padding are smaller than windows")
    return np.lib.stride_tricks.as_strided(whole, shape, (*whole.strides[:2], *strides))


def _by_chunks(x: Any, w: Any, counts: Any, geometry: Any) -> Iterator[Any]:
    """Yield slices of the rows, with their padded images and windows."""
    step, padding, dilation, groups = geometry
    if w.shape[1] * groups != x.shape[1]:
        raise ValueError(f"got {x.shape[1]} channels, expected {w.shape[1]} for each of {groups}")
    bytes_each = x.shape[1] * w.shape[2] * w.shape[3] * counts[0] * counts[1] * x.itemsize
    several = max(1, CHUNK // max(1, bytes_each))
    for start in range(0, len(x), several):
        rows = slice(start, start + several)
        whole, inside = _padded(x[rows], w.shape[2:], padding, dilation)
        yield rows, inside, _windows(whole, w.shape[2:], step, dilation)


def _counts(x: Any, w: Any, geometry: Any) -> Any:
    step, padding, dilation, _ = geometry
    return tuple(map(number_of_windows, x.shape[2:], w.shape[2:], step, padding, dilation))


def _columns(windows: Any, groups: int) -> Any:
    """Return windows as matrices of a column each, for each row and group."""
    n, channels, height, width, *counts = windows.shape
    shape = (n, groups, channels // groups * height * width, counts[0] * counts[1])
    return windows.reshape(shape)


def convolve(geometry: Any, x: Any, w: Any) -> Any:
    """Return the outputs, of images and filters."""
    counts, groups = _counts(x, w, geometry), geometry[3]
    y = np.empty((len(x), len(w), *counts), x.dtype)
    filters = w.reshape(groups, len(w) // groups, -1)
    for rows, _, windows in _by_chunks(x, w, counts, geometry):
        y[rows] = np.matmul(filters, _columns(windows, groups)).reshape(y[rows].shape)
    return y


def to_images(geometry: Any, w: Any, y: Any, like: Any) -> Any:
    """Return the gradient for images, of filters, the gradient for outputs, and the images."""
    counts, groups = y.shape[2:], geometry[3]
    x = np.zeros(like.shape, y.dtype)
    filters = w.reshape(groups, len(w) // groups, -1).transpose(0, 2, 1)
    for rows, inside, windows in _by_chunks(x, w, counts, geometry):
        planes = y[rows].reshape(len(inside), groups, -1, counts[0] * counts[1])
        columns = np.matmul(filters, planes).reshape(windows.shape)
        for i, j in np.ndindex(*w.shape[2:]):
            windows[:, :, i, j] += columns[:, :, i, j]
        x[rows] = inside
    return x


def to_filters(geometry: Any, x: Any, y: Any, like: Any) -> Any:
    """Return the gradient for filters, of images, the gradient for outputs, and the filters."""
    counts, groups = y.shape[2:], geometry[3]
    w = np.zeros((groups, len(like) // groups, like[0].size), x.dtype)
    for rows, inside, windows in _by_chunks(x, like, counts, geometry):
        planes = y[rows].reshape(len(inside), groups, -1, counts[0] * counts[1])
        w += np.matmul(planes, _columns(windows, groups).transpose(0, 1, 3, 2)).sum(axis=0)
    return w.reshape(like.shape)


def pool(geometry: Any, x: Any) -> Any:
    """Return the maxima or averages of windows."""
    size, step, padding, is_max = geometry
    whole, _ = _padded(x, size, padding, (1, 1), -np.inf if is_max else 0)
    windows = _windows(whole, size, step)
    result = windows[:, :, 0, 0].copy()
    for i, j in list(np.ndindex(*size))[1:]:
        (np.maximum if is_max else np.add)(result, windows[:, :, i, j], out=result)
    return result if is_max else result / x.dtype.type(size[0] * size[1])


def _chosen(geometry: Any, x: Any) -> Iterator[Any]:
    """Yield the places in a window, each with those windows whose (first) maximum is there."""
    size, step, padding, _ = geometry
    best = pool(geometry, x)
    windows = _windows(_padded(x, size, padding, (1, 1), -np.inf)[0], size, step)
    left = np.ones(best.shape, bool)
    for i, j in np.ndindex(*size):
        there = left & (windows[:, :, i, j] == best)
        left &= ~there
        yield i, j, there


def pool_along(geometry: Any, z: Any, x: Any) -> Any:
    """Return the entries of z where the windows' maxima of x are, or averages of z."""
    size, step, padding, is_max = geometry
    if not is_max:
        return pool(geometry, z)
    windows = _windows(_padded(z, size, padding, (1, 1))[0], size, step)
    result = np.zeros(windows[:, :, 0, 0].shape, z.dtype)
    for i, j, there in _chosen(geometry, x):
        np.copyto(result, windows[:, :, i, j], where=there)
    return result


def pool_back(geometry: Any, y: Any, x: Any) -> Any:
    """Return the gradient for images, of the gradient for windows, and the images."""
    size, step, padding, is_max = geometry
    whole, inside = _padded(np.zeros_like(x), size, padding, (1, 1))
    windows = _windows(whole, size, step)
    if is_max:
        for i, j, there in _chosen(geometry, x):
            windows[:, :, i, j] += np.where(there, y, y.dtype.type(0))
    else:
        for i, j in np.ndindex(*size):
            windows[:, :, i, j] += y / y.dtype.type(size[0] * size[1])
    return np.ascontiguousarray(inside)
