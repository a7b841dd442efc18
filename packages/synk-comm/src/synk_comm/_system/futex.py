"""Futexes and memory fences through ctypes.

A futex lets a rank sleep on a word of shared memory until another rank changes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import sys
import time
from functools import partial
from typing import Callable

_WAIT = 0
_WAKE = 1
_SYSCALL = {"x86_64": 202, "aarch64": 98, "ppc64le": 221, "riscv64": 98, "s390x": 238}
_NAP_S = 0.0005


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class Futex:
    """Sleeping and waking on words of shared memory, given by address.

    On an unknown machine ``wait`` takes short naps of half a millisecond and ``wake`` has nothing
    to do.
    """

    def __init__(self) -> None:
        self._number = _SYSCALL.get(platform.machine()) if sys.maxsize > 2**32 else None
        self._libc = ctypes.CDLL(None, use_errno=True)

    def wait(self, address: int, expected: int, timeout_s: float) -> None:
        """Sleep while the 32-bit word holds ``expected``, at most ``timeout_s``; may wake early."""
        if self._number is None:
            time.sleep(min(_NAP_S, timeout_s))
            return
        timespec = _Timespec(int(timeout_s), int(timeout_s % 1.0 * 1e9))
        self._call(address, _WAIT, expected & 0xFFFFFFFF, ctypes.byref(timespec))

    def wake(self, address: int) -> None:
        """Wake all ranks that sleep on the word."""
        self._call(address, _WAKE, 0x7FFFFFFF, None)

    def _call(self, address: int, act: int, value: int, timespec: object) -> None:
        if self._number is not None:
            self._libc.syscall(
                ctypes.c_long(self._number),
                ctypes.c_void_p(address),
                ctypes.c_int(act),
                ctypes.c_uint32(value),
                timespec,
                None,
                0,
            )


def low_word(address: int) -> int:
    """Return the address of the low 32 bits of a 64-bit word."""
    return address if sys.byteorder == "little" else address + 4


def memory_fence() -> Callable[[], object] | None:
    """Return a full memory fence, or None where the machine needs none.

    x86-64 keeps stores in order, and loads in order: rounds need no more. Other machines need a
    fence between data and sequence word, on both sides.
    """
    if platform.machine() in ("x86_64", "AMD64"):
        return None
    with contextlib.suppress(OSError, AttributeError):
        fence = ctypes.CDLL("libatomic.so.1").atomic_thread_fence
        return partial(fence, ctypes.c_int(5))  # sequentially consistent
    if platform.machine() in _SYSCALL:
        # To wake, the kernel looks for sleepers after a full barrier, even if there are none.
        word, futex = ctypes.c_uint32(0), Futex()
        return lambda: futex.wake(ctypes.addressof(word))
    raise OSError(
        "no memory fence is known for this machine; install libatomic, or use backend='zmq'"
    )
