"""A rank's device: how values get there, and which communicator takes them.

Cpu memory goes to the device by copies that are enqueued like everything else there. From pages
that are locked such a copy is quick and asynchronous, which has a price: the memory must not
change before the copy is done. So `settle` waits for that, before a rank says that it is ready
with an act: it waits for copies, not for what is computed from them.
"""

from __future__ import annotations

import mmap
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np

import synk_comm
from synk_comm import cuda
from synk_theano._graph.values import is_on_device, on_host

from .host_memory import (
    LARGEST_LOCK,
    LETTERS,
    SMALLEST_LOCK,
    STREAM,
    Letter,
    Letters,
    LockedPages,
    owner_of,
)

NCCL_DTYPES = frozenset(
    np.dtype(name)
    for name in (
        *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
        *("float16", "float32", "float64"),
    )
)
"""What NCCL can reduce."""


class Cpu:
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

    def send(self, values: List[Any]) -> List[Any]:
        """The values themselves: they are where they have to be."""
        return values


class Gpu:
    """A device of Theano's gpuarray back end, which this process has taken into use.

    Args:
        name: Theano's, as in "cuda0" or "opencl0:0".
        context: libgpuarray's.
        nccl: whether collectives go through NCCL; else through host memory.
    """

    is_gpu = True

    def __init__(self, name: str, context: Any, nccl: bool) -> None:
        self.name = name
        self._context = context
        self._nccl = nccl
        self._pages: Optional[LockedPages] = None
        self._letters: Optional[Letters] = None
        self._comm: Any = None  # through NCCL, once there is one
        if name.startswith("cuda"):
            self._driver = driver = cuda.Driver()
            self._pages = LockedPages(driver, ordinal_of(driver, name, context))

    def enter(self) -> None:
        """Make this thread fit to compute on the device.

        Some of Theano's operations (cuDNN's reductions and batch normalization) do not name their
        device: they work on the thread's current one, which is the first if nothing was said.
        """
        if self._pages is not None and self._driver.current_device() != self._pages.device:
            self._driver.make_current(self._pages.device)

    def connect(self, comm: synk_comm.Communicator) -> Any:
        """The communicator for values, given the one for host memory; all ranks do so together."""
        if not self._nccl or self._pages is None or comm.size == 1:
            return comm
        self._comm = synk_comm.nccl(comm, device=self._pages.device, stream=STREAM)
        return self._comm

    @property
    def takes_collectives(self) -> bool:
        """Whether the communicator takes device arrays."""
        return self._comm is not None

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
        if self._pages is not None and array.nbytes >= SMALLEST_LOCK:
            self._pages.lock(array)

    def wants_buffer(self, array: np.ndarray) -> bool:
        """Whether rows should be copied to a buffer of `empty` first: the array is too large."""
        return self._pages is not None and owner_of(array).nbytes > LARGEST_LOCK

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
        """Wait until all that was brought has been read.

        That may be behind a collective: while it waits it notices if a rank dies.
        """
        if self._pages is not None and self._pages.under_way:
            if self._comm is not None:
                self._comm.synchronize(event=self._pages.event)
            self._pages.settle()

    def send(self, values: List[Any]) -> List[Any]:
        """Order small values to host memory, now: what is ordered after that need not be awaited.

        Returns:
            The values, small device arrays replaced by what `fetch` makes host arrays of.
        """
        if self._pages is None:
            return values
        if self._letters is None:
            room = self.empty((LETTERS,), np.uint8)
            self._letters = Letters(self._driver, self._pages.device, room)
        return self._letters.post(values)

    def fetch(self, results: List[Any]) -> List[Any]:
        """Results as the user gets them: in host memory. Waits for the device.

        While it waits it notices if a rank dies that the device waits for.
        """
        letters = self._letters
        if self._comm is not None:
            if _has_device_values(results):
                self._comm.synchronize()
            elif letters is not None and letters.under_way:
                self._comm.synchronize(event=letters.event)
        if letters is not None:
            letters.arrive()
        return [_fetched(result) for result in results]


AnyDevice = Union[Cpu, Gpu]


def _has_device_values(result: Any) -> bool:
    """Whether there is a device array in a result that is not on its way already."""
    if isinstance(result, Letter):
        return False
    if isinstance(result, (list, tuple)):
        return any(map(_has_device_values, result))
    return is_on_device(result)


def _fetched(result: Any) -> Any:
    if isinstance(result, Letter):
        return np.array(result.room)
    if isinstance(result, list):
        return [_fetched(item) for item in result]
    if hasattr(result, "_replace"):
        return result._replace(values=_fetched(result.values))
    return on_host(result)


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
    return all(value.dtype in NCCL_DTYPES for value in values)
