"""The header at the start of every segment.

It describes the segment's contents, so that a process that knows only the name can attach. It is
read as numbers and literals, never unpickled, and checked against the file before it is used: any
process may have made the file.

======  ===========================================================================
offset  (all numbers in the machine's own byte order)
======  ===========================================================================
0       magic, 8 bytes, written last: a segment without it is incomplete
8       version, u32; flags, u32 (bit 0: Fortran order)
16      nonce, 8 bytes: differs from that of a later segment of the same name
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
from synk_shm.exceptions import ShmError, ShmFormatError

MAGIC = b"SYNK-SHM"
VERSION = 1
NONCE_BYTES = 8
_PEEK = 256
_BEFORE = struct.Struct("=II")  # the nonce
_AFTER = struct.Struct("=8sQQQII")
_LENGTHS = struct.Struct("=II")
_FAMILY = re.compile("[0-9a-f]{8}")  # it becomes a part of a path
_FORTRAN = 1
_ALIGN = 64  # unaligned data costs a few per cent in every loop
_PAGE = 4096
_LARGE = 64 << 10
_BLANK = bytes(len(MAGIC))
_NONCE_AT = len(MAGIC) + _BEFORE.size
_AFTER_NONCE = _NONCE_AT + NONCE_BYTES
SHAPE_AT = _AFTER_NONCE + _AFTER.size
RESERVED_AT = 48
_LENGTHS_AT = SHAPE_AT - _LENGTHS.size


class Header(NamedTuple):
    """What a segment holds. Sizes in bytes, shape in elements."""

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
        """The end of the allocated bytes."""
        return self.data_offset + self.reserved

    @property
    def length(self) -> int:
        """The size of the segment."""
        return self.data_offset + self.capacity

    def pack(self) -> tuple[bytes, bytes]:
        """Return the header's bytes between magic and nonce, and those after the nonce."""
        text = self.dtype_text.encode()
        ndim = len(self.shape)
        sizes = (self.data_offset, self.capacity, self.reserved, ndim, len(text))
        after = _AFTER.pack(self.family.encode(), *sizes)
        before = _BEFORE.pack(VERSION, _FORTRAN if self.fortran else 0)
        return before, after + struct.pack(f"={ndim}q", *self.shape) + text


def plan(
    shape: tuple[int, ...], dtype: np.dtype[Any], fortran: bool, capacity: int | None, family: str
) -> tuple[Header, tuple[bytes, bytes]]:
    """Return the header of a new segment for an array, also packed; those of simple dtypes cached.

    Raises:
        TypeError, ValueError: arrays of this dtype or size cannot be shared.
    """
    answer = _known_plan if dtypes.is_simple(dtype) else _plan
    return answer(shape, dtype, fortran, capacity, family)


def _plan(
    shape: tuple[int, ...], dtype: np.dtype[Any], fortran: bool, capacity: int | None, family: str
) -> tuple[Header, tuple[bytes, bytes]]:
    text = dtypes.encode(dtype)
    nbytes = dtypes.count_bytes(shape, dtype)
    unit = _PAGE if nbytes >= _LARGE else _ALIGN
    start = -(-_size(len(shape), len(text.encode())) // unit) * unit
    room = nbytes if capacity is None else capacity
    header = Header(shape, dtype, text, fortran, start, room, nbytes, family)
    return header, header.pack()


_known_plan = functools.lru_cache(maxsize=256)(_plan)


def write(buffer: Any, packed: tuple[bytes, bytes], nonce: bytes) -> None:
    """Write a header to the start of a buffer, the magic last."""
    before, after = packed
    whole = b"".join((_BLANK, before, nonce, after))
    buffer[: len(whole)] = whole
    buffer[: len(MAGIC)] = MAGIC


def _size(ndim: int, text_length: int) -> int:
    return SHAPE_AT + 8 * ndim + text_length


def read_header(fd: int, size: int, name: str) -> tuple[Header, bytes] | None:
    """Return the header of an open segment of `size` bytes, and its nonce; None if it has none yet.

    Raises:
        ShmFormatError: not a segment of synk_shm, or one that contradicts itself.
    """
    start = posix.read_start(fd, size, _PEEK) if size else b""
    if len(start) < SHAPE_AT or start[: len(MAGIC)] == _BLANK:
        return None  # it is still being made
    try:
        if start[: len(MAGIC)] != MAGIC:
            raise ValueError("it does not begin with synk_shm's magic number")
        ndim, text_length = _LENGTHS.unpack_from(start, _LENGTHS_AT)
        end = _size(min(ndim, dtypes.MAX_DIMENSIONS), min(text_length, dtypes.MAX_TEXT))
        if end > len(start):
            start = posix.read_start(fd, size, end)
        # A structured dtype is made again each time, because callers can change its names.
        read = _read if b"{" in start[SHAPE_AT:end] else _known
        header = read(start[len(MAGIC) : _NONCE_AT], start[_AFTER_NONCE:end], size)
    except (TypeError, ValueError) as error:
        reason = f"not a usable segment of synk_shm: {error}"
        raise ShmFormatError(errno.EINVAL, reason, name) from error
    return header, start[_NONCE_AT:_AFTER_NONCE]


def _read(before: bytes, after: bytes, size: int) -> Header:
    """Return the header, given its bytes before and after the nonce.

    Raises:
        ValueError, TypeError: it contradicts itself.
    """
    version, flags = _BEFORE.unpack(before)
    family, offset, capacity, reserved, ndim, text_length = _AFTER.unpack_from(after)
    if version != VERSION:
        raise ValueError(f"it has version {version} of the layout, this is version {VERSION}")
    if ndim > dtypes.MAX_DIMENSIONS or text_length > dtypes.MAX_TEXT or flags & ~_FORTRAN:
        raise ValueError(f"{ndim} dimensions, {text_length} bytes of dtype, flags {flags:#x}")
    end = _size(ndim, text_length)
    if end > len(after) + _AFTER_NONCE or end > offset or offset % _ALIGN:
        raise ValueError(f"its data begin at byte {offset} and its header ends at {end}")
    if offset + capacity > size or reserved > capacity:
        raise ValueError(f"it claims {offset} + {capacity} bytes but has {size}")
    shape = struct.unpack_from(f"={ndim}q", after, SHAPE_AT - _AFTER_NONCE)
    text = after[end - text_length - _AFTER_NONCE : end - _AFTER_NONCE].decode()
    family_text = family.decode("ascii")
    if not _FAMILY.fullmatch(family_text):
        raise ValueError(f"{family_text!r} is not the name of a family")
    dtype = dtypes.decode(text)
    nbytes = dtypes.count_bytes(shape, dtype)
    if nbytes > reserved:
        raise ValueError(f"shape {shape} of {dtype} needs {nbytes} bytes, it has {reserved}")
    fortran = bool(flags & _FORTRAN)
    return Header(shape, dtype, text, fortran, offset, capacity, reserved, family_text)


_known = functools.lru_cache(maxsize=256)(_read)


def peek(name: str) -> tuple[Header | None, os.stat_result] | None:
    """Return header and status of the file of this name; None if it is gone.

    The header is None if it is no usable segment.
    """
    try:
        fd = posix.open_existing(name, readonly=True)
    except ShmError:
        return None
    try:
        status = os.fstat(fd)
        try:
            found = read_header(fd, status.st_size, name)
        except OSError:
            found = None
        return None if found is None else found[0], status
    finally:
        os.close(fd)
