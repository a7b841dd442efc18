"""G13: several CUDA devices in one process, and what libgpuarray 0.7 gets wrong about them.

* A context from whose cache a kernel comes stays entered, and passes for the thread's current one:
  its next kernels are launched in another device's context (CUDA_ERROR_INVALID_HANDLE).
* A copy between devices waits for an event that nobody records if a device has one stream, Theano's
  default: it does not wait for the computation of its source, and may copy older values.

A context of libgpuarray begins with the address of a table of functions. All contexts get a table
in which these two functions are right.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from ctypes import c_int, c_size_t, c_uint, c_void_p
from typing import Any, Callable

from synk_theano_compat._patches.rewrite import wrap

ENTRIES, KERNEL_ALLOC, TRANSFER = 21, 12, 18
"""Length of the table, and the places of the two functions: gpuarray_buffer_ops in private.h."""

_CONTEXT_WORDS = 58
"""Of 32 bits, of a context: see struct _gpucontext there."""

_FAILED = 3  # GA_IMPL_ERROR
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING

_OF_A_CONTEXT = (None, c_void_p)
_STREAM_OF_A_CONTEXT = (c_void_p, c_void_p)
_ALLOC = (c_int, c_void_p, c_void_p, c_uint, *[c_void_p] * 3, c_uint, c_void_p, c_int, c_void_p)
_COPY = (c_int, c_void_p, c_size_t, c_void_p, c_size_t, c_size_t)

_tables: dict[int, Any] = {}  # by address, and what they refer to: as long as the process


def several_devices() -> str:
    """G13: make contexts on several CUDA devices work in one process."""
    package: Any = sys.modules["theano.gpuarray"]
    if package.pygpu is None:
        return "nothing to do"

    def check() -> None:
        contexts = {c.ptr for c in package.init_dev.devmap.values() if c.kind == b"cuda"}
        if len(contexts) > 1:
            from synk_theano_compat.cuda import extension

            mend(contexts, extension, ctypes.CDLL("libcuda.so.1"))

    @wrap(package, "init_dev")
    def init_dev(plain: Any, *arguments: Any, **options: Any) -> None:
        plain(*arguments, **options)
        check()

    check()  # flags may have named several
    return "theano.gpuarray.init_dev"


def mend(contexts: Iterable[int], extension: Callable[[str], int], driver: Any) -> None:
    """Exchange the tables of contexts on CUDA devices, by their addresses; some may have theirs.

    Args:
        extension: returns the addresses of `cuda_enter`, `cuda_exit` and `cuda_get_stream`.

    Raises:
        RuntimeError: an unknown libgpuarray.
    """
    begins = {context: c_size_t.from_address(context) for context in contexts}
    others = {begin.value for begin in begins.values()} - set(_tables)
    if not others:
        return
    if len(others) > 1:
        raise RuntimeError("contexts of libgpuarray on CUDA devices have different functions")
    library = _Library(extension, driver, next(iter(begins)))
    table = (c_void_p * ENTRIES).from_buffer_copy((c_void_p * ENTRIES).from_address(others.pop()))
    plain_alloc = ctypes.PYFUNCTYPE(*_ALLOC)(table[KERNEL_ALLOC] or 0)
    plain_copy = ctypes.PYFUNCTYPE(*_COPY)(table[TRANSFER] or 0)

    def alloc(kernel: int, context: int, *more: Any) -> int:
        before = library.entries(context)
        status: int = plain_alloc(kernel, context, *more)
        for _ in range(library.entries(context) - before):
            library.leave(context)
        return status

    def copy(target: int, begin: int, source: int, source_begin: int, nbytes: int) -> int:
        # A block of memory begins with its address and its context.
        to, of = (c_size_t.from_address(block + 8).value for block in (target, source))
        if to != of and not library.wait(to, of):
            return _FAILED
        status: int = plain_copy(target, begin, source, source_begin, nbytes)
        return status

    new_alloc, new_copy = ctypes.CFUNCTYPE(*_ALLOC)(alloc), ctypes.CFUNCTYPE(*_COPY)(copy)
    table[KERNEL_ALLOC] = ctypes.cast(new_alloc, c_void_p).value
    table[TRANSFER] = ctypes.cast(new_copy, c_void_p).value
    address = ctypes.addressof(table)
    _tables[address] = table, new_alloc, new_copy
    for begin in begins.values():
        begin.value = address


class _Library:
    """libgpuarray's and CUDA's functions of contexts; nobody else may enter `context` meanwhile."""

    def __init__(self, extension: Callable[[str], int], driver: Any, context: int) -> None:
        self._enter = ctypes.PYFUNCTYPE(*_OF_A_CONTEXT)(extension("cuda_enter"))
        self.leave = ctypes.PYFUNCTYPE(*_OF_A_CONTEXT)(extension("cuda_exit"))
        self._stream = ctypes.PYFUNCTYPE(*_STREAM_OF_A_CONTEXT)(extension("cuda_get_stream"))
        self._driver = driver
        self._events: dict[int, c_void_p] = {}  # by context
        words = (c_uint * _CONTEXT_WORDS).from_address(context)
        before = list(words)
        self._enter(context)
        places = [place for place, word in enumerate(words) if word != before[place]]
        self.leave(context)
        if len(places) != 1 or list(words) != before:
            raise RuntimeError("libgpuarray's contexts are others than those of 0.7")
        self._counter = 4 * places[0]

    def entries(self, context: int) -> int:
        """Return how often a context is entered now."""
        return c_uint.from_address(context + self._counter).value

    def wait(self, to: int, of: int) -> bool:
        """Make later work of a context wait for earlier work of another; return whether it will."""
        driver, status = self._driver, 0
        self._enter(of)
        if of not in self._events:
            event = c_void_p()
            status = driver.cuEventCreate(ctypes.byref(event), _NO_TIMING)
            if not status:
                self._events[of] = event
        if not status:
            status = driver.cuEventRecord(self._events[of], c_void_p(self._stream(of)))
        self.leave(of)
        if not status:
            self._enter(to)
            status = driver.cuStreamWaitEvent(c_void_p(self._stream(to)), self._events[of], 0)
            self.leave(to)
        return not status
