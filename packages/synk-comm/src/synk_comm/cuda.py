"""The few things asked of CUDA itself, through its driver library and ctypes: ``Driver``.

The driver (``libcuda``) is on every machine with a working GPU; the runtime and the toolkit need
not be. Everything happens in each device's *primary* context, the one that NCCL, PyTorch, CuPy
and libgpuarray use too. Devices are numbered as ``CUDA_VISIBLE_DEVICES`` leaves them.
"""

from __future__ import annotations

import contextlib
import ctypes
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

_POINTER = ctypes.c_uint64
_SIZE = ctypes.c_size_t


class CudaError(CommError, RuntimeError):
    """CUDA reported an error, or is not there."""


class Driver:
    """The driver library, loaded and initialised; CudaError says why if that cannot be."""

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
            # Wide enough for each of them: pointers, handles, lengths and numbers go in registers.
            function.argtypes = [ctypes.c_void_p] * len(arguments)
        return int(function(*arguments))

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._status(name, *arguments)
        if status:
            raise CudaError(f"{name} failed: {self._text(status)} (CUDA error {status})")

    def _text(self, status: int) -> str:
        text = ctypes.c_char_p()
        self._status("cuGetErrorString", status, ctypes.byref(text))
        return (text.value or b"unknown").decode("ascii", "replace")

    # -- devices and contexts -------------------------------------------------------------

    def device_count(self) -> int:
        """Return how many devices this process may use."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def current_device(self) -> int | None:
        """Return the device of this thread's current context; None if it has none."""
        device = ctypes.c_int()
        status = self._status("cuCtxGetDevice", ctypes.byref(device))
        if status == _NO_CONTEXT:
            return None
        if status:
            raise CudaError(f"cuCtxGetDevice failed: {self._text(status)} (CUDA error {status})")
        return device.value

    def name(self, device: int) -> str:
        """Return what the maker calls a device."""
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, len(text), self._handle(device))
        return text.value.decode("utf-8", "replace")

    def pci_bus_id(self, device: int) -> str:
        """Return where a device is plugged in, as in ``0000:01:00.0``."""
        text = ctypes.create_string_buffer(32)
        self._call("cuDeviceGetPCIBusId", text, len(text), self._handle(device))
        return text.value.decode("ascii", "replace")

    def uuid(self, device: int) -> str:
        """Return a device's own identifier, the same in every process."""
        text = ctypes.create_string_buffer(16)
        self._call("cuDeviceGetUuid", text, self._handle(device))
        return text.raw.hex()

    def _handle(self, device: int) -> int:
        handle = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(handle), device)
        return handle.value

    def _context(self, device: int) -> int:
        context = self._contexts.get(device)
        if context is None:
            made = ctypes.c_void_p()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(made), self._handle(device))
            # Kept until the process ends: NCCL and the arrays need it as long.
            context = self._contexts[device] = made.value or 0
        return context

    def make_current(self, device: int) -> None:
        """Make the device's primary context this thread's current one, from now on."""
        self._call("cuCtxSetCurrent", self._context(device))

    @contextlib.contextmanager
    def entered(self, device: int) -> Iterator[None]:
        """Make the device's primary context this thread's current one, for a while."""
        self._call("cuCtxPushCurrent_v2", self._context(device))
        try:
            yield
        finally:
            self._status("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def device_of(self, pointer: int) -> int:
        """Return the device that memory belongs to."""
        device = ctypes.c_int(-1)
        self._call("cuPointerGetAttribute", ctypes.addressof(device), _DEVICE_ORDINAL, pointer)
        return device.value

    # -- streams; their device must be entered --------------------------------------------

    def stream(self) -> int:
        """Return a new stream, which lasts as long as the process.

        It does not wait for the default stream, nor that for it.
        """
        made = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(made), _NON_BLOCKING)
        return made.value or 0

    def wait_for(self, stream: int, event: int) -> None:
        """Make a stream's later work wait for an event; return at once."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    def is_done(self, stream: int) -> bool:
        """Return whether a stream has nothing left to do; its device must be entered."""
        return self._is_ready(self._status("cuStreamQuery", stream))

    def _is_ready(self, status: int) -> bool:
        if status not in (0, _NOT_READY):
            raise CudaError(f"a CUDA stream has failed: {self._text(status)} (error {status})")
        return status == 0

    # -- graphs: work of a stream, recorded; their device must be entered -----------------

    def record_graphs(self, stream: int, run: Callable[[Callable[[], None]], object]) -> list[int]:
        """Return graphs for ``launch``, which together perform what ``run`` enqueues on a stream.

        ``run`` gets a function that ends one graph and begins the next. Nothing is performed here.
        CudaError if it cannot be recorded, or if it copies from or to host memory: that would be
        read or written at each launch, whatever it holds by then.
        """
        made: list[int] = []
        recorded = ctypes.c_void_p()

        def begin() -> None:
            self._call("cuStreamBeginCapture_v2", stream, _RELAXED)

        def end() -> None:
            self._status("cuStreamEndCapture", stream, ctypes.byref(recorded))

        def cut() -> None:
            end()
            made.append(self._finished(recorded))
            begin()

        begin()
        try:
            try:
                run(cut)
            finally:
                # Also after an error: the stream must not go on recording.
                end()
            made.append(self._finished(recorded))
        except BaseException:
            for graph in made:
                self.drop_graph(graph)
            raise
        finally:
            self._forget(recorded)
        return made

    def _finished(self, recorded: ctypes.c_void_p) -> int:
        """Return a graph for ``launch`` of what was recorded, which is forgotten."""
        made = ctypes.c_void_p()
        try:
            if not recorded:
                raise CudaError("something was enqueued, or waited for, that cannot be recorded")
            if not self._stays_on_devices(recorded):
                raise CudaError("a copy from or to host memory was recorded")
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(made), recorded, 0)
        finally:
            self._forget(recorded)
        return made.value or 0

    def _forget(self, recorded: ctypes.c_void_p) -> None:
        if recorded:
            self._status("cuGraphDestroy", recorded)
            recorded.value = None

    def _stays_on_devices(self, recorded: ctypes.c_void_p) -> bool:
        count = _SIZE()
        self._call("cuGraphGetNodes", recorded, None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * count.value)()
        if nodes:  # nothing comes between two cuts; the driver refuses room for none
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
        """Free a graph; one that is under way is performed all the same."""
        self._call("cuGraphExecDestroy", graph)

    # -- events; their device must be entered ---------------------------------------------

    def event(self) -> int:
        """Return a new event, which lasts as long as the process."""
        made = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(made), _NO_TIMING)
        return made.value or 0

    def record(self, event: int, stream: int) -> None:
        """Make an event happen when a stream has done all work enqueued so far."""
        self._call("cuEventRecord", event, stream)

    def has_happened(self, event: int) -> bool:
        """Return whether an event has happened, or was never recorded."""
        return self._is_ready(self._status("cuEventQuery", event))

    # -- host memory; a device must be entered --------------------------------------------

    def lock_pages(self, address: int, nbytes: int) -> None:
        """Page-lock host memory, so that copies to and from devices are quick, and asynchronous.

        To be undone by ``unlock_pages`` before the memory is unmapped.
        """
        self._call("cuMemHostRegister_v2", address, nbytes, _PORTABLE)

    def unlock_pages(self, address: int) -> None:
        """Undo ``lock_pages``, given the same address."""
        self._call("cuMemHostUnregister", address)

    # -- memory; its device must be entered -----------------------------------------------

    def allocate(self, nbytes: int) -> int:
        """Return new memory."""
        pointer = _POINTER()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), max(nbytes, 1))
        return pointer.value

    def free(self, pointer: int) -> None:
        """Give memory of ``allocate`` back; waits for what still uses it."""
        self._call("cuMemFree_v2", pointer)

    def allocate_on(self, stream: int, nbytes: int) -> int:
        """Return memory that work on a stream may use, as soon as earlier work is done."""
        pointer = _POINTER()
        self._call("cuMemAllocAsync", ctypes.byref(pointer), max(nbytes, 1), stream)
        return pointer.value

    def free_on(self, stream: int, pointer: int) -> None:
        """Give memory of ``allocate_on`` back, once the stream has come to here."""
        self._call("cuMemFreeAsync", pointer, stream)

    def upload(self, pointer: int, address: int, nbytes: int) -> None:
        """Copy from host memory, and wait for it."""
        self._call("cuMemcpyHtoD_v2", pointer, address, nbytes)

    def upload_on(self, stream: int, pointer: int, address: int, nbytes: int) -> None:
        """Copy from host memory, on a stream.

        If its pages are locked this returns at once, and the memory must not change until the
        copy is done; otherwise it has been read when this returns.
        """
        self._call("cuMemcpyHtoDAsync_v2", pointer, address, nbytes, stream)

    def download_on(self, stream: int, address: int, pointer: int, nbytes: int) -> None:
        """Copy to host memory whose pages are locked, on a stream; returns at once."""
        self._call("cuMemcpyDtoHAsync_v2", address, pointer, nbytes, stream)

    def download(self, address: int, pointer: int, nbytes: int) -> None:
        """Copy to host memory, after what the default stream has to do, and wait for it."""
        self._call("cuMemcpyDtoH_v2", address, pointer, nbytes)

    def copy_on(self, stream: int, target: int, source: int, nbytes: int) -> None:
        """Copy on the device, on a stream."""
        self._call("cuMemcpyDtoDAsync_v2", target, source, nbytes, stream)

    def fill_on(self, stream: int, pointer: int, count: int, element: bytes) -> None:
        """Fill with ``count`` elements of 1, 2, 4 or 8 bytes, on a stream."""
        width = len(element)
        if not any(element):
            self._call("cuMemsetD8Async", pointer, 0, count * width, stream)
        elif width == 8:
            # There is no 64-bit fill: the lower halves, then the upper halves.
            for half in (0, 4):
                value = int.from_bytes(element[half : half + 4], "little")
                self._call("cuMemsetD2D32Async", pointer + half, 8, value, 1, count, stream)
        else:
            value = int.from_bytes(element, "little")
            self._call(f"cuMemsetD{8 * width}Async", pointer, value, count, stream)
