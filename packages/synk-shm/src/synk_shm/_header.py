"""The header at the start of every segment, and how a dtype is written as text.

The header says what the segment holds, so that a process that knows only the name can
attach. It is read as numbers and literals, never unpickled, and nothing in it is believed
before it has been checked against the file: the file may have been made by anybody.

======  ===========================================================================
offset  (all numbers in the machine's own byte order)
======  ===========================================================================
0       magic, 8 bytes, written last: a segment without it is still being made
8       version, u32; flags, u32 (bit 0: Fortran order)
16      nonce, 8 bytes: tells this segment from a later one of the same name
24      family, 8 bytes: the eight hex digits of the owner's family
32      data offset, u64
40      capacity, u64: bytes that are mapped for data
48      reserved, u64: bytes of data that are really allocated (only ever grows)
56      ndim, u32; length of the dtype's text, u32
64      shape, i64 each (the first one changes in place), then the text
======  ===========================================================================
"""

from __future__ import annotations

import ast
import errno
import re
import struct
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union, cast

import numpy as np

from synk_shm.exceptions import ShmFormatError

MAGIC = b"SYNK-SHM"
VERSION = 1
MAGIC_AT, RESERVED_AT, SHAPE_AT = 0, 48, 64
PEEK = 4096
MAX_DIMENSIONS = 64 if int(np.__version__.split(".")[0]) >= 2 else 32
_FIXED = struct.Struct("=8sII8s8sQQQII")
_FAMILY = re.compile("[0-9a-f]{8}")  # it becomes a part of a path
_FORTRAN = 1
_MAX_TEXT = 1 << 20
_ALIGN = 64  # unaligned data costs a few per cent in every loop
_PAGE = 4096
_LARGE = 64 << 10

assert _FIXED.size == SHAPE_AT  # noqa: S101


@dataclass(frozen=True)
class Header:
    """What a segment holds. Sizes in bytes, shape in elements."""

    nonce: bytes
    family: str
    shape: tuple[int, ...]
    dtype_text: str
    fortran: bool
    data_offset: int
    capacity: int
    reserved: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return decode_dtype(self.dtype_text)

    def pack(self) -> bytes:
        """The header's bytes, complete, magic included."""
        text = self.dtype_text.encode("utf-8")
        fixed = _FIXED.pack(
            MAGIC,
            VERSION,
            _FORTRAN if self.fortran else 0,
            self.nonce,
            self.family.encode("ascii"),
            self.data_offset,
            self.capacity,
            self.reserved,
            len(self.shape),
            len(text),
        )
        return fixed + struct.pack(f"={len(self.shape)}q", *self.shape) + text


def data_offset(ndim: int, dtype_text: str, nbytes: int) -> int:
    """Where the data start: aligned, and on a page of its own if there is much of it."""
    size = SHAPE_AT + 8 * ndim + len(dtype_text.encode("utf-8"))
    return _round_up(size, _PAGE if nbytes >= _LARGE else _ALIGN)


def is_blank(start: bytes) -> bool:
    """Whether the segment is still being made: too short, or without its magic."""
    return len(start) < SHAPE_AT or start[: len(MAGIC)] == bytes(len(MAGIC))


def needed(start: bytes) -> int:
    """How many bytes of a segment `parse` wants to see, by its first ones."""
    ndim: int
    text_length: int
    ndim, text_length = struct.unpack_from("=II", start, 56)
    return SHAPE_AT + 8 * min(ndim, MAX_DIMENSIONS) + min(text_length, _MAX_TEXT)


def parse(start: bytes, size: int, name: str) -> Header:
    """Read and check the header of a segment of `size` bytes.

    Raises:
        ShmFormatError: not a segment of ours, or one that contradicts itself.
    """
    magic, version, flags, nonce, family, offset, capacity, reserved, ndim, text_length = (
        _FIXED.unpack_from(start)
    )
    if magic != MAGIC:
        raise _bad(name, "it does not begin with synk_shm's magic number")
    if version != VERSION:
        raise _bad(name, f"it has version {version} of the layout, this is version {VERSION}")
    if ndim > MAX_DIMENSIONS or text_length > _MAX_TEXT or flags & ~_FORTRAN:
        raise _bad(name, f"{ndim} dimensions, {text_length} bytes of dtype, flags {flags:#x}")
    end = SHAPE_AT + 8 * ndim + text_length
    if end > len(start) or end > offset or offset % _ALIGN:
        raise _bad(name, f"its data begin at byte {offset} and its header ends at {end}")
    if offset + capacity > size or reserved > capacity:
        raise _bad(name, f"it claims {offset} + {capacity} bytes but has {size}")
    shape = struct.unpack_from(f"={ndim}q", start, SHAPE_AT)
    try:
        text = start[end - text_length : end].decode("utf-8")
        family_text = family.decode("ascii")
        if not _FAMILY.fullmatch(family_text):
            raise ValueError(f"{family_text!r} is not the name of a family")
        dtype = decode_dtype(text)
        nbytes = count_bytes(shape, dtype)
    except (TypeError, ValueError) as error:
        raise _bad(name, str(error)) from error
    if nbytes > reserved:
        raise _bad(name, f"shape {shape} of {dtype} needs {nbytes} bytes, it has {reserved}")
    return Header(
        nonce, family_text, shape, text, bool(flags & _FORTRAN), offset, capacity, reserved
    )


