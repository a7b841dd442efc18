"""GPUs that are host memory: devices, streams and a driver, between the threads of one process.

Work on a stream is carried out in order and, as on a real GPU, maybe long after the call that
enqueued it: what is read too early is old.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
import time
from typing import Any, Callable, Iterator

import numpy as np

from synk_comm._core.ops import Array
from synk_comm.cuda import CudaError

_PATIENCE_S = 20.0
Step = Callable[[], bool]
"""A piece of work: tries to be carried out, and tells whether it is done."""


class FakeGpus:
    """Some devices, shared by all threads; has the methods of ``synk_comm.cuda.Driver``."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._here = threading.local()
        self._memory: dict[int, tuple[Array, int]] = {}
        self._streams: dict[tuple[int, int], list[Step]] = {}
        self._dying: list[int] = []
        self._numbers = itertools.count(1000)
        self._events: dict[int, list[bool]] = {}
        self.changed = threading.Condition(threading.RLock())

    def view(self, pointer: int, nbytes: int, device: int) -> Array:
        """Return device memory as bytes; CudaError if it is not memory of that device."""
        for start, (memory, owner) in list(self._memory.items()):
            if start <= pointer and pointer + nbytes <= start + memory.nbytes and owner == device:
                return memory[pointer - start : pointer - start + nbytes]
        raise CudaError(f"an illegal memory access: {nbytes} bytes at {pointer} on {device}")

    def enqueue(self, device: int, stream: int, step: Step) -> None:
        with self.changed:
            self._streams.setdefault((device, 0 if stream == 1 else stream), []).append(step)
            self.progress()

    def progress(self) -> None:
        with self.changed:
            moved = True
            while moved:
                moved = False
                for steps in self._streams.values():
                    while steps and steps[0]():
                        steps.pop(0)
                        moved = True
            for pointer in list(self._dying):
                device = self._memory[pointer][1]
                if not any(steps for (owner, _), steps in self._streams.items() if owner == device):
                    self._dying.remove(pointer)
                    del self._memory[pointer]
            self.changed.notify_all()

    def pending(self) -> int:
        return sum(len(steps) for steps in self._streams.values())

    def device_count(self) -> int:
        return self._count

    def current_device(self) -> int | None:
        return getattr(self._here, "device", None)

    def uuid(self, device: int) -> str:
        return f"fake-{device}"

    @contextlib.contextmanager
    def entered(self, device: int) -> Iterator[None]:
        before = self.current_device()
        self._here.device = device
        try:
            yield
        finally:
            self._here.device = before

    def _device(self) -> int:
        device = self.current_device()
        if device is None:
            raise CudaError("no device has been entered (CUDA error 201)")
        return device

    def device_of(self, pointer: int) -> int:
        for start, (memory, device) in list(self._memory.items()):
            if start <= pointer < start + memory.nbytes:
                return device
        raise CudaError(f"{pointer} is no device memory (CUDA error 1)")

    def is_done(self, stream: int) -> bool:
        with self.changed:
            self.progress()
            return not self._streams.get((self._device(), 0 if stream == 1 else stream))

    def stream(self) -> int:
        return next(self._numbers)

    def event(self) -> int:
        return next(self._numbers)

    def record(self, event: int, stream: int) -> None:
        self._events[event] = happened = [False]
        self._later(stream, lambda: happened.__setitem__(0, True))

    def wait_for(self, stream: int, event: int) -> None:
        happened = self._events[event]
        self.enqueue(self._device(), stream, lambda: happened[0])

    def allocate_on(self, stream: int, nbytes: int) -> int:
        memory = np.full(max(nbytes, 1), 0xA5, np.uint8)
        pointer = int(memory.__array_interface__["data"][0])
        self._memory[pointer] = (memory, self._device())
        return pointer

    def free_on(self, stream: int, pointer: int) -> None:
        with self.changed:
            self._dying.append(pointer)
            self.progress()

    def upload_on(self, stream: int, pointer: int, address: int, nbytes: int) -> None:
        ctypes.memmove(pointer, address, nbytes)

    def download_on(self, stream: int, address: int, pointer: int, nbytes: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        with self.changed:
            while not self.is_done(stream):
                if not self.changed.wait(0.1) and time.monotonic() > deadline:
                    raise CudaError("the stream does not come to its end")
            ctypes.memmove(address, pointer, nbytes)

    def copy_on(self, stream: int, target: int, source: int, nbytes: int) -> None:
        self._later(stream, lambda: ctypes.memmove(target, source, nbytes))

    def fill_on(self, stream: int, pointer: int, count: int, element: bytes) -> None:
        self._later(stream, lambda: ctypes.memmove(pointer, element * count, count * len(element)))

    def _later(self, stream: int, action: Callable[[], Any]) -> None:
        def step() -> bool:
            action()
            return True

        self.enqueue(self._device(), stream, step)
