"""Values on the device: JAX's arrays, and those that a program is still to compute."""

from __future__ import annotations

import math
import os
import sys
from typing import Any, Callable, List, Tuple

import numpy as np

STAND_INS = "SYNKHRONOS_JAX_STAND_INS"
"""Name of the environment variable with the number of "GPUs" of a test: JAX's CPU device in each
rank, and the ranks' host memory in place of NCCL. With a "!" behind it each act is a program."""


def stand_ins() -> int:
    """Return the number of stand-ins for GPUs; 0 in earnest."""
    return int(os.environ.get(STAND_INS, "").rstrip("!") or 0)


def values_at_once() -> bool:
    """Return whether nothing is left to be computed together."""
    return os.environ.get(STAND_INS, "").endswith("!")


class Lazy:
    """An array that a program will compute, or has computed.

    Whatever asks for more than its form makes the program run now.
    """

    __slots__ = ("__weakref__", "_flush", "array", "dtype", "notes", "shape", "wire")

    def __init__(self, flush: Callable[[], Any], notes: int, wire: Any, like: Any) -> None:
        self._flush = flush
        # The number of the notes that it belongs to, and its place in them.
        self.notes, self.wire = notes, wire
        self.shape: Tuple[int, ...] = like.shape
        self.dtype: Any = like.dtype
        self.array: Any = None

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    def force(self) -> Any:
        """Return the array; compute it now if it is not there."""
        if self.array is None:
            self._flush()
            if self.array is None:
                raise RuntimeError("this value belongs to an order that was undone")
        return self.array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self.force(), dtype)

    def __getitem__(self, key: Any) -> Any:
        return self.force()[key]

    def __len__(self) -> int:
        return len(self.force())

    def copy(self) -> Any:
        """Return a copy."""
        return self.force().copy()

    def reshape(self, *shape: Any) -> Any:
        """Return the array in another shape."""
        return self.force().reshape(*shape)

    def astype(self, dtype: Any) -> Any:
        """Return the array in another dtype."""
        return self.force().astype(dtype)


ARRAYS: List[type] = []
"""The types of values on the device; empty until one is taken."""


def learn_types() -> None:
    """Recognize JAX's arrays from now on; JAX's back end has been initialized."""
    if not ARRAYS:
        ARRAYS.extend((Lazy, type(sys.modules["jax.numpy"].zeros(()))))


def is_array(value: Any) -> bool:
    """Return whether a value lies on the device, or will."""
    return type(value) in ARRAYS


def real(value: Any) -> Any:
    """Return JAX's array, computed now if need be; other values unchanged."""
    return value.force() if type(value) is Lazy else value


def to_host(value: Any) -> Any:
    """Return a value as a new array in host memory; others unchanged. Waits for it."""
    return np.array(real(value)) if type(value) in ARRAYS else value


def to_device(value: Any, place: Any) -> Any:
    """Return a new array on a device of JAX's; others unchanged. `value` must not change before it
    has been read."""
    if type(value) is not np.ndarray:
        return value
    if not value.dtype.isnative or place.platform == "cpu":
        value = _own(value)  # because JAX would use its memory there
    return sys.modules["jax"].device_put(value, place)


SMALL = 1 << 16
"""Bytes of an argument that comes to the device together with a program: JAX needs a tenth of a
millisecond to bring it before."""


def with_function(value: Any, bring: Callable[[Any], Any]) -> Any:
    """Return an argument of a function: on the device, or small and of its own."""
    if type(value) is np.ndarray:
        return _own(value) if value.nbytes <= SMALL else bring(value)
    return value if type(value) in ARRAYS else np.asarray(value)


def _own(value: np.ndarray) -> np.ndarray:
    return np.array(value, value.dtype.newbyteorder("="), order="C")
