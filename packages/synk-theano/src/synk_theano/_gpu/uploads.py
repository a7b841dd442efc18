"""Copies of later inputs to a CUDA device, while it computes.

They go to buffers that are kept, on a stream of their own: memory that libgpuarray hands out is
free only when its stream comes to that point, which would be after all that is under way.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from synk_core.device import Place

from . import arrays
from .host_memory import LockedPages, address_of


class Buffer:
    """Memory of the device.

    Attributes:
        value: the device array.
        copied: event: the last copy to it is done.
        used: event: all that reads it is done.
    """

    def __init__(self, value: Any, copied: int, used: int) -> None:
        self.value = value
        self.copied = copied
        self.used = used


class Upload:
    """Rows that are being copied to the device.

    Attributes:
        value: the device array.
        buffer: where it lies.
    """

    def __init__(self, value: Any, buffer: Buffer) -> None:
        self.value = value
        self.buffer = buffer

    @property
    def shape(self) -> Tuple[int, ...]:
        """As of the array on the host."""
        return tuple(self.value.shape)


class Uploads:
    """The buffers of one device, and the stream of copies to them.

    Args:
        pages: the locked pages from which copies are asynchronous.
        context: libgpuarray's.
        await_events: waits for some.

    Attributes:
        taken: uploads that the function under way reads.
    """

    def __init__(
        self,
        driver: Any,
        pages: LockedPages,
        context: Any,
        await_events: Callable[[Sequence[int]], None],
    ) -> None:
        self._driver = driver
        self._pages = pages
        self._context = context
        self._await = await_events
        self._buffers: Dict[Place, Buffer] = {}
        self.taken: List[Upload] = []
        with driver.entered(pages.device):
            self._stream = driver.stream()

    def start(self, place: Place, array: np.ndarray) -> Any:
        """Start to copy an array; its memory must not change until the copy is done.

        Returns:
            An `Upload`; the array itself if its pages are not locked.
        """
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        if not array.size or not self._pages.covers(array):
            return array
        buffer = self._buffer(place, array)
        value = buffer.value[: len(array)] if array.ndim else buffer.value
        driver, stream = self._driver, self._stream
        with driver.entered(self._pages.device):
            driver.wait_for(stream, buffer.used)
            driver.upload_on(stream, int(value.gpudata), address_of(array), array.nbytes)
            driver.record(buffer.copied, stream)
        return Upload(value, buffer)

    def take(self, upload: Upload) -> Any:
        """Return the device array; what is enqueued later waits for the copy."""
        with self._driver.entered(self._pages.device):
            self._driver.wait_for(self._pages.stream, upload.buffer.copied)
        self.taken.append(upload)
        return upload.value

    def release(self) -> List[int]:
        """After the function that reads them was enqueued: return the events of the copies that
        were taken; their buffers are free when it is done."""
        taken, self.taken = self.taken, []
        with self._driver.entered(self._pages.device):
            for upload in taken:
                self._driver.record(upload.buffer.used, self._pages.stream)
        return [upload.buffer.copied for upload in taken]

    def wait(self, places: Sequence[Place]) -> None:
        """Wait until the arrays that were copied to these buffers last have been read."""
        self._await([self._buffers[p].copied for p in places if p in self._buffers])

    def forget(self, function_id: int) -> None:
        """Drop a function's buffers, when the last copies to them are done."""
        mine = [place for place in self._buffers if place[0] == function_id]
        gone = [self._buffers.pop(place).copied for place in mine]
        self._pages.uploads = [one.copied for one in self._buffers.values()]
        self._await(gone)

    def _buffer(self, place: Place, array: np.ndarray) -> Buffer:
        """Return a buffer with room for the array; its rows are those of the array."""
        held = self._buffers.get(place)
        if held is not None and held.value.dtype == array.dtype:
            shape = held.value.shape
            if shape[1:] == array.shape[1:] and shape[:1] >= array.shape[:1]:
                return held
        driver = self._driver
        value = arrays.empty(array.shape, array.dtype, self._context)
        with driver.entered(self._pages.device):
            if held is None:
                held = self._buffers[place] = Buffer(value, driver.event(), driver.event())
                self._pages.uploads.append(held.copied)
            held.value = value
            # Memory that was something else's before: free when this stream has come to here.
            driver.record(held.used, self._pages.stream)
        return held
