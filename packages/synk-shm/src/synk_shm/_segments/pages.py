"""Large segments: allocating, mapping and filling their pages in one go.

A new page costs far more than the bytes in it: the kernel finds, clears and maps it, and does
so one by one, at a few GB/s, if the pages are touched one by one. So many are requested at a
time, by several threads if there are very many; each thread fills its pages while they are still in
the cache. The pages are mapped afterwards: the first touch, which is where
shared memory usually loses to private memory, costs nothing.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from synk_shm._segments.free_space import full_error

LARGE = 512 << 10  # below, allocating and then touching is as fast
WORTH_THREADS = 32 << 20  # below, threads that wait for a core cost more than they save
_SHARE = 16 << 20  # of each thread, at least
_CHUNK = 2 << 20  # of the size of a cache, and of a huge page
_MOST_THREADS = 8
_POPULATE_WRITE = 23  # madvise(2), since Linux 5.14
_REMOVE = 9
_FIXED = 16  # of mmap(2)
_PAGE = 4096
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def populate(memory: _Bytes, start: int, stop: int, where: str, data: _Bytes | None = None) -> bool:
    """Allocate and map bytes start:stop of a mapping, and copy `data` to `start`.

    Return False, with nothing done, where the system cannot do that: no Linux, or an old one.

    Raises:
        ShmFullError: there is not enough memory; a write would have been SIGBUS.
    """
    advise = _c_function("madvise")
    if advise is None:
        return False
    base = memory.__array_interface__["data"][0]
    first = start // _PAGE * _PAGE
    if _advise(advise, base + first, 1) == errno.EINVAL:
        return False
    count = max(1, min(_cores(), _MOST_THREADS, (stop - first) // _SHARE))
    step = -(-(stop - first) // count // _CHUNK) * _CHUNK
    failures: list[BaseException] = []

    def work(begin: int) -> None:
        try:
            for at in range(begin, min(begin + step, stop), _CHUNK):
                if failures:
                    return
                end = min(at + _CHUNK, stop)
                _check(_advise(advise, base + at, end - at), stop - start, where)
                if data is not None:
                    low = max(at, start)
                    memory[low:end] = data[low - start : end - start]
        except BaseException as error:  # noqa: BLE001 (raised below, by the thread that asked)
            failures.append(error)

    _run(work, range(first, stop, step))
    if failures:
        # Free them at once: a traceback may hold the mapping for long.
        whole = -(-start // _PAGE) * _PAGE
        _advise(advise, base + whole, stop - whole, _REMOVE)
        raise failures[0]
    return True


def _check(number: int, asked: int, where: str) -> None:
    if number in (errno.EFAULT, errno.ENOMEM, errno.ENOSPC):
        raise full_error(asked, where)
    if number:
        raise OSError(number, os.strerror(number), where)


def _run(work: Callable[[int], None], begins: range) -> None:
    """Run `work` for each beginning, all but the first in threads of their own."""
    threads = []
    here = [begins[0]]
    for begin in begins[1:]:
        thread = threading.Thread(target=work, args=(begin,))
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            here.append(begin)
        else:
            threads.append(thread)
    try:
        for begin in here:
            work(begin)
    finally:
        for thread in threads:
            thread.join()


def _advise(advise: Any, address: int, length: int, what: int = _POPULATE_WRITE) -> int:
    """Populate whole pages, or free them; return 0 or the error's number."""
    import ctypes

    while True:
        if advise(ctypes.c_void_p(address), ctypes.c_size_t(length), what) == 0:
            return 0
        number = ctypes.get_errno()
        if number != errno.EINTR:  # a signal; what was done stays done
            return number


def map_over(memory: _Bytes, access: int, fd: int) -> bool:
    """Map a file's beginning in place of a mapping of Python's; False if that cannot be done."""
    function = _c_function("mmap")
    if function is None:
        return False
    import ctypes

    address, flags = memory.__array_interface__["data"][0], mmap.MAP_SHARED | _FIXED
    where = ctypes.c_void_p(address), ctypes.c_size_t(memory.nbytes)
    return int(function(*where, access, flags, fd, ctypes.c_long(0))) != -1


@functools.lru_cache(maxsize=2)
def _c_function(name: str) -> Any:
    """Return a C function; None without it. Unlike mmap.madvise it lets other threads run."""
    if not hasattr(os, "posix_fallocate"):
        return None
    try:
        import ctypes

        return getattr(ctypes.CDLL(None, use_errno=True), name)
    except (ImportError, OSError, AttributeError):
        return None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
