"""A rank's device with JAX, by the methods that `synk_core.device` documents."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import jax
import numpy as np

import synk_comm
from synk_comm import cuda
from synk_core.adapting import LockedPages
from synk_core.device import Device, Place

from . import stand_in
from .arrays import is_array, real, stand_ins, to_device, to_host, with_function
from .machine import fitted
from .pending import CURRENT, Pending
from .reductions import REDUCIBLE, JaxCommunicator, NcclGroup


class JaxDevice(Device):
    """A GPU of JAX's.

    Args:
        number: of the GPU, among those that CUDA shows to this process.
        place: JAX's object of the device.
        nccl: whether reductions go through NCCL, inside of programs; else through host memory.
        closed: called when a runtime uses it no more.
    """

    is_gpu = True
    is_functional = True

    def __init__(
        self,
        name: str,
        number: int,
        place: Any,
        nccl: bool,
        precision: str,
        closed: Callable[[Any], None],
    ) -> None:
        self.name, self.precision = name, precision
        self._number, self._place, self._nccl = number, place, nccl
        self._closed = closed
        self._comm: Optional[JaxCommunicator] = None
        self._pending = Pending(self.bring)
        self._read: List[Any] = []  # arrays that are being copied from host memory
        self._pages = None if stand_ins() else LockedPages(cuda.Driver(), number)
        self.uploads = JaxUploads(self.bring)

    def connect(self, comm: synk_comm.Communicator) -> Any:
        if not self._nccl or comm.size == 1:
            return comm
        self.takes_collectives = True
        self._pending.apart = self.apart
        if stand_ins():
            self._comm = JaxCommunicator(comm, self._pending, stand_in.HostGroup(comm))
        else:
            inside = synk_comm.nccl(comm, device=self._number)
            self._comm = JaxCommunicator(inside, self._pending, NcclGroup(inside))
        return self._comm

    def takes(self, values: Sequence[Any], reducible: bool = False) -> bool:
        """Ranks may have equal values in different places, so that does not matter."""
        return (
            reducible
            and self._comm is not None
            and all(
                (type(value) is np.ndarray or is_array(value)) and value.dtype.name in REDUCIBLE
                for value in values
            )
        )

    def begin(self) -> None:
        self._pending.drop()
        CURRENT.pending = self._pending

    def flush(self) -> None:
        self._pending.flush()

    def end(self, results: Sequence[Any]) -> bool:
        synchronized = self._pending.end(results)
        CURRENT.pending = None
        return synchronized

    def undo(self) -> None:
        self._pending.drop()
        CURRENT.pending = None

    def close(self) -> None:
        self._pending.drop()
        CURRENT.pending = None
        closed, self._closed = self._closed, _nothing
        closed(self)

    # ---- functions -------------------------------------------------------------------------

    def adapted(self, function: Any, host_outputs: Sequence[bool]) -> Any:  # noqa: ARG002
        return fitted(function)

    # ---- copies ----------------------------------------------------------------------------

    def lock(self, array: np.ndarray) -> bool:
        return self._pages is None or self._pages.lock(array)

    def buffer(self, shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
        if self._pages is None:
            return np.empty(shape, dtype)
        return self._pages.buffer(shape, dtype)

    def bring(self, array: Any) -> Any:
        value = to_device(array, self._place)
        if value is not array:
            self._read.append(value)
        return value

    def argument(self, array: Any) -> Any:
        return with_function(array, self.bring)

    def settle(self) -> None:
        if self._read:
            jax.block_until_ready(self._read)
            self._read.clear()

    def fetch(self, results: List[Any]) -> List[Any]:
        with nullcontext() if self._comm is None else self._comm.awaiting():
            _start(results)
            return [_fetched(result) for result in results]


def _nothing(_device: Any) -> None:
    """Do nothing: the device has been closed."""


def _start(result: Any) -> None:
    """Start all copies to host memory before the first is awaited."""
    if hasattr(result, "_replace"):
        result = result.values
    if isinstance(result, list):
        for item in result:
            _start(item)
    elif is_array(result):
        real(result).copy_to_host_async()


def _fetched(result: Any) -> Any:
    if isinstance(result, list):
        return [_fetched(item) for item in result]
    if hasattr(result, "_replace"):
        return result._replace(values=_fetched(result.values))
    return to_host(result)


class JaxUploads:
    """Copies of later inputs while the device computes; `bring` starts them."""

    def __init__(self, bring: Any) -> None:
        self._bring = bring
        self._started: Dict[Place, Any] = {}

    def wait(self, places: Sequence[Place]) -> None:
        jax.block_until_ready([self._started.pop(place, None) for place in places])

    def start(self, place: Place, array: np.ndarray) -> Any:
        value = self._started[place] = self._bring(array)
        return value

    def forget(self, function_id: int) -> None:
        for place in [place for place in self._started if place[0] == function_id]:
            del self._started[place]
