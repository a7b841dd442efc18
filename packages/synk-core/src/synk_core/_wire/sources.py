"""Arrays in files, of which a call reads the rows that it needs."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional, Tuple

import numpy as np

from synk_core._plan.conversion import unmasked
from synk_core._plan.rows import Selection, is_int, select
from synk_core._text import shown
from synk_core.exceptions import InputTypeError

from .arrays import copy_rows
from .data import Data, Unread

# Attributes of Pandas' objects, whose rows have labels; of GPUs' arrays; of sparse matrices.
_NO_SOURCE = ("iloc", "gpudata", "nnz")


class RowSource:
    """Rows of an array that is elsewhere: a memory map, an HDF5 dataset, a Zarr array.

    It needs no more than ``shape``, ``dtype``, and its rows by a slice or by an array of ascending
    row numbers, which each occur once.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self.shape: Tuple[int, ...] = tuple(int(length) for length in value.shape)
        self.dtype: np.dtype = value.dtype

    @classmethod
    def of(cls, value: Any) -> Optional[RowSource]:
        """Return the source of a value's rows; None if it is in memory, or no array."""
        if isinstance(value, cls):
            return value
        if isinstance(value, np.ndarray):
            # The result of an operation has the class of a memory map, but is none.
            return cls(value) if value.ndim and getattr(value, "_mmap", None) else None
        if isinstance(value, (Data, np.generic)) or any(hasattr(value, it) for it in _NO_SOURCE):
            return None
        shape = getattr(value, "shape", None)
        is_array = isinstance(shape, tuple) and shape and all(is_int(length) for length in shape)
        has_dtype = isinstance(getattr(value, "dtype", None), np.dtype)
        return cls(value) if is_array and has_dtype and hasattr(value, "__getitem__") else None

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def token(self) -> Tuple[Any, ...]:
        """Plans of a call depend on this, as on that of an array in memory."""
        return self.dtype, self.shape

    def read(self, chosen: Selection, target: np.ndarray) -> None:
        """Read rows into `target`, in the order of the selection; their dtype is converted as in an
        assignment. Blocks until they are read."""
        if isinstance(self._value, np.ndarray):
            copy_rows(np.asarray(self._value), chosen.rows, target)
        elif not chosen.count:
            return
        elif chosen.index is None and chosen.step == 1:
            target[...] = self._rows(slice(chosen.start, chosen.start + chosen.count), chosen.count)
        else:
            # HDF5 takes no others.
            ascending, places = np.unique(chosen.positions, return_inverse=True)
            target[...] = self._rows(ascending, len(ascending))[places]

    def _rows(self, key: Any, count: int) -> np.ndarray:
        # Zarr reads with it each chunk once.
        by_rows = (
            self._value if isinstance(key, slice) else getattr(self._value, "oindex", self._value)
        )
        rows = unmasked(by_rows[key], repr(self))
        if rows.shape != (count, *self.shape[1:]):
            raise InputTypeError(
                f"{self!r}: got shape {rows.shape} for {count} rows, expected "
                f"{(count, *self.shape[1:])}"
            )
        return rows

    def rows(self, batch: Any) -> Unread:
        """Return the rows of a ``batch``, not read yet."""
        chosen = select(batch, len(self))
        return Unread((chosen.count, *self.shape[1:]), self.dtype, partial(self.read, chosen))

    def __getitem__(self, batch: Any) -> np.ndarray:
        """Return the rows of a ``batch`` as a new array."""
        return np.asarray(self.rows(batch))

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray:
        return np.asarray(self[:], dtype=dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        kind = type(self._value)
        if isinstance(self._value, np.ndarray):
            return f"<{kind.__name__} {self.dtype} shape={self.shape}>"
        return shown(self._value)
