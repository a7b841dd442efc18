"""The device of a rank: copies of values to and from it, and the communicator that takes them.

Copies from host memory to the device are enqueued there like all other work. From locked pages such
a copy is quick and asynchronous, but the memory must not change before the copy is done. So a rank
calls `settle` before it ends an act: it waits for the copies, not for what is computed from them.
"""

from __future__ import annotations

import logging
import mmap
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np

import synk_comm
from synk_comm import cuda
from synk_core._graph.values import is_on_default_device, is_on_device, on_host
from synk_core.engine import DEVICES

from .graphs import CudaGraphs
from .host_memory import (
    DOWNLOAD_BYTES,
    LARGEST_LOCK,
    SMALLEST_LOCK,
    Download,
    Downloads,
    LockedPages,
    await_event,
    owner_of,
)
from .uploads import Place, Upload, Uploads

_logger = logging.getLogger(__name__)

NCCL_DTYPES = frozenset(
    np.dtype(name)
    for name in (
        *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
        *("float16", "float32", "float64"),
    )
)
"""Dtypes that NCCL can reduce."""


class Cpu:
    """The processor, which needs no copies."""

    name = "cpu"
    precision = ""
    is_gpu = False
    takes_collectives = False
    sends_early = False
    prefetches = False
    graphs = None

    def connect(self, comm: synk_comm.Communicator) -> Any:
        """Return the communicator for values: that for host memory."""
        return comm

    def enter(self) -> None:
        """Do nothing: every thread can compute."""

    def takes(self, values: Sequence[Any], reducible: bool = False) -> bool:  # noqa: ARG002 - as of any device
        """Return False: there is no device."""
        return False

    def copy_part(self, vector: np.ndarray, begin: int, part: np.ndarray) -> None:
        """Copy a vector to a place in another one."""
        vector[begin : begin + part.size] = part

    def empty(self, shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an array for rows to copy into."""
        return np.empty(shape, dtype)

    def lock(self, array: np.ndarray) -> None:
        """Do nothing."""

    def wants_buffer(self, array: np.ndarray) -> bool:  # noqa: ARG002 - as of any device
        """Return False: rows need not be copied first."""
        return False

    def bring(self, array: np.ndarray) -> Any:
        """Return the array itself."""
        return array

    def await_uploads(self, places: Sequence[Place]) -> None:
        """Do nothing."""

    def upload(self, place: Place, array: np.ndarray) -> Any:  # noqa: ARG002 - as of any device
        """Return the array itself."""
        return array

    def forget_uploads(self, function_id: int) -> None:
        """Do nothing."""

    def settle(self) -> None:
        """Do nothing."""

    def send(self, values: Sequence[Any]) -> List[Any]:
        """Return the values themselves."""
        return list(values)

    def fetch(self, results: List[Any]) -> List[Any]:
        """Return the results themselves."""
        return results


class Gpu:
    """A device of Theano's gpuarray back end, which this process has taken into use.

    Args:
        name: Theano's, as in "cuda0" or "opencl0:0".
        context: libgpuarray's.
        nccl: whether collectives go through NCCL; else through host memory.
        graphs: which functions are replayed; see `graphs.POLICIES`.
        precision: of float32; see `precision.PRECISIONS`.

    Attributes:
        precision: "" if it is no CUDA device.
        sends_early: whether numbers that a function has computed are results, to be sent at once.
    """

    is_gpu = True

    def __init__(
        self,
        name: str,
        context: Any,
        nccl: bool,
        graphs: str = "never",
        precision: str = "default",
    ) -> None:
        self.name = name
        self.precision = precision if name.startswith("cuda") else ""
        self._context = context
        self._nccl = nccl
        self._replays = graphs
        self._graphs: Optional[CudaGraphs] = None
        self._pages: Optional[LockedPages] = None
        self._downloads: Optional[Downloads] = None
        self._uploads: Optional[Uploads] = None
        self._comm: Any = None  # through NCCL, once there is one
        self._marker = 0  # an event
        self.sends_early = False
        if name.startswith("cuda"):
            self._driver = driver = cuda.Driver()
            ordinal = ordinal_of(driver, name, context)
            self._pages = LockedPages(driver, ordinal, DEVICES.stream(context))

    @property
    def graphs(self) -> Optional[CudaGraphs]:
        """Return what records functions; None if they are not to be recorded, or cannot be."""
        if self._graphs is None and self._replays != "never" and self._pages is not None:
            pages, always = self._pages, self._replays == "always"
            try:
                place = self._driver, pages.device, pages.stream, self._context
                self._graphs = CudaGraphs(*place, self._wait, self._send_early, always)
            except cuda.CudaError as error:
                self._replays = "never"
                _logger.info("functions are not replayed: %s", error)
        return self._graphs

    def _wait(self) -> None:
        """Wait for all that was enqueued; notice if a rank dies that the device waits for."""
        if self._pages is None:
            return
        with self._driver.entered(self._pages.device):
            if not self._marker:
                self._marker = self._driver.event()
            self._driver.record(self._marker, self._pages.stream)
        self._await([self._marker])

    def begin(self) -> None:
        """Begin an order: see `enter`; what an earlier one has not fetched is dropped."""
        self.enter()
        if self._downloads is not None:
            self._downloads.drop()

    def enter(self) -> None:
        """Make the device this thread's current one.

        Some of Theano's operations (cuDNN's reductions and batch normalization) do not name their
        device: they work on the thread's current one, by default the first.
        """
        if self._pages is not None and self._driver.current_device() != self._pages.device:
            self._driver.make_current(self._pages.device)

    def connect(self, comm: synk_comm.Communicator) -> Any:
        """Return the communicator for values, given that for host memory; all ranks call it."""
        if not self._nccl or self._pages is None or comm.size == 1:
            return comm
        self._comm = synk_comm.nccl(comm, device=self._pages.device, stream=self._pages.stream)
        return self._comm

    @property
    def takes_collectives(self) -> bool:
        """Return whether the communicator takes device arrays."""
        return self._comm is not None

    def takes(self, values: Sequence[Any], reducible: bool = False) -> bool:
        """Return whether the communicator takes these values where they lie.

        Args:
            reducible: to reduce them.
        """
        return (
            self._comm is not None
            and all(map(is_on_default_device, values))
            and (not reducible or takes_reduction(values))
        )

    def copy_part(self, vector: Any, begin: int, part: Any) -> None:
        """Enqueue a copy of a vector to a place in another one; the device must be entered."""
        size, itemsize = part.size, vector.itemsize
        if part.flags["C_CONTIGUOUS"] and self._pages is not None:
            if size:
                target = vector.gpudata + begin * itemsize
                self._driver.copy_on(self._pages.stream, target, part.gpudata, size * itemsize)
        else:
            vector[begin : begin + size] = part

    def empty(self, shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an array in host memory with locked pages, for rows to copy into."""
        size = int(np.prod(shape, dtype=np.int64))
        if self._pages is None or size * np.dtype(dtype).itemsize < SMALLEST_LOCK:
            return np.empty(shape, dtype)
        # Pages of its own, so that no other array's are locked, too.
        pages = mmap.mmap(-1, size * np.dtype(dtype).itemsize)
        array = np.frombuffer(pages, dtype, size)
        self._pages.lock(array)
        return array.reshape(shape)

    def lock(self, array: np.ndarray) -> None:
        """Lock the pages of an array for as long as it exists, if that makes copies quicker."""
        if self._pages is not None and array.nbytes >= SMALLEST_LOCK:
            self._pages.lock(array)

    def wants_buffer(self, array: np.ndarray) -> bool:
        """Return whether the array is too large to lock, so that rows need a buffer of `empty`."""
        return self._pages is not None and owner_of(array).nbytes > LARGEST_LOCK

    @property
    def prefetches(self) -> bool:
        """Return whether it can copy inputs while it computes."""
        return self._pages is not None

    def upload(self, place: Place, array: np.ndarray) -> Any:
        """Start to copy an array that `bring` gets later; its memory must not change before.

        Returns:
            An `Upload`; the array itself if its pages are not locked.
        """
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        if self._pages is None or not array.size or not self._pages.covers(array):
            return array
        if self._uploads is None:
            self._uploads = Uploads(self._driver, self._pages, self._context)
        return self._uploads.start(place, array)

    def await_uploads(self, places: Sequence[Place]) -> None:
        """Wait until the arrays that were copied to these buffers last have been read."""
        if self._uploads is not None:
            self._await(self._uploads.events(places))

    def forget_uploads(self, function_id: int) -> None:
        """Free the buffers of a function that is gone."""
        if self._uploads is not None:
            self._await(self._uploads.forget(function_id))

    def _await(self, events: Sequence[int]) -> None:
        """Wait for events, which may come after a collective; notice if a rank dies."""
        for event in events:
            if self._comm is not None:
                self._comm.synchronize(event=event)
            elif self._pages is not None:
                await_event(self._driver, self._pages.device, event)

    def bring(self, array: Any) -> Any:
        """Return a new device array with these values; that of an `Upload`.

        The memory of `array` must not change before `settle`.
        """
        if isinstance(array, Upload) and self._uploads is not None:
            return self._uploads.take(array)

        dtype = array.dtype.newbyteorder("=")
        value = DEVICES.empty(array.shape, dtype, self._context)
        if array.size:
            array = np.ascontiguousarray(array, dtype)
            if self._pages is None or not self._pages.copy(array, int(value.gpudata)):
                value.write(array)
        return value

    def settle(self) -> None:
        """Wait until the device has read all arrays given to `bring`, and to `upload` before.

        The copies may come after a collective, so the wait notices if a rank dies.
        """
        if self._uploads is not None and self._uploads.taken:
            self._await(self._uploads.release())
        if self._pages is not None and self._pages.under_way:
            if self._comm is not None:
                self._comm.synchronize(event=self._pages.event)
            self._pages.settle()

    def send(self, values: Sequence[Any]) -> List[Any]:
        """Start to copy small values to host memory, before any work that is ordered later.

        Does nothing for those that it has been called for already, in this order.

        Returns:
            The values, with a `Download` in place of each small device array; see `fetch`.
        """
        if self._pages is None or not values:
            return list(values)
        if self._downloads is None:
            room = self.empty((DOWNLOAD_BYTES,), np.uint8)
            pages = self._pages
            self._downloads = Downloads(self._driver, pages.device, pages.stream, room)
        return self._downloads.start(values)

    def _send_early(self, values: Sequence[Any]) -> None:
        if self.sends_early:
            self.send(values)

    def fetch(self, results: List[Any]) -> List[Any]:
        """Return results in host memory, as the user gets them. Waits for the device.

        The wait notices if a rank dies that the device waits for.
        """
        downloads = self._downloads
        event = downloads.event if downloads is not None and downloads.under_way else None
        on_device = _has_device_values(results)
        if event is None and not on_device:
            return results
        if self._comm is not None:
            self._comm.synchronize(event=None if on_device else event)
        if downloads is not None:
            downloads.wait()
        return [_fetched(result) for result in results]


