"""Recording and launching of CUDA graphs, and the memory that they work on.

A graph works on the same memory each time, which others must not get although it is free between
launches. While a function is recorded, libgpuarray's list of free blocks is exchanged for another
one, which gets the blocks that are freed meanwhile, and which only recorded functions use.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from contextlib import contextmanager, suppress
from typing import Any, Callable, ContextManager, Iterator, List, Sequence

from synk_comm import cuda

from . import arrays

_WORDS = 24
_NEXT = 7
"""Words of a libgpuarray context that may be the list, and the word of a block (`_gpudata`) with
the address of the next one; see its private_cuda.h."""


class CudaGraphs:
    """The graphs of one device, and their memory, which `functions` use.

    Args:
        stream: number of the stream for all work of the context.
        wait: blocks until all enqueued work is done.
        send: takes small results that are ready before the others.
        always: replay functions also if that is not quicker.

    Raises:
        CudaError: libgpuarray's allocator is not the one that this file knows.
    """

    def __init__(
        self,
        driver: cuda.Driver,
        device: int,
        stream: int,
        context: Any,
        wait: Callable[[], None],
        send: Callable[[Sequence[Any]], object],
        always: bool = False,
    ) -> None:
        self._driver = driver
        self._device = device
        self._stream = stream
        self.wait = wait
        self.send = send
        self.always = always
        self.functions: weakref.WeakSet[Any] = weakref.WeakSet()
        words = (ctypes.c_size_t * _WORDS).from_address(context.ptr)
        # Behind the stream of kernels comes that of copies, then the list of free blocks.
        place = next((i for i in range(_WORDS - 4) if words[i] == stream), None)
        if place is None or words[place + 1] != stream or not words[place + 4]:
            raise cuda.CudaError("the allocator of this libgpuarray is not known")
        self._words = words
        self._free = place + 2
        self._blocks = 0
        self._check(context)

    def _check(self, context: Any) -> None:
        """Raise CudaError unless a freed block comes to the assumed place of the list."""
        with self.own_memory():
            array = arrays.empty((1 << 18,), "uint8", context)
            pointer = int(array.gpudata)
            del array
            first = self._words[self._free]
            block = (ctypes.c_size_t * (_NEXT + 1)).from_address(first) if first else [0]
            if block[0] != pointer or block[_NEXT]:
                raise cuda.CudaError("the allocator of this libgpuarray is not known")

    @contextmanager
    def own_memory(self) -> Iterator[None]:
        """For the duration of the block, allocate and free in the memory of graphs."""
        words, free = self._words, self._free
        others, words[free] = words[free], self._blocks
        self._blocks = 0
        try:
            yield
        finally:
            self._blocks, words[free] = words[free], others

    def reset(self) -> None:
        """Drop all graphs of all functions, and return their memory to libgpuarray."""
        for function in tuple(self.functions):
            function.drop()
        self._give_back()

    def leave(self, function: Any) -> None:
        """Remove a function that has dropped its graphs, and will record no more."""
        self.functions.discard(function)
        if not any(other.is_recorded for other in self.functions):
            self._give_back()

    def _give_back(self) -> None:
        mine = list(_blocks(self._blocks))
        others = list(_blocks(self._words[self._free]))
        merged = sorted(mine + others, key=lambda block: block[0])
        for block, following in zip(merged, [*merged[1:], None]):
            block[_NEXT] = 0 if following is None else ctypes.addressof(following)
        self._words[self._free] = ctypes.addressof(merged[0]) if merged else 0
        self._blocks = 0

    def entered(self) -> ContextManager[None]:
        """Return a block for whose duration the device is this thread's current one."""
        return self._driver.entered(self._device)

    def copy(self, target: Any, source: Any) -> None:
        """Enqueue a copy between arrays of one shape and dtype; the device must be entered."""
        if source.flags["C_CONTIGUOUS"] and target.flags["C_CONTIGUOUS"]:
            nbytes = source.size * source.itemsize
            if nbytes:
                self._driver.copy_on(self._stream, target.gpudata, source.gpudata, nbytes)
        else:
            target[...] = source

    def record(self, run: Callable[[Callable[[], None]], object]) -> List[int]:
        """Record the work that `run` enqueues, without performing it; return the graphs.

        `run` gets a function that ends one graph and begins the next.

        Raises:
            CudaError: it cannot be recorded, or it copies from or to host memory.
        """
        with self.entered():
            return self._driver.record_graphs(self._stream, run)

    def launch(self, graph: int) -> None:
        """Enqueue a graph; the device must be entered."""
        self._driver.launch(graph, self._stream)

    def forget(self, graph: int) -> None:
        """Drop a graph, which may still be under way; a device that has failed keeps it."""
        with suppress(cuda.CudaError), self.entered():
            self._driver.drop_graph(graph)

    def seconds(self, run: Callable[[], Any]) -> float:
        """Return the seconds of `run` and of the work that it enqueues."""
        self.wait()
        began = time.perf_counter()
        run()
        self.wait()
        return time.perf_counter() - began


def _blocks(first: int) -> Iterator[Any]:
    while first:
        block = (ctypes.c_size_t * (_NEXT + 1)).from_address(first)
        yield block
        first = block[_NEXT]
