"""Compute digests of arrays at gigabytes a second, to compare replicas.

The bytes are read once, as 64-bit words in rows. Word by word the rows are taken into one row of
sums: the sum's bytes are reversed, it is multiplied by an odd number, and the row's word is added,
all modulo 2**64. Each of these steps can be undone, so that arrays which differ in one word, by
however many bits, surely have different sums. Reversing the bytes keeps differences from
cancelling out: the signs of two numbers, or two rows in another order.
The sums, and the few bytes that fill no row, go through BLAKE2b.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from synk_core.engine import DEVICES

from .values import is_on_device, on_host

WIDE = 1 << 14
"""Words of a wide row: they fit into a core's own cache, and there are few rows."""

NARROW = 1 << 10
"""Words of a narrow row, for the words that fill no wide row."""

_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def digest(value: Any) -> str:
    """Name an array by its dtype, its shape and every bit of its elements. An array on a device is
    read there; its name is not that of the same array in host memory.

    0.0 and -0.0 differ, and so do two NaNs with other bits, because replicas should have computed
    the same bits. The memory layout does not matter, but arrays not in C order are copied first.
    Of two arrays of one dtype and shape that differ in one element of up to eight bytes the 32
    hexadecimal digits are different for certain (but for a collision of BLAKE2b); else they are
    equal by chance only.
    """
    hashed = hashlib.blake2b(f"{value.dtype.str}{value.shape}".encode(), digest_size=16)
    sums = DEVICES.sums.bits(value) if is_on_device(value) else None
    if sums is not None:
        hashed.update(sums)
        return hashed.hexdigest()
    octets = np.ascontiguousarray(on_host(value)).reshape(-1).view(np.uint8)
    length = octets.size // (8 * NARROW) * NARROW
    if length:
        words = octets[: 8 * length].view(np.uint64)
        sums = np.zeros(NARROW, np.uint64)
        wide = length // WIDE * WIDE
        if wide:
            columns = np.zeros(WIDE, np.uint64)
            _take_in(columns, words[:wide])
            _take_in(sums, columns)
        _take_in(sums, words[wide:])
        hashed.update(sums)  # type: ignore[arg-type] # its buffer; NumPy 1 does not say so
    hashed.update(octets[8 * length :])  # type: ignore[arg-type]
    return hashed.hexdigest()


def _take_in(sums: np.ndarray, words: np.ndarray) -> None:
    """Add words to as many sums as there are columns; see the module's docstring."""
    row: Any
    for row in words.reshape(-1, sums.size):
        sums.byteswap(True)
        np.multiply(sums, _FACTOR, sums)
        np.add(sums, row, sums)
