"""dtypes as text, kept exactly, and the sizes of arrays.

Unlike the .npy format the text keeps offsets, titles and the ``align`` flag. It is read as a
literal, never unpickled.
"""

from __future__ import annotations

import ast
import functools
import sys
import warnings
from collections.abc import Mapping
from typing import Any, Union, cast

import numpy as np

MAX_TEXT = 1 << 20
MAX_DIMENSIONS = 64 if int(np.__version__.split(".")[0]) >= 2 else 32
_MOST = sys.maxsize - (1 << 21)  # a header and rounding have to fit beside the data
_NO_FIELDS: Mapping[str, Any] = {}
_Code = Union[str, tuple[Any, ...]]


def count_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the bytes of an array; ValueError where NumPy could not hold it."""
    span = dtype.itemsize
    empty = False
    for length in shape:
        if length < 0:
            raise ValueError(f"lengths must not be negative, got shape {shape}")
        if length:
            span *= length
        else:
            empty = True  # NumPy refuses a huge shape even if another length is 0
    if span > _MOST:
        raise ValueError(f"shape {shape} of {dtype} is more than an address space can hold")
    return 0 if empty else span


def check(dtype: np.dtype[Any]) -> None:
    """Refuse a dtype whose elements are not in the array's own bytes.

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


def is_simple(dtype: np.dtype[Any]) -> bool:
    """Return whether equal dtypes are the same in every respect: NumPy's own numbers, native order.

    Others may be equal and yet differ in metadata, or in the ``align`` flag.
    """
    return dtype.isbuiltin == 1


def encode(dtype: np.dtype[Any]) -> str:
    """Return a dtype as text that `decode` turns into an equal one.

    Metadata are not kept, with a warning: they are arbitrary objects.

    Raises:
        TypeError: pointers, or a dtype from outside NumPy.
        ValueError: elements of zero bytes, or a structure too large to describe.
    """
    check(dtype)
    if is_simple(dtype):
        return dtype.str
    if _has_metadata(dtype):
        warnings.warn("the metadata of a dtype are not shared with other processes", stacklevel=4)
    encoded = _encode(dtype)
    text = encoded if isinstance(encoded, str) else repr(encoded)
    if len(text.encode("utf-8")) > MAX_TEXT:
        raise ValueError("this structured dtype is too large to describe (1 MiB of text)")
    if decode(text) != dtype:
        raise TypeError(f"dtype {dtype!r} is not one of NumPy's own; share its bytes (uint8)")
    return text


def decode(text: str) -> np.dtype[Any]:
    """Return the dtype that `encode` wrote; ValueError or TypeError for anything else."""
    # A structured dtype is made again each time, because callers can change its names.
    return _decode_any(text) if text.startswith("(") else _decode_simple(text)


def _decode_any(text: str) -> np.dtype[Any]:
    try:
        dtype = _decode(ast.literal_eval(text) if text.startswith("(") else text)
    except (SyntaxError, MemoryError, RecursionError, KeyError, AttributeError) as error:
        raise ValueError(f"{text[:80]!r} does not describe a dtype") from error
    check(dtype)
    return dtype


_decode_simple = functools.lru_cache(maxsize=256)(_decode_any)


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
