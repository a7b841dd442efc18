"""Handles: addresses of shared arrays and their views, and the way back to the arrays."""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from typing import Any, NamedTuple

import numpy as np

from synk_shm._arrays.segment import (
    Array,
    Mapping,
    Segment,
    find_mapped,
    map_memory,
    raise_taken,
    require_segment,
)
from synk_shm._processes.process import process
from synk_shm._segments import dtypes, headers, naming, posix
from synk_shm.exceptions import (
    ShmFormatError,
    ShmNotFoundError,
    ShmPermissionError,
    ShmTimeoutError,
)

_ANONYMOUS = re.compile(r"/proc/[0-9]+/fd/[0-9]+")


class Handle(NamedTuple):
    """The address of a shared array: a value to send to another process and `attach` there.

    A handle keeps nothing alive. The maker of the array has to keep it until the receiver
    has attached; after that the receiver's array keeps the memory.

    Attributes:
        name: the segment's name.
        nonce: eight bytes that differ from those of a later segment of the same name.
        offset: bytes from the start of the segment's data to element [0, 0, ...].
        shape: in elements.
        strides: in bytes; None means C order.
        dtype_text: `numpy.dtype.str`, or a literal that describes a structured dtype; empty
            for the structured dtype of the whole segment, which its header describes.
    """

    name: str
    nonce: bytes
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype_text: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """The array's dtype. Attaches the array to see it if the handle leaves it out."""
        return dtypes.decode(self.dtype_text) if self.dtype_text else self.attach(True).dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the array's elements."""
        return dtypes.count_bytes(self.shape, self.dtype)

    def attach(self, readonly: bool = False) -> Array:
        """Return the array itself, in this process: see `attach`."""
        return attach(self, readonly=readonly)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Handle.unpack, (naming.pack(self.name), *self[1:])

    @staticmethod
    def unpack(packed: bytes | str, *rest: Any) -> Handle:
        """Return the handle that was pickled."""
        return Handle(naming.unpack(packed), *rest)


# Their pickles name them: shorter ones, and they survive a move of this file.
Handle.__module__ = Handle.unpack.__module__ = "synk_shm"


def handle(x: Array) -> Handle:
    """Return the handle of a shared array, or of any view of one: slices, transposes, fields.

    Never copies and never blocks. The result can be pickled by any pickler.

    Args:
        x: an array for which `is_shared(x)` holds.

    Raises:
        TypeError: `x` is not an array.
        ValueError: `x` is not in shared memory, or its segment is closed or unlinked.
    """
    if not isinstance(x, np.ndarray):
        raise TypeError(f"expected a numpy.ndarray, got {type(x).__name__}")
    found = require_segment(x)
    if found.closed or found.unlinked:
        state = "closed" if found.closed else "unlinked"
        raise ValueError(f"segment {found.name} is {state}: no other process can attach it")
    whole = found.header
    text = whole.dtype_text if x.dtype is whole.dtype else dtypes.encode(x.dtype)
    if dtypes.is_literal(text) and text == whole.dtype_text:
        text = ""  # it may be long
    offset = found.offset_of(x) if x.size else 0
    strides = None if x.flags.c_contiguous else x.strides
    return Handle(found.address_name, found.nonce, offset, x.shape, strides, text)


def attach(
    name_or_handle: str | Handle,
    *,
    readonly: bool = False,
    timeout_s: float = 1.0,
    owner_uid: int | None = None,
) -> Array:
    """Return the shared array of this name or handle, in this process.

    By name: the whole array at its present shape. By handle: exactly the view of which
    the handle was made. A second attach of one segment in one process shares its mapping.

    Args:
        name_or_handle: a name given at creation, a `Segment.name`, or a `Handle`.
        readonly: map the memory without the right to write; NumPy's flag cannot be set back.
        timeout_s: how long to wait, in seconds, for a segment that is still being made.
        owner_uid: accept the segments of this user; by default only the caller's own.

    Raises:
        ShmNotFoundError: it was never there, or its owner has removed it.
        ShmPermissionError: it belongs to another user, or its mode forbids this.
        ShmFormatError: this is no segment of synk_shm; it is left as it is.
        ShmTimeoutError: it was not ready after `timeout_s`.
        ShmError: the system cannot map it (errno says why); the segment is left as it is.
    """
    address = name_or_handle if isinstance(name_or_handle, Handle) else None
    nonce = None if address is None else address.nonce
    name: Any = name_or_handle if address is None else address.name
    if address is None or not (isinstance(name, str) and name.startswith("/proc/")):
        name = naming.system_name(name)
    elif not _ANONYMOUS.fullmatch(name):
        raise ValueError(f"{name!r} is not the address of a segment")
    mapping = open_segment(name, readonly, timeout_s, nonce, owner_uid)
    # The segment does not keep its mapping: this variable does.
    return mapping.segment.array() if address is None else view(mapping, address)


