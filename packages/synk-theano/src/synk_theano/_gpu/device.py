"""The devices of ranks with Theano, by the methods that `synk_core.device` documents."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

import synk_comm
from synk_comm import cuda
from synk_core.adapting import is_on_default_device, is_on_device, on_host
from synk_core.device import Device

from . import arrays
from .captured import CapturedFunction
from .copies import (
    DOWNLOAD_BYTES,
    Download,
    Downloads,
    StreamPages,
    Upload,
    Uploads,
)
from .ends import with_device_ends
from .graphs import CudaGraphs
from .parts import Parts, in_parts

_logger = logging.getLogger(__name__)

REDUCIBLE = frozenset(
    np.dtype(name)
    for name in (
        *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
        *("float16", "float32", "float64"),
    )
)
"""Dtypes that NCCL can reduce."""


class GpuArrayDevice(Device):
    """A device of libgpuarray's, such as "opencl0:0": the host waits for each copy."""

    is_gpu = True

    def __init__(self, name: str, context: Any) -> None:
        self.name = name
        self._context = context

    def adapted(self, function: Any, host_outputs: Sequence[bool]) -> Any:
        return with_device_ends(function, host_outputs)

    def bring(self, array: Any) -> Any:
        dtype = array.dtype.newbyteorder("=")
        value = arrays.empty(array.shape, dtype, self._context)
        if array.size:
            self._write(value, np.ascontiguousarray(array, dtype))
        return value

    def _write(self, value: Any, array: np.ndarray) -> None:
        value.write(array)

    def fetch(self, results: List[Any]) -> List[Any]:
        return [_fetched(result) for result in results]


class CudaDevice(GpuArrayDevice):
    """A CUDA device of libgpuarray's.

    Args:
        nccl: whether collectives go through NCCL; else through host memory.
        graphs: which functions are replayed: "auto", "always" or "never".
        precision: of float32: "default", "float32" or "tf32".
    """

    uploads: Uploads

    def __init__(self, name: str, context: Any, nccl: bool, graphs: str, precision: str) -> None:
        super().__init__(name, context)
        self.precision = precision
        self._nccl = nccl
        self._policy = graphs
        self._comm: Any = None  # through NCCL, once there is one
        self._marker = 0  # an event
        self._driver = driver = cuda.Driver()
        ordinal = arrays.ordinal_of(driver, name, context)
        self._pages = StreamPages(driver, ordinal, arrays.stream(context))
        self.uploads = Uploads(self._pages, context, self._await)

    @cached_property
    def _graphs(self) -> Optional[CudaGraphs]:
        """Return the recorder of functions; None if they must not or cannot be recorded."""
        if self._policy == "never":
            return None
        try:
            place = self._driver, self._pages.device, self._pages.stream, self._context
            return CudaGraphs(*place, self._wait, self.send, self._policy == "always")
        except cuda.CudaError as error:
            _logger.info("functions are not replayed: %s", error)
            return None

    @cached_property
    def _downloads(self) -> Downloads:
        return Downloads(self._pages, self.buffer((DOWNLOAD_BYTES,), np.uint8))

    def _wait(self) -> None:
        """Wait for all work enqueued; raise if a rank dies for which the device waits."""
        with self._pages.entered():
            if not self._marker:
                self._marker = self._driver.event()
            self._driver.record(self._marker, self._pages.stream)
        self._await([self._marker])

    def _await(self, events: Sequence[int]) -> None:
        """Wait for events, which may come after a collective; raise if a rank dies."""
        for event in events:
            if self._comm is not None:
                self._comm.synchronize(event=event)
            else:
                self._pages.await_event(event)

    def connect(self, comm: synk_comm.Communicator) -> Any:
        if not self._nccl or comm.size == 1:
            return comm
        self._comm = synk_comm.nccl(comm, device=self._pages.device, stream=self._pages.stream)
        self.takes_collectives = True
        return self._comm

    def takes(self, values: Sequence[Any], reducible: bool = False) -> bool:
        return (
            self._comm is not None
            and all(map(is_on_default_device, values))
            and (not reducible or all(value.dtype in REDUCIBLE for value in values))
        )

    def enter(self) -> None:
        """Make the device this thread's current one.

        cuDNN's reductions and batch normalization in Theano work on the thread's current device.
        """
        if self._driver.current_device() != self._pages.device:
            self._driver.make_current(self._pages.device)

    def begin(self) -> None:
        self.enter()
        self._downloads.drop()

    # ---- functions -------------------------------------------------------------------------

    def launcher(
        self, function: Any, name: str, parts: Optional[Any] = None
    ) -> Optional[CapturedFunction]:
        if self._graphs is None:
            return None
        return CapturedFunction(function, self._graphs, name, parts)

    def in_parts(self, function: Any, storage: List[Any]) -> Optional[Tuple[Any, Parts]]:
        return in_parts(function, storage, self._copy_part)

    def _copy_part(self, vector: Any, begin: int, part: Any) -> None:
        """Enqueue a copy of a vector to a place in another one; the device must be entered."""
        size, itemsize = part.size, vector.itemsize
        if not part.flags["C_CONTIGUOUS"]:
            vector[begin : begin + size] = part
        elif size:
            target = vector.gpudata + begin * itemsize
            self._driver.copy_on(self._pages.stream, target, part.gpudata, size * itemsize)

    # ---- copies ----------------------------------------------------------------------------

    def lock(self, array: np.ndarray) -> bool:
        return self._pages.lock(array)

    def buffer(self, shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
        return self._pages.buffer(shape, dtype)

    def bring(self, array: Any) -> Any:
        return self.uploads.take(array) if isinstance(array, Upload) else super().bring(array)

    def _write(self, value: Any, array: np.ndarray) -> None:
        if not self._pages.copy(array, int(value.gpudata)):
            value.write(array)

    def settle(self) -> None:
        # The copies may come after a collective: raise if a rank dies.
        if self.uploads.taken:
            self._await(self.uploads.release())
        if self._pages.under_way:
            if self._comm is not None:
                self._comm.synchronize(event=self._pages.event)
            self._pages.settle()

    def send(self, values: Sequence[Any]) -> List[Any]:
        return self._downloads.start(values)

    def fetch(self, results: List[Any]) -> List[Any]:
        downloads = self._downloads
        on_device = _has_device_values(results)
        if not on_device and not downloads.under_way:
            return results
        if on_device and self._comm is not None:
            self._comm.synchronize()
        if downloads.under_way:
            self._await([downloads.event])
            downloads.drop()
        return super().fetch(results)


def _has_device_values(result: Any) -> bool:
    """Return whether a result has device arrays without a download."""
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
