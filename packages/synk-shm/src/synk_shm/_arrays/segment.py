"""Segments: memory that several processes map, found by a name and a header.

How arrays stay alive without a class of their own::

    ndarray  --base-->  ndarray of bytes  --buffer-->  Mapping  --segment-->  Segment
    (yours)             (one per mapping)              (mmap)                 (names, nonce)

Any view keeps the mapping. With the mapping the `Segment` goes, which removes the names that this
process owns. It points back by weak references only: no cycle delays that.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from synk_shm._processes.process import process
from synk_shm._segments import dtypes, headers, memory, naming, posix
from synk_shm.exceptions import ShmError, ShmNotFoundError

_NO_RESERVE = 0x4000  # of mmap(2)
_FEW = 64
_NO_FD = {"trackfd": False} if sys.version_info >= (3, 13) else {}

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Array = np.ndarray[Any, np.dtype[Any]]


class Mapping(mmap.mmap):
    """Mapped memory with a reference to its segment."""

    __slots__ = ("segment",)
    segment: Segment


class Segment:
    """Shared memory under an array, as this process has it; returned by `segment(x)`.

    It does not keep the memory alive: after the last array is gone, or after `close()`, it is
    `closed`.

    Attributes:
        name: for `attach` in another process.
        backend: either "shm" (has a name) or "memfd" (has none).
        dtype: of the whole array.
        family: eight hex digits: the program whose end removes the segment.
        capacity: bytes to which `resize` can grow the array in place.
        readonly: whether this process may only read the memory.
        owner: whether this process made or received the segment, and so removes its names.
        closed: whether this process has closed the segment.
        unlinked: whether no process can attach it any more.
        mode: permissions of the segment.
    """

    # Defaults of most segments.
    fd: int | None = None
    owner = False
    closed = False
    unlinked = False
    families: tuple[str, ...] = ()
    _data_at = 0
    _bytes: weakref.ref[Bytes] | None = None

    def __init__(
        self,
        mapping: Mapping,
        name: str,
        header: headers.Header,
        nonce: bytes,
        mode: int,
        readonly: bool,
        inode: int,
        owned: list[str],
    ) -> None:
        self.name = name
        self.backend = "memfd" if name.startswith("/proc/") else "shm"
        self.header = header
        self.dtype, self.family, self.capacity = header.dtype, header.family, header.capacity
        self.nonce = nonce
        self.mode = mode
        self.readonly = readonly
        self.inode = inode
        self.owned = owned
        self.mapping: Callable[[], Mapping | None] = weakref.ref(mapping, self._died)
        mapping.segment = self
        process.mapped[nonce, readonly] = self

    def __repr__(self) -> str:
        if self.closed:
            return f"<Segment {self.name} closed>"
        words = ["read-only" if self.readonly else "read-write"]
        words += ["owner"] if self.owner else []
        words += ["unlinked"] if self.unlinked else []
        kind = f"{self.shape} {self.dtype}, {self.nbytes} of {self.capacity} bytes"
        return f"<Segment {self.name} {kind}, {', '.join(words)}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the whole array's present shape; `resize` changes it."""
        return tuple(self._numbers(headers.SHAPE_AT, len(self.header.shape)).tolist())

    @property
    def nbytes(self) -> int:
        """Return the bytes of the whole array's present shape."""
        return dtypes.count_bytes(self.shape, self.dtype)

    @property
    def reserved(self) -> int:
        """Return the bytes of data that are really allocated."""
        return int(self._numbers(headers.RESERVED_AT, 1)[0])

    @property
    def address_name(self) -> str:
        """Return the name by which other processes can attach this segment now."""
        return self.names[0] if self.fd is None else f"/proc/{os.getpid()}/fd/{self.fd}"

    @property
    def names(self) -> list[str]:
        """Return the names that this process owns, or the one that it attached."""
        return list(self.owned) or [self.name]

    def memory(self) -> Bytes:
        """Return all bytes, header included: the one array on which all others lie."""
        found = None if self._bytes is None else self._bytes()
        if found is None:
            mapping = self.mapping()
            if mapping is None:
                raise ValueError(f"segment {self.name} is closed")
            found = np.frombuffer(mapping, np.uint8)
            self._bytes = weakref.ref(found)
        return found

    def array(self, shape: tuple[int, ...] | None = None) -> Array:
        """Return the whole array, at its present shape (which a caller may know already)."""
        header, lengths = self.header, self.shape if shape is None else shape
        order: Any = "F" if header.fortran else "C"
        return np.ndarray(lengths, header.dtype, self.memory(), header.data_offset, order=order)

    def offset_of(self, x: Array) -> int:
        """Return the bytes from the start of the data to an array's first element."""
        if not self._data_at:
            start = self.memory().__array_interface__["data"][0]
            self._data_at = int(start) + self.header.data_offset
        return int(x.__array_interface__["data"][0]) - self._data_at

    def adopt(self, name: str) -> None:
        """Own a name that came with a message; remove it if this process owns one already."""
        if self.owner:
            posix.remove(name)
            return
        self.families += process.enter(naming.family_of(name) or self.family)
        self.owner = True
        self.owned = [name]

    def set_length(self, length: int, reserved: int) -> None:
        """Publish a new first length: memory first, so that no reader exceeds it."""
        self._numbers(headers.RESERVED_AT, 1)[0] = reserved
        self._numbers(headers.SHAPE_AT, 1)[0] = length

    def disown(self) -> None:
        """Forget the names in a forked child: its parent owns them."""
        self.name = self.names[0]  # one that is still there
        self.owned = []
        self.owner = False

    def remove_owned_names(self) -> None:
        """Remove the names this process owns."""
        owned, self.owned = self.owned, []
        for name in reversed(owned):  # the random one last: it leads a sweep to the others
            # A random name cannot have been given again.
            posix.remove(name, self.inode if naming.is_user_name(name) else None)
        self.unlinked |= bool(owned)

    def unlink(self) -> None:
        """Make the segment unreachable for processes that do not map it yet."""
        self.unlinked = True
        self.owned = []
        self._close_fd()

    def release(self) -> None:
        """Drop names and families: called by `close`, and when the mapping is freed."""
        if self.closed:
            return
        self.closed, self.owner = True, False
        with contextlib.suppress(ShmError):  # a later sweep will find the name
            self.remove_owned_names()
        process.forget(self, (self.nonce, self.readonly))
        self._close_fd()
        for family in self.families:
            process.leave(family)

    def _died(self, _: object) -> None:
        self.mapping = lambda: None  # the weak reference refers to this method, and so to self
        self.release()

    def _close_fd(self) -> None:
        if self.fd is not None:
            fd, self.fd = self.fd, None
            os.close(fd)

    def _numbers(self, offset: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return numbers of the header; NumPy reads and writes each of them in one piece."""
        return np.ndarray((count,), np.int64, self.memory(), offset)


def segment(x: object) -> Segment | None:
    """Return the segment under an array or any view of it; None for ordinary memory."""
    while x is not None:
        if isinstance(x, Mapping):
            return x.segment
        x = x.obj if isinstance(x, memoryview) else getattr(x, "base", None)
    return None


def require_segment(x: object) -> Segment:
    """Return the segment under an array; ValueError with the cure if there is none."""
    found = segment(x)
    if found is None:
        raise ValueError("this array is not in shared memory; use share(array) to copy it there")
    return found


def raise_taken(name: str) -> NoReturn:
    """Raise the error for a name that leads to another segment now."""
    raise ShmNotFoundError(errno.ENOENT, "another segment has taken this name", name)


def find_mapped(nonce: bytes, readonly: bool) -> Mapping | None:
    """Return this process's own mapping of a segment, if others may still attach it too."""
    found: Segment | None = process.mapped.get((nonce, readonly))
    mapping = None if found is None else found.mapping()
    if mapping is None or mapping.segment.closed or mapping.segment.unlinked:
        return None
    return mapping


def map_memory(fd: int, length: int, name: str, readonly: bool = False) -> Mapping:
    """Map the first `length` bytes of an open segment, shared."""
    access = mmap.PROT_READ if readonly else mmap.PROT_READ | mmap.PROT_WRITE
    try:
        # Else Python keeps a descriptor, which is quicker; but a process may have 1024, or fewer.
        if len(process.mapped) >= _FEW and not _NO_FD and sys.platform == "linux":
            mapping = Mapping(-1, length, mmap.MAP_PRIVATE | _NO_RESERVE, access)
            if memory.map_over(np.frombuffer(mapping, np.uint8), access, fd):
                return mapping
        return Mapping(fd, length, mmap.MAP_SHARED, access, **_NO_FD)
    except OSError as error:
        posix.raise_mapped(error, name, asked=length)
