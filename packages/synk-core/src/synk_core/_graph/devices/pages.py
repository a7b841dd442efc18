"""Host memory whose pages are locked: copies between it and a CUDA device are quick."""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from typing import Any, ContextManager, Dict, Tuple

import numpy as np

from synk_comm import cuda

_logger = logging.getLogger(__name__)

SMALLEST_LOCK = 1 << 16
"""Bytes below which locking pages takes longer than it saves."""

LARGEST_LOCK = 1 << 30
"""Bytes above which rows go through a buffer: to lock a gigabyte takes a third of a second, and
locked pages cannot be swapped out."""


class LockedPages:
    """Arrays with locked pages, for copies to and from one device."""

    def __init__(self, driver: cuda.Driver, device: int) -> None:
        self.driver = driver
        self.device = device
        self._spans: Dict[int, int] = {}  # begin -> end
        self._refused: Dict[int, int] = {}
        self._owner = os.getpid()

    def lock(self, array: np.ndarray) -> bool:
        """Lock the pages of an array, or of the array that it is a view of, while that exists;
        return False if it is too large. Whole arrays never overlap. A refusal is only logged."""
        is_small = array.nbytes < SMALLEST_LOCK
        while isinstance(array.base, np.ndarray):
            array = array.base
        begin = address_of(array)
        end = begin + array.nbytes
        if array.nbytes > LARGEST_LOCK:
            return False
        if is_small or self._holds(begin, end) or self._refused.get(begin) == end:
            return True
        try:
            with self.entered():
                self.driver.lock_pages(begin, end - begin)
        except cuda.CudaError as error:
            # A limit of the container, or pages locked for another array: slower copies.
            self._refused[begin] = end
            _logger.debug("pages of %d bytes are not locked: %s", array.nbytes, error)
            return True
        self._spans[begin] = end
        weakref.finalize(array, self._unlock, begin).atexit = False
        return True

    def buffer(self, shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return a new array with locked pages, unless it is small."""
        size = int(np.prod(shape, dtype=np.int64))
        nbytes = size * np.dtype(dtype).itemsize
        if nbytes < SMALLEST_LOCK:
            return np.empty(shape, dtype)
        # Pages of its own, so that no other array's are locked, too.
        array = np.frombuffer(mmap.mmap(-1, nbytes), dtype, size)
        self.lock(array)
        return array.reshape(shape)

    def _unlock(self, begin: int) -> None:
        if os.getpid() == self._owner and self._spans.pop(begin, None) is not None:
            self._refused.clear()  # these pages may have been the reason
            self.await_copies()
            with self.entered():
                self.driver.unlock_pages(begin)

    def await_copies(self) -> None:
        """Wait for copies before pages are unlocked; those who start one here wait for it."""

    def covers(self, array: np.ndarray) -> bool:
        """Return whether an array's pages are locked."""
        begin = address_of(array)
        return self._holds(begin, begin + array.nbytes)

    def _holds(self, begin: int, end: int) -> bool:
        spans = tuple(self._spans.items())  # a finalizer may change the dict at any time
        return any(start <= begin and end <= stop for start, stop in spans)

    def entered(self) -> ContextManager[None]:
        """Return a block for whose duration the device is this thread's current one."""
        return self.driver.entered(self.device)


def address_of(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