def count_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Bytes of an array; ValueError where NumPy could not hold it."""
    span = dtype.itemsize
    for length in shape:
        if length < 0:
            raise ValueError(f"lengths must not be negative, got shape {shape}")
        span *= length or 1  # NumPy refuses a huge shape even if another length is 0
    if span > sys.maxsize - (1 << 21):
        raise ValueError(f"shape {shape} of {dtype} is more than an address space can hold")
    return 0 if 0 in shape else span


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Refuse a dtype whose elements do not live in the array's own bytes.

    Raises:
        TypeError: Python objects, variable-length strings, or a dtype from outside NumPy.
        ValueError: elements of zero bytes.
    """
    if dtype.hasobject:
        raise TypeError(
            f"dtype {dtype} holds pointers into one process, which mean nothing in another; "
            "use a fixed-size dtype (numbers, 'S8', 'U8', datetime64, structs of those)"
        )
    if dtype.itemsize == 0:
        raise ValueError(f"elements of dtype {dtype.str!r} have no bytes; give a length ('S8')")


def encode_dtype(dtype: np.dtype[Any]) -> str:
    """A dtype as text that `decode_dtype` turns into an equal one.

    Unlike the .npy format this keeps offsets, titles and the ``align`` flag. Metadata are
    not kept, with a warning: they are arbitrary objects.
    """
    if dtype.isbuiltin == 1 and dtype.isnative:
        return dtype.str
    if _has_metadata(dtype):
        warnings.warn("the metadata of a dtype are not shared with other processes", stacklevel=4)
    encoded = _encode(dtype)
    text = encoded if isinstance(encoded, str) else repr(encoded)
    if len(text.encode("utf-8")) > _MAX_TEXT:
        raise ValueError("this structured dtype is too large to describe (1 MiB of text)")
    if decode_dtype(text) != dtype:
        raise TypeError(f"dtype {dtype!r} is not one of NumPy's own; share its bytes (uint8)")
    return text


def decode_dtype(text: str) -> np.dtype[Any]:
    """The dtype that `encode_dtype` wrote; ValueError or TypeError for anything else."""
    try:
        code = ast.literal_eval(text) if text.startswith("(") else text
        dtype = _decode(code)
    except (SyntaxError, MemoryError, RecursionError, KeyError, AttributeError) as error:
        raise ValueError(f"{text[:80]!r} does not describe a dtype") from error
    check_dtype(dtype)
    return dtype


_NO_FIELDS: Mapping[str, Any] = {}
_Code = Union[str, tuple[Any, ...]]


def _encode(dtype: np.dtype[Any]) -> _Code:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return ("array", _encode(base), shape)
    if dtype.names is None:
        return dtype.str
    fields: list[tuple[Any, ...]] = [(dtype.fields or _NO_FIELDS)[name] for name in dtype.names]
    return (
        "struct",
        dtype.names,
        tuple(_encode(field[0]) for field in fields),
        tuple(int(field[1]) for field in fields),
        tuple(field[2] if len(field) > 2 else None for field in fields),
        dtype.itemsize,
        dtype.isalignedstruct,
    )


def _decode(code: _Code) -> np.dtype[Any]:
    if isinstance(code, str):
        return np.dtype(code)
    kind, *parts = code
    if kind == "array":
        base, shape = parts
        return np.dtype((_decode(base), tuple(shape)))
    if kind != "struct":
        raise ValueError(f"unknown kind of dtype {kind!r}")
    names, formats, offsets, titles, itemsize, align = parts
    fields: dict[str, Any] = {
        "names": list(names),
        "formats": [_decode(format_) for format_ in formats],
        "offsets": list(offsets),
        "itemsize": itemsize,
    }
    if any(title is not None for title in titles):
        fields["titles"] = list(titles)
    # NumPy's annotations do not know this documented form.
    made: np.dtype[Any] = np.dtype(cast(Any, fields), align=bool(align))
    return made


def _has_metadata(dtype: np.dtype[Any]) -> bool:
    if dtype.metadata:
        return True
    if dtype.subdtype is not None:
        return _has_metadata(dtype.subdtype[0])
    return any(_has_metadata(field[0]) for field in (dtype.fields or {}).values())


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _bad(name: str, reason: str) -> ShmFormatError:
    return ShmFormatError(errno.EINVAL, f"not a usable segment of synk_shm: {reason}", name)
