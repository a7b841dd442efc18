"""dtypes as text, kept exactly, and the sizes of arrays.

Unlike the .npy format the text keeps offsets, titles and the ``align`` flag. It is read as a
literal, never unpickled.
"""

from __future__ import annotations

import ast
import math
import sys
import warnings
from typing import Any

import numpy as np

MAX_TEXT = 1 << 20
MAX_DIMENSIONS = 64 if int(np.__version__.split(".")[0]) >= 2 else 32
_MOST = sys.maxsize - (1 << 21)  # a header and rounding have to fit beside the data


def count_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the bytes of an array; ValueError if NumPy cannot hold it."""
    if shape and min(shape) < 0:
        raise ValueError(f"lengths must not be negative, got shape {shape}")
    # NumPy refuses a huge shape even if another length is 0.
    span = math.prod(filter(None, shape), start=dtype.itemsize)
    if span > _MOST:
        raise ValueError(f"shape {shape} of {dtype} is more than an address space can hold")
    return 0 if 0 in shape else span


def check(dtype: np.dtype[Any]) -> None:
    """Refuse a dtype whose elements are not in the array's own bytes, or have none."""
    if dtype.hasobject:
        raise TypeError(
            f"dtype {dtype} holds pointers into one process, which mean nothing in another; "
            "use a fixed-size dtype (numbers, 'S8', 'U8', datetime64, structs of those)"
        )
    if dtype.itemsize == 0:
        raise ValueError(f"elements of dtype {dtype.str!r} have no bytes; give a length ('S8')")


def encode(dtype: np.dtype[Any]) -> str:
    """Return a dtype as text that `decode` turns into an equal one; refuse it as `check` does.

    Metadata are not kept, with a warning: they are arbitrary objects.
    """
    check(dtype)
    literal = _literal(dtype)
    text = literal if isinstance(literal, str) else repr(literal)
    if len(text.encode("utf-8")) > MAX_TEXT:
        raise ValueError("this structured dtype is too large to describe (1 MiB of text)")
    if decode(text) != dtype:
        raise TypeError(f"dtype {dtype!r} is not one of NumPy's own; share its bytes (uint8)")
    return text


def decode(text: str) -> np.dtype[Any]:
    """Return the dtype that `encode` wrote; ValueError or TypeError for anything else."""
    try:
        dtype = _made_of(ast.literal_eval(text) if is_literal(text) else text)
    except (SyntaxError, MemoryError, RecursionError, LookupError, ArithmeticError) as error:
        raise ValueError(f"{text[:80]!r} does not describe a dtype") from error
    check(dtype)
    return dtype


def is_literal(text: str) -> bool:
    return text.startswith(("{", "("))


def _literal(dtype: np.dtype[Any]) -> Any:
    """Return a dtype as a literal from which NumPy makes it."""
    if dtype.metadata:
        warnings.warn("the metadata of a dtype are not shared with other processes", stacklevel=4)
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return (_literal(base), shape)
    if dtype.names is None or dtype.fields is None:
        return dtype.str
    fields: list[tuple[Any, ...]] = [dtype.fields[name] for name in dtype.names]
    described: dict[str, Any] = {
        "names": list(dtype.names),
        "formats": [_literal(field[0]) for field in fields],
        "offsets": [int(field[1]) for field in fields],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
    }
    titles = [field[2] if len(field) > 2 else None for field in fields]
    return described if titles.count(None) == len(titles) else {**described, "titles": titles}


def _made_of(literal: Any) -> np.dtype[Any]:
    """Make the dtype, inner ones first: NumPy would align those of an aligned one."""
    if isinstance(literal, str):
        return np.dtype(literal)
    if isinstance(literal, tuple):
        base, shape = literal
        return np.dtype((_made_of(base), shape))
    # NumPy's annotations do not know this documented form.
    fields: Any = {**literal, "formats": [_made_of(one) for one in literal["formats"]]}
    made: np.dtype[Any] = np.dtype(fields)
    return made
