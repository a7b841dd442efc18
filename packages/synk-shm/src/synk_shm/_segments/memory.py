"""The memory of segments: allocated before it is used, so that no access can raise SIGBUS.

README.md of the package says why it is requested in this way: see *Speed*.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import errno
import functools
import mmap
import os
import threading
from typing import Any

import numpy as np

from synk_shm._segments import posix
from synk_shm.exceptions import ShmFullError

LARGE = 512 << 10  # below, allocating and then touching is as fast
WORTH_THREADS = 32 << 20  # below, threads that wait for a core cost more than they save
_SHARE = 16 << 20  # of each thread, at least
_CHUNK = 2 << 20  # of the size of a cache, and of a huge page
_MOST_THREADS = 8
_STEP = 16 << 20  # some kernels restart an interrupted allocation from its beginning
_POPULATE_WRITE = 23  # madvise(2), since Linux 5.14
_REMOVE = 9
_FIXED = 16  # of mmap(2)
_PAGE = 4096
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def check_space(asked: int, where: str) -> None:
    """Raise `ShmFullError` if `asked` bytes are surely too many.

    Beyond the memory of the machine or container an allocation does not fail: the kernel kills.
    """
    found = posix.space(where)
    if found is not None and asked > found[0]:
        raise posix.full_error(asked, where)
    if asked < WORTH_THREADS:
        return  # asking for the machine's free memory costs more than such a segment
    for left in (_machine_left(), _container_left()):
        if left is not None and asked > left:
            raise ShmFullError(
                errno.ENOMEM,
                f"asked for {posix.in_bytes(asked)} of shared memory, but only "
                f"{posix.in_bytes(left)} of RAM, swap and the container's allowance are left; "
                "free some or ask for less",
                where,
            )


def _machine_left() -> int | None:
    with contextlib.suppress(OSError, ValueError, LookupError), open("/proc/meminfo") as lines:
        kib = {key: text.split()[0] for key, text in (line.split(":") for line in lines)}
        return (int(kib["MemAvailable"]) + int(kib["SwapFree"])) * 1024
    return None


def _container_left() -> int | None:
    """File pages count as free."""
    with contextlib.suppress(OSError, ValueError, LookupError, StopIteration):
        group = next(line[3:] for line in _lines("/proc/self/cgroup") if line.startswith("0::"))
        folder = f"/sys/fs/cgroup{group}/memory."
        (limit,), (used,) = _lines(folder + "max"), _lines(folder + "current")
        fields = dict(line.split() for line in _lines(folder + "stat"))
        cache = int(fields["inactive_file"]) + int(fields["active_file"])
        return max(0, int(limit) - int(used) + cache)  # "max" is no number: no limit
    return None


def _lines(path: str) -> list[str]:
    with open(path) as file:
        return file.read().splitlines()


def allocate(fd: int, start: int, stop: int) -> None:
    """Allocate bytes start:stop of a segment; OSError if there is not enough memory."""
    if posix.CAN_ALLOCATE:  # macOS allocates on first touch, and has no limit of its own
        while stop - start > _STEP:
            os.posix_fallocate(fd, start, _STEP)
            start += _STEP
        os.posix_fallocate(fd, start, stop - start)


def populate(memory: _Bytes, start: int, stop: int, data: _Bytes | None = None) -> bool:
    """Allocate and map bytes start:stop of a mapping, and copy `data` to `start`.

    Return False, with nothing done, if the system cannot do that: no Linux, or an old one.
    OSError if there is not enough memory.
    """
    advise = _c_function("madvise")
    if advise is None:
        return False
    base = memory.__array_interface__["data"][0]
    first = start // _PAGE * _PAGE
    if _advise(advise, base + first, 1) == errno.EINVAL:
        return False
    count = min(len(os.sched_getaffinity(0)), _MOST_THREADS, (stop - first) // _SHARE)
    step = -(-(stop - first) // max(count, 1) // _CHUNK) * _CHUNK
    parts = collections.deque(range(first, stop, step))  # contiguous: pages near each other clash
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while parts:
                begin = parts.popleft()
                for at in range(begin, min(begin + step, stop), _CHUNK):
                    end = min(at + _CHUNK, stop)
                    number = 0 if failures else _advise(advise, base + at, end - at)
                    if number:
                        full = number in (errno.EFAULT, errno.ENOMEM)
                        raise OSError(errno.ENOSPC if full else number, os.strerror(number))
                    if data is not None and not failures:
                        low = max(at, start)
                        memory[low:end] = data[low - start : end - start]
        except IndexError:
            pass  # another thread has taken the last part
        except BaseException as error:  # noqa: BLE001 (raised below, by the thread that asked)
            failures.append(error)

    threads = []
    try:
        for _ in range(1, count):
            thread = threading.Thread(target=work)
            with contextlib.suppress(RuntimeError):  # no more threads, or the interpreter ends
                thread.start()
                threads.append(thread)
        work()
    finally:
        for thread in threads:
            thread.join()
    if failures:
        # Free them at once: a traceback may hold the mapping for long.
        whole = -(-start // _PAGE) * _PAGE
        _advise(advise, base + whole, stop - whole, _REMOVE)
        raise failures[0]
    return True


def _advise(advise: Any, address: int, length: int, what: int = _POPULATE_WRITE) -> int:
    """Populate whole pages, or free them; return 0 or the error's number."""
    while advise(ctypes.c_void_p(address), ctypes.c_size_t(length), what):
        number = ctypes.get_errno()
        if number != errno.EINTR:  # a signal; what was done stays done
            return number
    return 0


def map_over(memory: _Bytes, access: int, fd: int) -> bool:
    """Map a file's beginning in place of a mapping of Python's; False if that cannot be done."""
    function = _c_function("mmap")
    if function is None:
        return False
    address, flags = memory.__array_interface__["data"][0], mmap.MAP_SHARED | _FIXED
    where = ctypes.c_void_p(address), ctypes.c_size_t(memory.nbytes)
    return int(function(*where, access, flags, fd, ctypes.c_long(0))) != -1


@functools.lru_cache(maxsize=2)
def _c_function(name: str) -> Any:
    """Return a C function; None without it. Unlike mmap.madvise it lets other threads run."""
    if not posix.CAN_ALLOCATE:
        return None
    with contextlib.suppress(OSError, AttributeError):
        return getattr(ctypes.CDLL(None, use_errno=True), name)
    return None
