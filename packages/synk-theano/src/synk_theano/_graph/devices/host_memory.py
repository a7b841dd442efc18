"""Cpu memory that a CUDA device copies from and to by itself: pages that are locked.

From and to such pages a copy is quick, and asynchronous: who orders it goes on at once. So memory
that is read must not change, and memory that is written has no meaning, before the copy is done.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from typing import Any, Dict, List, NamedTuple

import numpy as np

from synk_comm import cuda
from synk_theano._graph.values import is_on_device

_logger = logging.getLogger(__name__)

SMALLEST_LOCK = 1 << 16
"""Bytes; for less, to lock pages takes longer than it saves."""

LARGEST_LOCK = 1 << 30
"""Bytes; rows of larger arrays go by way of a buffer with locked pages. To lock takes a third of a
second for a gigabyte, and what is locked cannot be swapped out."""

STREAM = 0
"""The default stream: libgpuarray's own waits for it, and it for libgpuarray's."""

_BUSY_S, _NAP_S = 0.002, 0.00005
"""How long a wait looks all the time, and how long it sleeps then between two looks."""

LETTERS = 1 << 17
"""Bytes of results that are sent home as soon as they are ready."""


class LockedPages:
    """Cpu memory with locked pages, and the copies from it that are under way.

    Args:
        device: ordinal of the device.

    Attributes:
        event: happens when the copies that were ordered last are done.
        under_way: whether there are any.
    """

    def __init__(self, driver: Any, device: int) -> None:
        self.device = device
        self._driver = driver
        self._spans: Dict[int, int] = {}  # begin -> end
        self._refused: Dict[int, int] = {}
        self.event = 0
        self.under_way = False
        self._owner = os.getpid()

    def lock(self, array: np.ndarray) -> None:
        """Lock the pages of an array for as long as it lives; nothing if that is refused.

        The pages are those of the array that it is a view of: whole ones never overlap.
        """
        array = owner_of(array)
        begin = _address(array)
        end = begin + array.nbytes
        too_many = array.nbytes > LARGEST_LOCK
        if too_many or self._holds(begin, end) or self._refused.get(begin) == end:
            return
        try:
            with self._driver.entered(self.device):
                self._driver.lock_pages(begin, end - begin)
        except cuda.CudaError as error:
            # A limit of the container, or pages that are locked under another array: copies from
            # pages that are not locked are right, too.
            self._refused[begin] = end
            _logger.debug("pages of %d bytes are not locked: %s", array.nbytes, error)
            return
        self._spans[begin] = end
        weakref.finalize(array, self._unlock, begin).atexit = False

    def _unlock(self, begin: int) -> None:
        if os.getpid() == self._owner and self._spans.pop(begin, None) is not None:
            self._refused.clear()  # it may have been in the way
            self.settle()
            with self._driver.entered(self.device):
                self._driver.unlock_pages(begin)

    def _holds(self, begin: int, end: int) -> bool:
        spans = tuple(self._spans.items())  # a finalizer may change it at any time
        return any(start <= begin and end <= stop for start, stop in spans)

    def copy(self, array: np.ndarray, pointer: int) -> bool:
        """Enqueue a copy to the device; False if the array's pages are not locked."""
        begin = _address(array)
        if not self._holds(begin, begin + array.nbytes):
            return False
        driver = self._driver
        with driver.entered(self.device):
            if not self.event:
                self.event = driver.event()
            driver.upload_on(STREAM, pointer, begin, array.nbytes)
            driver.record(self.event, STREAM)
        self.under_way = True
        return True

    def settle(self) -> None:
        """Wait for the copies."""
        if self.under_way:
            _await(self._driver, self.device, self.event)
            self.under_way = False


def owner_of(array: np.ndarray) -> np.ndarray:
    """The array whose memory it is; itself, if it is no view of another."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


class Letter(NamedTuple):
    """A device array on its way to host memory.

    Attributes:
        room: where it will be.
        value: the array itself, which has to live until then.
    """

    room: np.ndarray
    value: Any


class Letters:
    """Small device arrays that are copied to host memory as soon as they are ready.

    Without them a result comes after all that was ordered later, such as the step of the
    parameters, and only then the next order can be given: the device would wait for it.

    Args:
        room: uint8 vector in host memory, its pages locked.
    """

    def __init__(self, driver: Any, device: int, room: np.ndarray) -> None:
        self._driver = driver
        self._device = device
        self._room = room
        self._used = 0
        with driver.entered(device):
            self.event = driver.event()

    @property
    def under_way(self) -> bool:
        return self._used > 0

    def post(self, values: List[Any]) -> List[Any]:
        """Order the copies of what there is room for."""
        posted = list(values)
        with self._driver.entered(self._device):
            for i, value in enumerate(values):
                if not is_on_device(value) or not value.size:
                    continue
                nbytes = value.size * value.itemsize
                if self._used + nbytes > len(self._room) or not value.flags["C_CONTIGUOUS"]:
                    continue
                room = self._room[self._used : self._used + nbytes]
                # Each begins where any dtype may.
                self._used += -(-nbytes // 16) * 16
                pointer = int(value.gpudata) + int(value.offset)
                self._driver.download_on(STREAM, _address(room), pointer, nbytes)
                posted[i] = Letter(room.view(value.dtype).reshape(value.shape), value)
            self._driver.record(self.event, STREAM)
        return posted

    def arrive(self) -> None:
        """Wait for all copies that were ordered; then there is room again."""
        if self._used:
            _await(self._driver, self._device, self.event)
            self._used = 0


def _await(driver: Any, device: int, event: int) -> None:
    """Wait for an event. What keeps it waiting in turn is watched by the communicator."""
    began = time.monotonic()
    with driver.entered(device):
        while not driver.has_happened(event):
            time.sleep(0 if time.monotonic() - began < _BUSY_S else _NAP_S)
