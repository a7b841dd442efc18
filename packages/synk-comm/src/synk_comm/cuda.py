"""Calls of CUDA's driver library by ctypes: ``Driver``.

Each machine with a working GPU has the driver (``libcuda``). Everything happens in each device's
*primary* context, as in NCCL, PyTorch, CuPy and libgpuarray. Devices are numbered as
``CUDA_VISIBLE_DEVICES`` leaves them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from typing import Any, Callable, Iterator

from .exceptions import CommError

_LIBRARY = "libcuda.so.1"
_NOT_READY = 600
_NO_CONTEXT = 201
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_MEMCPY_NODE, _HOST_NODE = 1, 3  # CU_GRAPH_NODE_TYPE_MEMCPY, _HOST
_ON_DEVICE = 2  # CU_MEMORYTYPE_DEVICE
_COPY_WORDS = 25  # of a CUDA_MEMCPY3D: the types of memory are those at
_SOURCE, _TARGET = 4, 15

_LOOK_S = 0.015
"""Seconds between two looks in a wait."""
_BUSY_S, _NAP_S = 0.002, 0.00005
"""Seconds that a wait polls without pause, and that it sleeps then between two polls."""

_nap = getattr(os, "sched_yield", lambda: time.sleep(0))


class CudaError(CommError, RuntimeError):
    """CUDA reported an error, or is missing."""


class Driver:
    """The driver library, loaded and initialised, or CudaError; a method for each function."""

    def __init__(self, library: str = _LIBRARY) -> None:
        try:
            self._lib = ctypes.CDLL(library)
        except OSError as exc:
            raise CudaError(
                f"CUDA's driver library {library} cannot be loaded ({exc}); "
                "this machine has no NVIDIA driver, or it is not on LD_LIBRARY_PATH"
            ) from None
        self._contexts: dict[int, int] = {}
        self._call("cuInit", 0)

    def _status(self, name: str, *arguments: Any) -> int:
        """Call a function of the driver; return its status."""
        try:
            function = getattr(self._lib, name)
        except AttributeError:
            raise CudaError(f"CUDA's driver has no function {name}: it is too old") from None
        if function.argtypes is None:
            # Wide enough for each: pointers, handles, lengths and numbers go in registers.
            function.argtypes = [ctypes.c_void_p] * len(arguments)
        return int(function(*arguments))

    def _call(self, name: str, *arguments: Any, allowed: int = 0) -> bool:
        """Call a function of the driver; return False if its status is the one allowed."""
        status = self._status(name, *arguments)
        if status not in (0, allowed):
            text = ctypes.c_char_p()
            self._status("cuGetErrorString", status, ctypes.byref(text))
            said = (text.value or b"unknown").decode("ascii", "replace")
            raise CudaError(f"{name} failed: {said} (CUDA error {status})")
        return status == 0

    def _made(self, name: str, *arguments: Any) -> int:
        """Return the number, handle or pointer that a function stores at its first argument."""
        made = ctypes.c_void_p()  # as wide as the widest of them
        self._call(name, ctypes.byref(made), *arguments)
        return made.value or 0

    def device_count(self) -> int:
        """Return how many devices this process may use."""
        return self._made("cuDeviceGetCount")

    def current_device(self) -> int | None:
        """Return the device of this thread's current context, or None."""
        device = ctypes.c_int()
        is_set = self._call("cuCtxGetDevice", ctypes.byref(device), allowed=_NO_CONTEXT)
        return device.value if is_set else None

    def pci_bus_id(self, device: int) -> str:
        """Return a device's place on the PCI bus, as in ``0000:01:00.0``."""
        text = ctypes.create_string_buffer(32)
        self._call("cuDeviceGetPCIBusId", text, len(text), self._handle(device))
        return text.value.decode("ascii", "replace")

    def uuid(self, device: int) -> str:
        """Return a device's own identifier, the same in every process."""
        text = ctypes.create_string_buffer(16)
        self._call("cuDeviceGetUuid", text, self._handle(device))
        return text.raw.hex()

    def _handle(self, device: int) -> int:
        return self._made("cuDeviceGet", device)

    def _context(self, device: int) -> int:
        if device not in self._contexts:  # kept until the process ends, as NCCL and arrays need it
            self._contexts[device] = self._made("cuDevicePrimaryCtxRetain", self._handle(device))
        return self._contexts[device]

    def make_current(self, device: int) -> None:
        """Make the device's primary context this thread's current one."""
        self._call("cuCtxSetCurrent", self._context(device))

    @contextlib.contextmanager
    def entered(self, device: int) -> Iterator[None]:
        """Make the device's primary context this thread's current one in a ``with`` block.

        Methods that concern streams, graphs, events or memory are called inside.
        """
        self._call("cuCtxPushCurrent_v2", self._context(device))
        try:
            yield
        finally:
            self._status("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def device_of(self, pointer: int) -> int:
        """Return the device that memory belongs to."""
        return self._made("cuPointerGetAttribute", _DEVICE_ORDINAL, pointer)

    def stream(self) -> int:
        """Return a new stream, independent of the default one, for the life of the process."""
        return self._made("cuStreamCreate", _NON_BLOCKING)

    def wait_for(self, stream: int, event: int) -> None:
        """Make a stream's later work wait for an event; return at once."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    def is_done(self, stream: int) -> bool:
        """Return whether a stream has nothing left to do."""
        return self._call("cuStreamQuery", stream, allowed=_NOT_READY)

    def record_graphs(self, stream: int, run: Callable[[Callable[[], None]], object]) -> list[int]:
        """Record the work that ``run`` enqueues on a stream; return it as graphs for ``launch``.

        ``run`` gets a function that ends one graph and begins the next. Nothing is performed here.
        CudaError if the work cannot be recorded, or copies from or to host memory, since each
        launch would access that memory again, whatever its contents are then.
        """
        made: list[int] = []

        def begin() -> None:
            self._call("cuStreamBeginCapture_v2", stream, _RELAXED)

        def end(is_whole: bool = True) -> None:
            recorded = ctypes.c_void_p()
            self._status("cuStreamEndCapture", stream, ctypes.byref(recorded))
            try:
                if is_whole:
                    made.append(self._graph_of(recorded))
            finally:
                if recorded:
                    self._status("cuGraphDestroy", recorded)

        def cut() -> None:
            end()
            begin()

        begin()
        try:
            run(cut)
            end()
        except BaseException:
            end(is_whole=False)  # if the stream records still, it must stop
            for graph in made:
                self.drop_graph(graph)
            raise
        return made

    def _graph_of(self, recorded: ctypes.c_void_p) -> int:
        if not recorded:
            raise CudaError("something was enqueued, or waited for, that cannot be recorded")
        if not self._stays_on_devices(recorded):
            raise CudaError("a copy from or to host memory was recorded")
        return self._made("cuGraphInstantiateWithFlags", recorded, 0)

    def _stays_on_devices(self, recorded: ctypes.c_void_p) -> bool:
        count = ctypes.c_size_t()
        self._call("cuGraphGetNodes", recorded, None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * count.value)()
        if nodes:  # the driver refuses an array of none, as between two cuts
            self._call("cuGraphGetNodes", recorded, nodes, ctypes.byref(count))
        kind, copy = ctypes.c_int(), (ctypes.c_size_t * _COPY_WORDS)()
        for node in nodes:
            self._call("cuGraphNodeGetType", node, ctypes.byref(kind))
            if kind.value == _HOST_NODE:
                return False
            if kind.value == _MEMCPY_NODE:
                self._call("cuGraphMemcpyNodeGetParams", node, copy)
                # Each type is the lower half of a word.
                if any(copy[at] & 0xFFFFFFFF != _ON_DEVICE for at in (_SOURCE, _TARGET)):
                    return False
        return True

    def launch(self, graph: int, stream: int) -> None:
        """Enqueue a graph on a stream."""
        self._call("cuGraphLaunch", graph, stream)

    def drop_graph(self, graph: int) -> None:
        """Free a graph; work under way goes on."""
        self._call("cuGraphExecDestroy", graph)

    def event(self) -> int:
        """Return a new event, for the life of the process."""
        return self._made("cuEventCreate", _NO_TIMING)

    def record(self, event: int, stream: int) -> None:
        """Make an event happen after all work enqueued so far on a stream."""
        self._call("cuEventRecord", event, stream)

    def has_happened(self, event: int) -> bool:
        """Return whether an event has happened, or was never recorded."""
        return self._call("cuEventQuery", event, allowed=_NOT_READY)

    def lock_pages(self, address: int, nbytes: int) -> None:
        """Page-lock host memory: copies to and from devices become quick and asynchronous.

        Undo it by ``unlock_pages`` before the memory is unmapped.
        """
        self._call("cuMemHostRegister_v2", address, nbytes, _PORTABLE)

    def unlock_pages(self, address: int) -> None:
        """Undo ``lock_pages`` of the same address."""
        self._call("cuMemHostUnregister", address)

    def allocate_on(self, stream: int, nbytes: int) -> int:
        """Return memory for later work on a stream."""
        return self._made("cuMemAllocAsync", max(nbytes, 1), stream)

    def free_on(self, stream: int, pointer: int) -> None:
        """Give memory of ``allocate_on`` back after all work enqueued so far on a stream."""
        self._call("cuMemFreeAsync", pointer, stream)

    def upload_on(self, stream: int, pointer: int, address: int, nbytes: int) -> None:
        """Copy from host memory, on a stream.

        If its pages are locked, return at once: the memory must not change until the copy is done.
        Otherwise return when it has been read.
        """
        self._call("cuMemcpyHtoDAsync_v2", pointer, address, nbytes, stream)

    def download_on(self, stream: int, address: int, pointer: int, nbytes: int) -> None:
        """Copy to host memory, on a stream; return at once if its pages are locked."""
        self._call("cuMemcpyDtoHAsync_v2", address, pointer, nbytes, stream)

    def copy_on(self, stream: int, target: int, source: int, nbytes: int) -> None:
        """Copy on the device, on a stream."""
        self._call("cuMemcpyDtoDAsync_v2", target, source, nbytes, stream)

    def fill_on(self, stream: int, pointer: int, count: int, element: bytes) -> None:
        """Fill with ``count`` elements of 1, 2, 4 or 8 bytes, on a stream."""
        width = len(element)
        if not any(element):
            self._call("cuMemsetD8Async", pointer, 0, count * width, stream)
        elif width == 8:
            # CUDA has no 64-bit fill: the lower halves, then the upper halves.
            for half in (0, 4):
                value = int.from_bytes(element[half : half + 4], "little")
                self._call("cuMemsetD2D32Async", pointer + half, 8, value, 1, count, stream)
        else:
            value = int.from_bytes(element, "little")
            self._call(f"cuMemsetD{8 * width}Async", pointer, value, count, stream)


def wait_until(is_over: Callable[[], bool], look: Callable[[], object] | None = None) -> None:
    """Poll until a device has done something; other threads run meanwhile.

    Args:
        look: called every 15 ms; its exceptions end the wait.
    """
    began = looked = time.monotonic()
    while not is_over():
        now = time.monotonic()
        if look is not None and now - looked > _LOOK_S:
            looked = now
            look()
        if now - began < _BUSY_S:
            _nap()
        else:
            time.sleep(_NAP_S)
