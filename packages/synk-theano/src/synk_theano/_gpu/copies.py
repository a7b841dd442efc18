"""Copies between a CUDA device and locked pages of host memory: quick and asynchronous.

Until a copy is done, its source must not change, and its target has no meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from synk_comm import cuda
from synk_core.adapting import LockedPages, address_of, is_on_default_device
from synk_core.device import Place

from . import arrays

DOWNLOAD_BYTES = 1 << 17
"""Bytes of room for the results of one order that are copied as soon as they are ready."""


class StreamPages(LockedPages):
    """Locked pages, and the copies from them on a device's stream.

    Attributes:
        uploads: events of copies on another stream, which locked memory has to outlive, too.
        event: happens when the last copies are done.
        under_way: whether a copy has been enqueued since `settle`.
    """

    def __init__(self, driver: cuda.Driver, device: int, stream: int) -> None:
        super().__init__(driver, device)
        self.stream = stream
        self.event = 0
        self.under_way = False
        self.uploads: List[int] = []

    def copy(self, array: np.ndarray, pointer: int) -> bool:
        """Enqueue a copy to the device; False if the array's pages are not locked."""
        if not self.covers(array):
            return False
        driver = self.driver
        with self.entered():
            if not self.event:
                self.event = driver.event()
            driver.upload_on(self.stream, pointer, address_of(array), array.nbytes)
            driver.record(self.event, self.stream)
        self.under_way = True
        return True

    def settle(self) -> None:
        """Wait for the copies on the stream."""
        if self.under_way:
            self.await_event(self.event)
            self.under_way = False

    def await_copies(self) -> None:
        """Wait for all, also for those on another stream."""
        self.settle()
        for event in self.uploads:
            self.await_event(event)

    def await_event(self, event: int) -> None:
        """Wait for an event that depends on no other rank."""
        with self.entered():
            cuda.wait_until(lambda: self.driver.has_happened(event))


class Download(NamedTuple):
    """A copy of a device array, which has to exist until the end of the copy, to host memory."""

    room: np.ndarray
    value: Any


class Downloads:
    """Copies of small device arrays to `room` (uint8, locked pages) as soon as they are ready.

    Otherwise a result would come after all work that was enqueued later, such as the step of the
    parameters, and the device would wait for the next order meanwhile.
    """

    def __init__(self, pages: StreamPages, room: np.ndarray) -> None:
        self._pages = pages
        self._room = room
        self._used = 0
        self._started: Dict[int, Download] = {}  # by identity of the device array
        with pages.entered():
            self.event = pages.driver.event()

    @property
    def under_way(self) -> bool:
        return self._used > 0

    def start(self, values: Sequence[Any]) -> List[Any]:
        """Start copies as far as there is room; return the values, or their `Download`s."""
        started = [self._started.get(id(value), value) for value in values]
        if not any(map(is_on_default_device, started)):
            return started
        driver, stream = self._pages.driver, self._pages.stream
        with self._pages.entered():
            for i, value in enumerate(started):
                if not is_on_default_device(value) or not value.size:
                    continue
                nbytes = value.size * value.itemsize
                if self._used + nbytes > len(self._room) or not value.flags["C_CONTIGUOUS"]:
                    continue
                room = self._room[self._used : self._used + nbytes]
                # Aligned for any dtype.
                self._used += -(-nbytes // 16) * 16
                # The address of the first element: a view's `offset` is in it.
                driver.download_on(stream, address_of(room), value.gpudata, nbytes)
                copy = Download(room.view(value.dtype).reshape(value.shape), value)
                started[i] = self._started[id(value)] = copy
            driver.record(self.event, stream)
        return started

    def drop(self) -> None:
        """Free the room: later copies come after those under way."""
        self._used = 0
        self._started.clear()


@dataclass
class UploadBuffer:
    """Memory of the device for uploads, and events: the last copy, and its last use, are done."""

    value: Any
    copied: int
    used: int


class Upload(NamedTuple):
    """Rows that are being copied to the device: an array in a buffer."""

    value: Any
    buffer: UploadBuffer

    @property
    def shape(self) -> Tuple[int, ...]:
        """Return the shape of the array on the host, too."""
        return tuple(self.value.shape)


class Uploads:
    """Copies of later inputs to the device, while it computes.

    They go to buffers that are kept, on a stream of their own: memory that libgpuarray hands out is
    free only when its stream comes to that point, after all work under way.

    Attributes:
        taken: uploads that the function under way reads.
    """

    def __init__(
        self, pages: StreamPages, context: Any, await_events: Callable[[Sequence[int]], None]
    ) -> None:
        self._driver = driver = pages.driver
        self._pages = pages
        self._context = context
        self._await = await_events
        self._buffers: Dict[Place, UploadBuffer] = {}
        self.taken: List[Upload] = []
        with pages.entered():
            self._stream = driver.stream()

    def start(self, place: Place, array: np.ndarray) -> Any:
        """Start a copy and return its `Upload`; return the array if its pages are not locked."""
        array = np.asarray(array, array.dtype.newbyteorder("="), order="C")
        if not array.size or not self._pages.covers(array):
            return array
        buffer = self._buffer(place, array)
        value = buffer.value[: len(array)] if array.ndim else buffer.value
        driver, stream = self._driver, self._stream
        with self._pages.entered():
            driver.wait_for(stream, buffer.used)
            driver.upload_on(stream, int(value.gpudata), address_of(array), array.nbytes)
            driver.record(buffer.copied, stream)
        return Upload(value, buffer)

    def take(self, upload: Upload) -> Any:
        """Return the device array; all work enqueued later waits for the copy."""
        with self._pages.entered():
            self._driver.wait_for(self._pages.stream, upload.buffer.copied)
        self.taken.append(upload)
        return upload.value

    def release(self) -> List[int]:
        """Free the buffers of taken uploads when the function just enqueued, which reads them, is
        done; return the events of their copies."""
        taken, self.taken = self.taken, []
        with self._pages.entered():
            for upload in taken:
                self._driver.record(upload.buffer.used, self._pages.stream)
        return [upload.buffer.copied for upload in taken]

    def wait(self, places: Sequence[Place]) -> None:
        self._await([self._buffers[p].copied for p in places if p in self._buffers])

    def forget(self, function_id: int) -> None:
        """Wait for the last copies to a function's buffers, and drop these."""
        mine = [place for place in self._buffers if place[0] == function_id]
        gone = [self._buffers.pop(place).copied for place in mine]
        self._pages.uploads = [one.copied for one in self._buffers.values()]
        self._await(gone)

    def _buffer(self, place: Place, array: np.ndarray) -> UploadBuffer:
        """Return a buffer with room for the array, and with rows of its shape."""
        held = self._buffers.get(place)
        if held is not None and held.value.dtype == array.dtype:
            shape = held.value.shape
            if shape[1:] == array.shape[1:] and shape[:1] >= array.shape[:1]:
                return held
        driver = self._driver
        value = arrays.empty(array.shape, array.dtype, self._context)
        with self._pages.entered():
            if held is None:
                held = self._buffers[place] = UploadBuffer(value, driver.event(), driver.event())
                self._pages.uploads.append(held.copied)
            held.value = value
            # New memory had another use before: it is free when the main stream comes to here.
            driver.record(held.used, self._pages.stream)
        return held
