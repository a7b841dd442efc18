"""The header at the start of every segment.

With it a process that knows only the name can attach. It is read as numbers and literals, never
unpickled, and checked against the file before use: any process may have made the file.

======  ===========================================================================
offset  (all numbers in the machine's own byte order)
======  ===========================================================================
0       magic, 8 bytes, written last: a segment without it is incomplete
8       nonce, 8 bytes: differs from that of a later segment of the same name
16      version, u32; flags, u32 (bit 0: Fortran order)
24      family, 8 bytes: the eight hex digits of the owner's family
32      data offset, u64
40      capacity, u64: bytes that are mapped for data
48      reserved, u64: bytes of data that are really allocated (only ever grows)
56      ndim, u32; length of the dtype's text, u32
64      shape, i64 each (the first one changes in place), then the text
======  ===========================================================================
"""

from __future__ import annotations

import errno
import functools
import os
import re
import struct
from typing import Any, NamedTuple

import numpy as np

from synk_shm._segments import dtypes, posix
from synk_shm.exceptions import ShmFormatError, ShmNotFoundError

NONCE_BYTES = 8
RESERVED_AT = 48
_MAGIC = b"SYNK-SHM"
_BLANK = bytes(len(_MAGIC))
_VERSION = 1
_FIXED_AT = len(_MAGIC) + NONCE_BYTES
_FIXED = struct.Struct("=II8sQQQII")
SHAPE_AT = _FIXED_AT + _FIXED.size
_PEEK = 256
_FAMILY = re.compile("[0-9a-f]{8}")  # it becomes a part of a path
_FORTRAN = 1
_ALIGN = 64  # unaligned data costs a few per cent in every loop
_PAGE = 4096
_LARGE = 64 << 10


class Header(NamedTuple):
    """The contents of a segment. Sizes in bytes, shape in elements."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    dtype_text: str
    fortran: bool
    data_offset: int
    capacity: int
    reserved: int
    family: str

    @property
    def stop(self) -> int:
        """Return the end of the allocated bytes."""
        return self.data_offset + self.reserved

    @property
    def length(self) -> int:
        """Return the size of the segment."""
        return self.data_offset + self.capacity


def plan(
    shape: tuple[int, ...], dtype: np.dtype[Any], fortran: bool, capacity: int | None, family: str
) -> tuple[Header, bytes]:
    """Return the header of a new segment for an array, and its bytes after the nonce."""
    # Other dtypes than NumPy's own numbers may be equal, but differ in metadata or alignment.
    answer = _plan if dtype.isbuiltin == 1 else _plan.__wrapped__
    return answer(shape, dtype, fortran, capacity, family)


@functools.lru_cache(maxsize=256)
def _plan(
    shape: tuple[int, ...], dtype: np.dtype[Any], fortran: bool, capacity: int | None, family: str
) -> tuple[Header, bytes]:
    text = dtypes.encode(dtype)
    encoded, ndim = text.encode(), len(shape)
    nbytes = dtypes.count_bytes(shape, dtype)
    unit = _PAGE if nbytes >= _LARGE else _ALIGN
    start = -(-_size(ndim, len(encoded)) // unit) * unit
    room = nbytes if capacity is None else capacity
    sizes = (start, room, nbytes, ndim, len(encoded))
    fixed = _FIXED.pack(_VERSION, _FORTRAN if fortran else 0, family.encode(), *sizes)
    packed = fixed + struct.pack(f"={ndim}q", *shape) + encoded
    return Header(shape, dtype, text, fortran, start, room, nbytes, family), packed


def write(buffer: Any, packed: bytes, nonce: bytes) -> None:
    """Write a header to the start of a buffer, the magic last."""
    buffer[: _FIXED_AT + len(packed)] = _BLANK + nonce + packed
    buffer[: len(_MAGIC)] = _MAGIC


def _size(ndim: int, n_text: int) -> int:
    return SHAPE_AT + 8 * ndim + n_text


def read_header(fd: int, size: int, name: str) -> tuple[Header, bytes] | None:
    """Return the header of an open segment of `size` bytes, and its nonce; None before it has one.

    ShmFormatError if it is no segment of synk_shm, or contradicts itself.
    """
    start = posix.read_start(fd, size, _PEEK) if size else b""
    magic = start[: len(_MAGIC)]
    if len(start) < SHAPE_AT or magic == _BLANK:
        return None  # it is still being made
    try:
        if magic != _MAGIC:
            raise ValueError("it does not begin with synk_shm's magic number")
        ndim, n_text = _FIXED.unpack_from(start, _FIXED_AT)[-2:]
        end = _size(min(ndim, dtypes.MAX_DIMENSIONS), min(n_text, dtypes.MAX_TEXT))
        if end > len(start):
            start = posix.read_start(fd, size, end)
        # A structured dtype is made again each time, because callers can change its names.
        read = _read.__wrapped__ if b"{" in start[SHAPE_AT:end] else _read
        return read(start[_FIXED_AT:end], size), start[len(_MAGIC) : _FIXED_AT]
    except (TypeError, ValueError) as error:
        reason = f"not a usable segment of synk_shm: {error}"
        raise ShmFormatError(errno.EINVAL, reason, name) from error


@functools.lru_cache(maxsize=256)
def _read(packed: bytes, size: int) -> Header:
    """Return the header, given its bytes after the nonce; ValueError if it contradicts itself."""
    version, flags, family, offset, capacity, reserved, ndim, n_text = _FIXED.unpack_from(packed)
    if version != _VERSION:
        raise ValueError(f"it has version {version} of the layout, this is version {_VERSION}")
    if ndim > dtypes.MAX_DIMENSIONS or n_text > dtypes.MAX_TEXT or flags & ~_FORTRAN:
        raise ValueError(f"{ndim} dimensions, {n_text} bytes of dtype, flags {flags:#x}")
    end = _size(ndim, n_text)
    if end > _FIXED_AT + len(packed) or end > offset or offset % _ALIGN:
        raise ValueError(f"its data begin at byte {offset} and its header ends at {end}")
    if offset + capacity > size or reserved > capacity:
        raise ValueError(f"it claims {offset} + {capacity} bytes but has {size}")
    if not _FAMILY.fullmatch(family.decode("ascii")):
        raise ValueError(f"{family!r} is not the name of a family")
    shape = struct.unpack_from(f"={ndim}q", packed, _FIXED.size)
    text = packed[_FIXED.size + 8 * ndim : end - _FIXED_AT].decode()
    dtype = dtypes.decode(text)
    nbytes = dtypes.count_bytes(shape, dtype)
    if nbytes > reserved:
        raise ValueError(f"shape {shape} of {dtype} needs {nbytes} bytes, it has {reserved}")
    fortran = bool(flags & _FORTRAN)
    return Header(shape, dtype, text, fortran, offset, capacity, reserved, family.decode())


def peek(name: str) -> Header | None:
    """Return the header of a file; None if it is gone, or incomplete: it begins with zeros then.

    ShmError if it cannot be read.
    """
    try:
        fd = posix.open_existing(name, readonly=True)
    except ShmNotFoundError:
        return None
    try:
        size = os.fstat(fd).st_size
        found = read_header(fd, size, name)
        if found is None and size and any(posix.read_start(fd, size, len(_MAGIC))):
            raise ShmFormatError(errno.EINVAL, "too short for a segment of synk_shm", name)
    finally:
        os.close(fd)
    return None if found is None else found[0]
