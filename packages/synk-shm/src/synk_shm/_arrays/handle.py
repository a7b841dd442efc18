"""Handles: the address of a shared array or of any view of one, in about a hundred bytes."""

from __future__ import annotations

import errno
from typing import Any, NamedTuple

import numpy as np

from synk_shm._arrays.attach import open_segment
from synk_shm._arrays.segment import Array, Mapping, Segment, segment
from synk_shm._segments import dtypes, naming
from synk_shm.exceptions import ShmFormatError


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
        packed = naming.pack(self.name)
        parts = (packed, self.nonce, self.offset, self.shape, self.strides, self.dtype_text)
        return Handle.unpack, parts

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
    found = reachable_segment(x)
    whole = found.header
    text = whole.dtype_text if x.dtype is whole.dtype else dtypes.encode(x.dtype)
    if dtypes.is_literal(text) and text == whole.dtype_text:
        text = ""  # it may be long
    offset = 0
    if x.size:
        offset = x.__array_interface__["data"][0] - found.address - found.header.data_offset
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
    if isinstance(name_or_handle, Handle):
        nonce = name_or_handle.nonce
        known = _checked(name_or_handle.name)
        return view(open_segment(known, readonly, timeout_s, nonce, owner_uid), name_or_handle)
    given = naming.system_name(name_or_handle)
    mapping = open_segment(given, readonly, timeout_s, None, owner_uid)
    return mapping.segment.array()


def reachable_segment(x: object) -> Segment:
    """Return the open, named segment under `x`; ValueError with the cure if there is none."""
    found = segment(x)
    if found is None:
        raise ValueError("this array is not in shared memory; use share(array) to copy it there")
    if found.closed or found.unlinked:
        state = "closed" if found.closed else "unlinked"
        raise ValueError(f"segment {found.name} is {state}: no other process can attach it")
    return found


def view(mapping: Mapping, address: Handle) -> Array:
    """Return the array that a handle describes, on mapped memory.

    Raises:
        ShmFormatError: it does not fit.
    """
    found = mapping.segment
    try:
        same = address.dtype_text in ("", found.header.dtype_text)
        dtype = found.dtype if same else address.dtype
        return found.view(address.offset, address.shape, address.strides, dtype)
    except (TypeError, ValueError) as error:
        reason = f"this handle does not fit: {error}"
        raise ShmFormatError(errno.EINVAL, reason, address.name) from error


def _checked(name: str) -> str:
    """Return the name of a handle of unknown origin, if it can be a segment's."""
    if isinstance(name, str) and name.startswith("/proc/"):
        parts = name.split("/")
        if len(parts) == 5 and parts[3] == "fd" and parts[2].isdigit() and parts[4].isdigit():
            return name
        raise ValueError(f"{name!r} is not the address of a segment")
    return naming.system_name(name)