def view(mapping: Mapping, address: Handle) -> Array:
    """Return the array that a handle describes; ShmFormatError if it leaves the mapped memory."""
    found, (_, _, offset, shape, strides, text) = mapping.segment, address
    try:
        dtype = found.dtype if text in ("", found.header.dtype_text) else dtypes.decode(text)
        low = high = offset
        if strides is None:
            high += dtypes.count_bytes(shape, dtype)
        elif 0 not in shape:
            spans = [(length - 1) * stride for length, stride in zip(shape, strides)]
            low += sum(span for span in spans if span < 0)
            high += sum(span for span in spans if span > 0) + dtype.itemsize
        # The header's copy of `reserved` needs no access to the memory.
        if low < 0 or (high > found.header.reserved and high > found.reserved):
            raise ValueError(
                f"the view spans bytes {low} to {high}, {found.name} has {found.reserved}"
            )
        start = found.header.data_offset + offset
        return np.ndarray(shape, dtype, found.memory(), start, strides)
    except (TypeError, ValueError) as error:
        reason = f"this handle does not fit: {error}"
        raise ShmFormatError(errno.EINVAL, reason, address.name) from error


def open_segment(
    name: str,
    readonly: bool,
    timeout_s: float = 1.0,
    nonce: bytes | None = None,
    owner_uid: int | None = None,
) -> Mapping:
    """Map the segment of this system name (or ``/proc`` path), and `nonce`, as `attach` does."""
    known = None if nonce is None else find_mapped(nonce, readonly)
    if known is not None:
        return known
    anonymous = name.startswith("/proc/")
    process.ready(not anonymous)  # before this process's lock makes a dead family look alive
    open_ = posix.open_anonymous if anonymous else posix.open_existing
    fd = open_(name, readonly)
    keep = False
    try:
        header, found_nonce, status = _wait_for_header(fd, name, timeout_s, owner_uid)
        if nonce is not None and found_nonce != nonce:
            raise_taken(name)
        known = find_mapped(found_nonce, readonly)
        if known is not None and known.segment.inode == status.st_ino:
            return known
        families = () if anonymous else process.enter(header.family)
        try:
            mapping = map_memory(fd, header.length, name, readonly)
        except BaseException:
            for family in families:
                process.leave(family)
            raise
        mode, inode = status.st_mode & 0o777, status.st_ino
        opened = Segment(mapping, name, header, found_nonce, mode, readonly, inode, [])
        opened.families = families
        if anonymous:
            opened.fd, keep = fd, True
        return mapping
    except ShmFormatError as error:
        if nonce is not None and anonymous:
            reason = "the process closed this memory and reused its number"
            raise ShmNotFoundError(errno.ENOENT, reason, name) from error
        raise
    finally:
        if not keep:
            os.close(fd)


def _wait_for_header(
    fd: int, name: str, timeout_s: float, owner_uid: int | None
) -> tuple[headers.Header, bytes, os.stat_result]:
    expected = os.geteuid() if owner_uid is None else owner_uid
    deadline = time.monotonic() + timeout_s
    while True:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) and posix.DIRECTORY is not None:
            raise ShmFormatError(errno.EINVAL, "not a segment of synk_shm but no file", name)
        if status.st_uid != expected:
            raise ShmPermissionError(
                errno.EACCES,
                f"the segment belongs to user {status.st_uid}, expected {expected}; if you "
                f"trust them: attach(..., owner_uid={status.st_uid})",
                name,
            )
        found = headers.read_header(fd, status.st_size, name)
        if found is not None:
            return *found, status
        if name.startswith("/proc/"):  # memory of that kind has no name before it is ready
            raise ShmNotFoundError(errno.ENOENT, "the process closed this memory", name)
        if time.monotonic() >= deadline:
            reason = f"the segment was not ready after {timeout_s} s"
            raise ShmTimeoutError(errno.ETIMEDOUT, reason, name)
        time.sleep(0.001)
