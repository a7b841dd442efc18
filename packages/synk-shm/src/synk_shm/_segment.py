"""Segments: memory that several processes map, found by a name and a header.

How arrays stay alive without a class of their own::

    ndarray  --base-->  ndarray of bytes  --buffer-->  Mapping  --segment-->  Segment
    (yours)             (one per mapping)              (mmap)                 (names, nonce)

Whatever view is left keeps the mapping; with it the `Segment` goes, and removes the names
that this process owns. It points back by weak references only: no cycle delays that.
"""

from __future__ import annotations

import mmap
import os
import secrets
import sys
import weakref
from typing import Any, Literal

import numpy as np

from synk_shm import _header, _names, _posix
from synk_shm._cleanup import process
from synk_shm._space import ANONYMOUS, check_space
from synk_shm.exceptions import ShmError

_NO_FD = {"trackfd": False} if sys.version_info >= (3, 13) else {}  # saves a descriptor each

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Array = np.ndarray[Any, np.dtype[Any]]


class Mapping(mmap.mmap):
    """Mapped memory that knows its segment."""

    segment: Segment


class Segment:
    """Shared memory under an array, as this process sees it. Got by `segment(x)`.

    It describes the memory and does not keep it alive: after the last array is gone, or
    after `close()`, it is `closed`.
    """

    def __init__(
        self,
        mapping: Mapping,
        name: str,
        header: _header.Header,
        status: os.stat_result,
        *,
        readonly: bool,
        made: bool,
        owned: list[str],
        fd: int | None,
    ) -> None:
        self.name = name
        self.readonly = readonly
        self.capacity = header.capacity
        self.dtype = header.dtype
        self.dtype_text = header.dtype_text
        self.fortran = header.fortran
        self.nonce = header.nonce
        self.family = header.family
        self.data_offset = header.data_offset
        self.inode = (status.st_dev, status.st_ino)
        self.mode = status.st_mode & 0o777
        self.fd = fd
        self.unlinked = False
        self.lock_holder: tuple[int, int] | None = None
        self._closed = False
        self._families = [header.family]
        self._ndim = len(header.shape)
        self._mine = made
        self._owned = owned
        self._pid = os.getpid()
        self._mapping = weakref.ref(mapping)
        self._bytes: weakref.ref[Bytes] | None = None
        self.address = int(self._all_bytes(mapping).__array_interface__["data"][0])

    def __repr__(self) -> str:
        if self.closed:
            return f"<Segment {self.name} closed>"
        words = ["read-only" if self.readonly else "read-write"]
        words += ["owner"] if self.owner else []
        words += ["unlinked"] if self.unlinked else []
        kind = f"{self.shape} {self.dtype}, {self.nbytes} of {self.capacity} bytes"
        return f"<Segment {self.name} {kind}, {', '.join(words)}>"

    @property
    def backend(self) -> str:
        """Either "shm" (has a name) or "memfd" (has none)."""
        return "memfd" if self.fd is not None or self.name.startswith("/proc/") else "shm"

    @property
    def closed(self) -> bool:
        """Whether this process has given the memory up."""
        return self._closed or self._mapping() is None

    @property
    def owner(self) -> bool:
        """Whether this process made the segment (or got it handed over), so removes it."""
        return self._mine and self._pid == os.getpid() and not self.closed

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole array's present shape; `resize` changes it."""
        return tuple(int(length) for length in self._numbers(_header.SHAPE_AT, self._ndim))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array's present shape."""
        return _header.count_bytes(self.shape, self.dtype)

    @property
    def reserved(self) -> int:
        """Bytes of data that are really allocated."""
        return int(self._numbers(_header.RESERVED_AT, 1)[0])

    @property
    def address_name(self) -> str:
        """The name under which others find this segment now."""
        if self.fd is not None:
            return f"/proc/{os.getpid()}/fd/{self.fd}"
        return self._owned[0] if self._owned else self.name

    def array(self) -> Array:
        """The whole array, at its present shape."""
        order: Literal["C", "F"] = "F" if self.fortran else "C"
        return np.ndarray(self.shape, self.dtype, self._all_bytes(), self.data_offset, order=order)

    def view(
        self,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        dtype: np.dtype[Any],
    ) -> Array:
        """The view that a handle describes. ValueError if it leaves the allocated bytes."""
        low = high = offset
        if strides is None:
            high += _header.count_bytes(shape, dtype)
        elif 0 not in shape:
            for length, stride in zip(shape, strides):
                low, high = (
                    (low + (length - 1) * stride, high)
                    if stride < 0
                    else (low, high + (length - 1) * stride)
                )
            high += dtype.itemsize
        if low < 0 or high > self.reserved:
            raise ValueError(
                f"the view spans bytes {low} to {high}, {self.name} has {self.reserved}"
            )
        return np.ndarray(
            shape, dtype, self._all_bytes(), self.data_offset + offset, strides=strides
        )

    def live_views(self) -> int:
        """How many arrays of this process lie directly on this memory."""
        owner = self._all_bytes()
        probe = object()
        return sys.getrefcount(owner) - sys.getrefcount(probe)

    def adopt(self, name: str) -> None:
        """Own one more name, which came with a message. One is enough: drop a second."""
        if self.owner:
            _posix.remove(name)
            return
        if not _posix.exists(name):
            return  # a message that is unpickled again
        family = _names.family_of(name) or self.family
        process.enter(family)
        self._families.append(family)
        self._mine, self._pid = True, os.getpid()
        self._owned = [name]
        process.owners.add(self)

    def move_user_name(self, old: Segment) -> None:
        """Take the name that a user gave to `old`, in one step."""
        for name in [name for name in old._owned if _names.is_user_name(name)]:
            step = _names.random_name(self.family)
            _posix.link(self.address_name, step)
            os.replace(_posix.path_of(step), _posix.path_of(name))
            old._owned.remove(name)
            self._owned.append(name)

    def has_user_name(self) -> bool:
        return any(_names.is_user_name(name) for name in self._owned)

    def set_length(self, length: int, reserved: int) -> None:
        """Publish a new first length: memory first, so that no reader sees too much."""
        self._numbers(_header.RESERVED_AT, 1)[0] = reserved
        self._numbers(_header.SHAPE_AT, 1)[0] = length

    def reopen(self) -> int:
        """A new descriptor (and so a new holder of locks) for this segment's file."""
        if self.fd is not None:
            return _posix.open_anonymous(self.address_name, self.readonly)
        return _posix.open_existing(self.address_name, self.readonly)

    def remove_owned_names(self) -> None:
        """Remove the names this process owns. Does nothing in a forked child."""
        if self._pid != os.getpid():
            return
        owned, self._owned = self._owned, []
        for name in owned:
            _posix.remove(name, self.inode[1])
            self.unlinked = True

    def unlink(self) -> None:
        """Make the segment unreachable for processes that do not map it yet."""
        self.unlinked = True
        self._owned = []
        if self.fd is not None:
            fd, self.fd = self.fd, None
            os.close(fd)

    def release(self) -> None:
        """Give the memory up: called by `close`, and when the mapping dies."""
        if self._closed:
            return
        self._closed = True
        process.owners.discard(self)
        try:
            self.remove_owned_names()
        except ShmError:
            self.unlinked = False  # a later sweep will find the name
        if self.fd is not None:
            fd, self.fd = self.fd, None
            os.close(fd)
        for family in self._families:
            process.leave(family)

    def _all_bytes(self, mapping: Mapping | None = None) -> Bytes:
        """The one array on which all others lie; its reference count is theirs."""
        found = self._bytes() if self._bytes is not None else None
        if found is None:
            mapping = mapping or self._mapping()
            if mapping is None:
                raise ValueError(f"segment {self.name} is closed")
            found = np.frombuffer(mapping, np.uint8)
            self._bytes = weakref.ref(found)
        return found

    def _numbers(self, offset: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Numbers of the header. NumPy reads and writes each of them in one piece."""
        return np.ndarray((count,), np.int64, self._all_bytes(), offset)


# Mappings of this process by (nonce, readonly): a second attach costs no memory map.
_mappings: weakref.WeakValueDictionary[tuple[bytes, bool], Mapping] = weakref.WeakValueDictionary()


def create(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    fortran: bool = False,
    capacity: int | None = None,
    name: str | None = None,
    mode: int = 0o600,
    backend: str = "shm",
    data: memoryview | None = None,
) -> Mapping:
    """Make a segment for an array; its bytes are zero, or `data`.

    Args:
        capacity: bytes to map now and allocate when needed.
        name: a system name that a user asked for.
        data: all bytes of the array, in memory order.
    """
    text = _header.encode_dtype(dtype)
    nbytes = _header.count_bytes(shape, dtype)
    capacity = nbytes if capacity is None else capacity
    start = _header.data_offset(len(shape), text, nbytes)
    where = ANONYMOUS if backend == "memfd" else _posix.DIRECTORY or "shared memory"
    check_space(start + nbytes, where)
    process.arm()
    family = process.home
    header = _header.Header(
        secrets.token_bytes(8), family, shape, text, fortran, start, capacity, nbytes
    )
    process.enter(family)
    owned: list[str] = []
    fd = -1
    try:
        if backend == "memfd":
            fd = _posix.create_anonymous(mode)
            first = f"/proc/{os.getpid()}/fd/{fd}"
        else:
            # Where second entries are impossible the given name is the only one.
            first = name if name and _posix.DIRECTORY is None else _names.random_name(family)
            fd = _posix.create(first, mode)
            owned.append(first)
        os.ftruncate(fd, start + capacity)
        written = data is not None and _posix.write_data(fd, start, data, where)
        _posix.allocate(fd, 0, start if written else start + nbytes, where)
        mapping = _map(fd, start + capacity, first, readonly=False)
        if data is not None and not written:
            mapping[start : start + nbytes] = data
        packed, magic = header.pack(), _header.MAGIC
        mapping[len(magic) : len(packed)] = packed[len(magic) :]
        mapping[: len(magic)] = magic
        if backend == "memfd":
            _posix.seal(fd)
        elif name is not None and name != first:
            _posix.link(first, name)  # whoever finds this name finds it complete
            owned.append(name)
        kept = fd if backend == "memfd" else None
        _register(mapping, first, header, fd, readonly=False, made=True, owned=owned, kept=kept)
    except BaseException:
        for done in owned:
            _posix.remove(done)
        if fd >= 0:
            os.close(fd)
        process.leave(family)
        raise
    if backend != "memfd":
        os.close(fd)
    return mapping


def find_mapped(nonce: bytes, readonly: bool) -> Mapping | None:
    """This process's own mapping of a segment, if others may still attach it too."""
    mapping = _mappings.get((nonce, readonly))
    if mapping is None or mapping.segment.closed or mapping.segment.unlinked:
        return None
    return mapping


def map_opened(fd: int, name: str, header: _header.Header, readonly: bool) -> Mapping:
    """Map a segment that has been opened and checked. Takes the descriptor over."""
    process.enter(family := header.family)
    try:
        status = os.fstat(fd)
        known = find_mapped(header.nonce, readonly)
        if known is not None and known.segment.inode == (status.st_dev, status.st_ino):
            process.leave(family)
            os.close(fd)
            return known
        mapping = _map(fd, header.data_offset + header.capacity, name, readonly=readonly)
        anonymous = name.startswith("/proc/")
        kept = fd if anonymous else None
        _register(mapping, name, header, fd, readonly=readonly, made=False, owned=[], kept=kept)
    except BaseException:
        process.leave(family)
        os.close(fd)
        raise
    if not anonymous:
        os.close(fd)
    return mapping


def segment(x: object) -> Segment | None:
    """The segment under an array or any view of it; None for ordinary memory."""
    while x is not None:
        if isinstance(x, Mapping):
            return x.segment
        x = x.obj if isinstance(x, memoryview) else getattr(x, "base", None)
    return None


def _map(fd: int, length: int, name: str, *, readonly: bool) -> Mapping:
    access = mmap.PROT_READ if readonly else mmap.PROT_READ | mmap.PROT_WRITE
    try:
        return Mapping(fd, length, flags=mmap.MAP_SHARED, prot=access, **_NO_FD)
    except OSError as error:
        _posix.raise_mapped(error, name)


def _register(
    mapping: Mapping,
    name: str,
    header: _header.Header,
    fd: int,
    *,
    readonly: bool,
    made: bool,
    owned: list[str],
    kept: int | None,
) -> None:
    described = Segment(
        mapping,
        name,
        header,
        os.fstat(fd),
        readonly=readonly,
        made=made,
        owned=list(owned),
        fd=kept,
    )
    mapping.segment = described
    if owned:
        process.owners.add(described)
    _mappings[header.nonce, readonly] = mapping
    # Not at interpreter exit: `_cleanup` does that later, after multiprocessing's queues.
    weakref.finalize(mapping, described.release).atexit = False
