"""A rank's device: how values get there, and which communicator takes them.

Host memory goes to the device by copies that are enqueued like everything else there. From pages
that are locked such a copy is quick and asynchronous, which has a price: the memory must not
change before the copy is done. So `settle` waits for that, before a rank says that it is ready
with an act: it waits for copies, not for what is computed from them.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

import synk_comm
from synk_comm import cuda

from ._values import is_on_device, on_host

_logger = logging.getLogger(__name__)

SMALLEST_LOCK = 1 << 16
"""Bytes; for less, to lock pages takes longer than it saves."""

LARGEST_LOCK = 1 << 30
"""Bytes; rows of larger arrays go by way of a buffer with locked pages. To lock takes a third of a
second for a gigabyte, and what is locked cannot be swapped out."""

_STREAM = 0
"""The default stream: libgpuarray's own waits for it, and it for libgpuarray's."""

_BUSY_S = 0.002

NCCL_DTYPES = frozenset(
    ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
)
"""What NCCL can reduce."""


class Host:
    """The processor: everything is where it has to be."""

    name = "cpu"
    is_gpu = False
    takes_collectives = False

    def connect(self, comm: synk_comm.Communicator) -> Any:
        """The communicator for values, given the one for host memory."""
        return comm

    def enter(self) -> None:
        """Nothing: every thread can compute."""

    def empty(self, shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
        """Room in host memory for what is to be brought."""
        return np.empty(shape, dtype)

    def lock(self, array: np.ndarray) -> None:
        """Nothing: there are no copies to be made quicker."""

    def wants_buffer(self, array: np.ndarray) -> bool:  # noqa: ARG002 - as of any device
        """Whether rows should be copied to a buffer of `empty` first."""
        return False

    def bring(self, array: np.ndarray) -> Any:
        """The array itself."""
        return array

    def settle(self) -> None:
        """Nothing is under way."""

    def fetch(self, comm: Any, results: List[Any]) -> List[Any]:  # noqa: ARG002 - as of any device
        """Results as the user gets them."""
        return results


class Gpu:
    """A device of Theano's gpuarray back end, which this process has taken into use.

    Args:
        name: Theano's, as in "cuda0" or "opencl0:0".
        context: libgpuarray's.
        nccl: whether collectives go through NCCL; else through host memory.

    Attributes:
        takes_collectives: whether the communicator takes device arrays.
    """

    is_gpu = True

    def __init__(self, name: str, context: Any, nccl: bool) -> None:
        self.name = name
        self.takes_collectives = False
        self._context = context
        self._nccl = nccl
        self._pages: Optional[_LockedPages] = None
        self._entered = threading.local()
        if name.startswith("cuda"):
            self._driver = driver = cuda.Driver()
            self._pages = _LockedPages(driver, ordinal_of(driver, name, context))

    def enter(self) -> None:
        """Make this thread fit to compute on the device.

        Some of Theano's operations (cuDNN's reductions and batch normalization) do not name their
        device: they work on the thread's current one, which is the first if nothing was said.
        """
        if self._pages is not None and not hasattr(self._entered, "done"):
            self._driver.make_current(self._pages.device)
            self._entered.done = True

    def connect(self, comm: synk_comm.Communicator) -> Any:
        """The communicator for values, given the one for host memory; all ranks do so together."""
        if not self._nccl or self._pages is None or comm.size == 1:
            return comm
        made = synk_comm.nccl(comm, device=self._pages.device, stream=_STREAM)
        self.takes_collectives = True
        return made

    def empty(self, shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
        """Room in host memory for what is to be brought, its pages locked."""
        size = int(np.prod(shape, dtype=np.int64))
        if self._pages is None or size * np.dtype(dtype).itemsize < SMALLEST_LOCK:
            return np.empty(shape, dtype)
        # Pages of its own: no other array's may be among those that are locked.
        pages = mmap.mmap(-1, size * np.dtype(dtype).itemsize)
        array = np.frombuffer(pages, dtype, size)
        self._pages.lock(array)
        return array.reshape(shape)

    def lock(self, array: np.ndarray) -> None:
        """Lock the pages of an array, for as long as it lives, if that makes copies quicker."""
        if self._pages is not None and SMALLEST_LOCK <= array.nbytes <= LARGEST_LOCK:
            self._pages.lock(array)

    def wants_buffer(self, array: np.ndarray) -> bool:
        """Whether rows should be copied to a buffer of `empty` first: the array is too large."""
        return self._pages is not None and array.nbytes > LARGEST_LOCK

    def bring(self, array: np.ndarray) -> Any:
        """A new device array with these values.

        The memory of `array` must not change before `settle`.
        """
        import pygpu

        dtype = array.dtype.newbyteorder("=")
        value = pygpu.empty(array.shape, dtype=dtype, context=self._context)
        if array.size:
            array = np.ascontiguousarray(array, dtype)
            if self._pages is None or not self._pages.copy(array, int(value.gpudata)):
                value.write(array)
        return value

    def settle(self) -> None:
        """Wait until all that was brought has been read."""
        if self._pages is not None:
            self._pages.settle()

    def fetch(self, comm: Any, results: List[Any]) -> List[Any]:
        """Results as the user gets them: in host memory. Waits for the device.

        While it waits it notices if a rank dies that the device waits for.
        """
        if self.takes_collectives and any(map(_has_device_values, results)):
            comm.synchronize()
        return [_fetched(result) for result in results]


AnyDevice = Any
"""`Host` or `Gpu`."""


def _has_device_values(result: Any) -> bool:
    if isinstance(result, (list, tuple)):
        return any(map(_has_device_values, result))
    return is_on_device(result)


def _fetched(result: Any) -> Any:
    if isinstance(result, list):
        return [_fetched(item) for item in result]
    if hasattr(result, "_replace"):
        return result._replace(values=_fetched(result.values))
    return on_host(result)


class _LockedPages:
    """Host memory with locked pages, and the copies from it that are under way.

    Args:
        device: ordinal of the device.
    """

    def __init__(self, driver: Any, device: int) -> None:
        self.device = device
        self._driver = driver
        self._spans: Dict[int, int] = {}  # begin -> end
        self._refused: Dict[int, int] = {}
        self._event = 0
        self._pending = False
        self._owner = os.getpid()

    def lock(self, array: np.ndarray) -> None:
        """Lock the pages of an array for as long as it lives; nothing if that is refused.

        The pages are those of the array that it is a view of, if these are not too many.
        """
        while isinstance(array.base, np.ndarray) and array.base.nbytes <= LARGEST_LOCK:
            array = array.base
        begin = _address(array)
        end = begin + array.nbytes
        if self._holds(begin, end) or self._refused.get(begin) == end:
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
            self.settle()
            with self._driver.entered(self.device):
                self._driver.unlock_pages(begin)

    def _holds(self, begin: int, end: int) -> bool:
        return any(start <= begin and end <= stop for start, stop in self._spans.items())

    def copy(self, array: np.ndarray, pointer: int) -> bool:
        """Enqueue a copy to the device; False if the array's pages are not locked."""
        begin = _address(array)
        if not self._holds(begin, begin + array.nbytes):
            return False
        driver = self._driver
        with driver.entered(self.device):
            if not self._event:
                self._event = driver.event()
            driver.upload_on(_STREAM, pointer, begin, array.nbytes)
            driver.record(self._event, _STREAM)
        self._pending = True
        return True

    def settle(self) -> None:
        """Wait for the copies. What keeps them waiting in turn is watched by the communicator."""
        if not self._pending:
            return
        began = time.monotonic()
        with self._driver.entered(self.device):
            while not self._driver.has_happened(self._event):
                time.sleep(0 if time.monotonic() - began < _BUSY_S else 0.0001)
        self._pending = False


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def ordinal_of(driver: Any, name: str, context: Any) -> int:
    """The number of a device among those that this process sees; "cuda" alone may be any."""
    if name[4:].isdigit():
        return int(name[4:])
    where = str(context.unique_id).lower()
    for number in range(driver.device_count()):
        if str(driver.pci_bus_id(number)).lower() == where:
            return number
    return 0


def takes_reduction(values: Sequence[Any]) -> bool:
    """Whether NCCL can reduce values of these dtypes."""
    return all(str(value.dtype) in NCCL_DTYPES for value in values)
