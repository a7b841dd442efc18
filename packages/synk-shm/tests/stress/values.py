"""Contents of arrays, computed the same for the real arrays and for the model's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

DTYPES: dict[str, Any] = {
    "byte": "u1",
    "int": "<i4",
    "swapped": ">f8",
    "bool": "?",
    "time": "M8[ms]",
    "text": "S3",
    "complex": "<c8",
    "struct": [("a", "<i2"), ("b", ">f4"), ("c", "S1")],
}


def pattern(dtype: Any, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return an array in C order whose values depend only on dtype, shape and seed."""
    kind = np.dtype(dtype)
    result = np.zeros(shape, kind)
    if kind.names is not None:
        for number, name in enumerate(kind.names):
            result[name] = pattern(kind[name], shape, seed + number)
        return result
    numbers = (np.arange(result.size) * 7 + seed) % 100 + 1
    if kind.kind == "M":
        numbers = numbers.astype("i8")
    elif kind.kind == "b":
        numbers = numbers % 3 == 0
    result[...] = numbers.astype(kind).reshape(shape)
    return result


def raw(array: np.ndarray) -> bytes:
    """Return all elements in C order as bytes, which also compare NaN as equal."""
    return np.ascontiguousarray(array).tobytes()


def apply_view(array: np.ndarray, spec: tuple[Any, ...]) -> np.ndarray:
    """Return the view of the array that `random_view` described."""
    kind, *rest = spec
    if kind == "rows":
        return array[slice(*rest)]
    if kind == "row":
        return array[rest[0], ...]
    if kind == "last":
        return array[..., slice(*rest)]
    if kind == "field":
        return array[rest[0]]
    return array.T if kind == "transposed" else array[...]


def random_view(array: np.ndarray, rng: random.Random) -> tuple[Any, ...]:
    """Describe a random view of this array."""
    kinds: list[tuple[Any, ...]] = [("transposed",), ("all",)]
    if array.ndim:
        start, stop = sorted((rng.randint(0, len(array)), rng.randint(0, len(array))))
        kinds += [("rows", start, stop, rng.choice([1, 1, 2]))] * 3
        kinds += [("rows", None, None, -1), ("last", rng.randint(0, 2), None, 1)]
        if len(array):
            kinds += [("row", rng.randrange(len(array)))] * 2
    if array.dtype.names is not None:
        kinds += [("field", rng.choice(array.dtype.names))] * 4
    return rng.choice(kinds)