AnyDevice = Union[Cpu, Gpu]


def _has_device_values(result: Any) -> bool:
    """Return whether a result has device arrays that are not being downloaded already."""
    if result is None or isinstance(result, Download):
        return False
    if hasattr(result, "_replace"):
        result = result.values
    if isinstance(result, list):
        return any(map(_has_device_values, result))
    return is_on_device(result)


def _fetched(result: Any) -> Any:
    if isinstance(result, Download):
        return np.array(result.room)
    if isinstance(result, list):
        return [_fetched(item) for item in result]
    if hasattr(result, "_replace"):
        return result._replace(values=_fetched(result.values))
    return on_host(result)


def ordinal_of(driver: Any, name: str, context: Any) -> int:
    """Return the number of a device among those that this process sees; "cuda" may be any."""
    if name[4:].isdigit():
        return int(name[4:])
    where = str(context.unique_id).lower()
    for number in range(driver.device_count()):
        if str(driver.pci_bus_id(number)).lower() == where:
            return number
    return 0


def takes_reduction(values: Sequence[Any]) -> bool:
    """Return whether NCCL can reduce values of these dtypes."""
    return all(value.dtype in NCCL_DTYPES for value in values)


def is_of_the_group(error: BaseException) -> bool:
    """Return whether an error is a communicator's, and not that of this rank's device."""
    return isinstance(error, synk_comm.CommError) and not isinstance(error, cuda.CudaError)
