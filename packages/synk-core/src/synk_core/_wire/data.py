"""`Data`: an array in shared memory that functions take as input.

The memory is one flat allocation; the array is a view of its beginning. Each process maps it on
first use, so workers read what the program writes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import threading
import weakref
from collections import deque
from typing import Any, Callable, Iterable, NamedTuple, NoReturn, Optional, Sequence, Union

import numpy as np

import synk_shm
from synk_core._plan.arguments import checked_flag
from synk_core._plan.conversion import checked_dtype, checked_ndim, condition
from synk_core._plan.rows import as_int, is_int
from synk_core._text import shown
from synk_core.exceptions import InputTypeError, InputValueError

from .arrays import new_array
from .messages import ArrayRef

Oversize = Union[int, float]

OF_THE_RUNTIME = {"key", "memory", "named", "observers", "token", "track"}
"""Attributes that completion leaves out."""


class Data:
    """A shared array with fixed dtype and number of dimensions; make one with `synk.data()`.

    Reads and writes like a NumPy array (``d[k]``, ``d[k] = v``, ``len(d)``, ``np.asarray(d)``).
    Its shape may change: within the allocation nothing is copied, and growing beyond it moves the
    contents to a larger one. Writing while a call runs in another thread is a race, as with any
    array. It has as many methods as the documented interface of an array that can grow.

    Attributes:
        key: a number that no other one has.
        memory: the allocation, a flat array whose beginning the array is.
        token: changes whenever the array has another shape, or lies elsewhere.
        observers: get the key whenever the array moves to other memory.
        named: whether new memory has a name, by which workers find it though this process ends.
        is_exposed: whether the program may have views through which it writes unnoticed. Then other
            hosts get the rows that they need anew with each call; see `seal`.
    """

    # Of all runtimes of this process: a `Data` may be input to another one's function.
    _keys = itertools.count(1)

    def __init__(
        self,
        dtype: Any,
        ndim: int,
        minibatch: bool = False,
        name: Optional[str] = None,
    ) -> None:
        self.key = next(self._keys)
        self._version = 0
        self.token = (self.key, 0)
        self._dtype = checked_dtype(dtype)
        self._ndim = checked_ndim(ndim)
        self._minibatch = checked_flag(minibatch, "minibatch")
        if name is not None and not isinstance(name, str):
            raise InputTypeError(f"name: got {shown(name)}, expected a str or None")
        self._name = name
        self.memory: np.ndarray = np.empty(0, self._dtype)
        self._data: Optional[np.ndarray] = None
        self.observers: list[deque[Any]] = []
        self.named = True
        self._unlinked = False
        self.is_exposed = False
        self._tracking: Iterable[Presence] = ()
        self.free_memory()

    @property
    def data(self) -> np.ndarray:
        """The NumPy array itself. Do not change its shape: use `set_shape` or `set_length`.

        On several hosts, call `seal` when you have written through it.
        """
        self.is_exposed = True
        return self.array

    @property
    def array(self) -> np.ndarray:
        """The NumPy array, for callers that do not write to it."""
        if self._data is None:
            raise InputValueError(f"{self!r} has no value yet; use set_value()")
        return self._data

    def seal(self) -> None:
        """Promise not to write through `data`, ``np.asarray(d)`` or views that were taken of it.

        Only several hosts need that: each keeps the rows that it has used, and gets a row again
        when it was written to by ``d[...] = ...`` or `set_value`. What is written through a view
        goes unnoticed; so after one was taken, hosts get all rows that a call needs anew, until
        this is called. Writing through old views afterwards gives other hosts wrong values.
        """
        self._note_written()
        self.is_exposed = False

    def track(self, presence: Presence) -> Presence:
        """Let `presence` lose the rows that are written from now on; return it."""
        self._tracking = weakref.WeakSet([*self._tracking, presence])
        return presence

    def _note_written(self, key: Any = ...) -> None:
        """Let other hosts get the rows of an index again; called after the writing, because rows
        that another thread has sent meanwhile may be old."""
        for presence in self._tracking:
            presence.lose(key, len(self.array) if self._ndim else 1)

    @property
    def dtype(self) -> np.dtype:
        """Data type; fixed."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions; fixed."""
        return self._ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array; of a scalar (), also before it has a value."""
        return self.array.shape if self._ndim else ()

    @property
    def size(self) -> int:
        """Number of items of the array."""
        return self.array.size if self._ndim else 1

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.size * self._dtype.itemsize

    @property
    def alloc_size(self) -> int:
        """Number of items of the allocation, of which the array may use only the first part."""
        return self.memory.size

    @property
    def minibatch(self) -> bool:
        """Whether it holds just the rows of a minibatch.

        With ``batch=`` a list, an array or a mask, its row i belongs to entry i; with an int or a
        slice, its row 0 is the lowest row that the batch selects.
        """
        return self._minibatch

    @property
    def name(self) -> Optional[str]:
        """Name, or None."""
        return self._name

    def set_value(self, input_data: Any, force_cast: bool = False, oversize: Oversize = 1) -> None:
        """Take a copy of `input_data`, with its shape.

        Args:
            input_data: anything that `numpy.asarray` takes, with this `Data`'s ndim.
            force_cast: convert to this dtype even if values may change.
            oversize: factor of at least 1 for the allocation, if a new one is needed.

        Raises:
            InputTypeError: wrong dtype or number of dimensions.
            InputValueError: `oversize` is no factor of at least 1.
            SharedMemoryFull: there is not enough memory (a MemoryError).
        """
        value = self.condition_data(input_data, force_cast)
        self._allocate(value.shape, oversize, keep=False)
        self[...] = value

    def condition_data(self, input_data: Any, force_cast: bool = False) -> Any:
        """Return the array, of right dtype and ndim, that `set_value` would store.

        Raises:
            InputTypeError: wrong dtype or number of dimensions.
        """
        if isinstance(input_data, Unread) and input_data.dtype == self._dtype:
            return input_data
        return condition(input_data, self._dtype, self._ndim, force_cast, repr(self))

    def set_shape(self, shape: Sequence[int], oversize: Oversize = 1) -> None:
        """Change the shape. Rows (entries along axis 0) that stay keep their contents, where the
        other dimensions stay; otherwise items keep their flat order. Within the allocation nothing
        is written: rows that were cut off come back, and what nothing was written to is zero.
        Beyond it a new one takes what the array has, and zeros.

        Raises:
            InputTypeError, InputValueError: no shape of this number of dimensions, or `oversize`
                is no factor of at least 1.
            SharedMemoryFull: there is not enough memory (a MemoryError).
        """
        self._allocate(self._checked_shape(shape), oversize, keep=True)

    def set_length(self, length: int, oversize: Oversize = 1) -> None:
        """Change the length along axis 0, as `set_shape` does."""
        if self._ndim == 0:
            raise InputTypeError(f"{self!r} is a scalar and has no length")
        self.set_shape((as_int(length), *self.shape[1:]), oversize)

    def free_memory(self) -> None:
        """Give the memory back, here and (with their next command) in the workers.

        The value is gone.
        """
        self._replace(np.empty(0, self._dtype))
        self._set(self.memory.reshape((0,) * self._ndim) if self._ndim else None)

    def _checked_shape(self, shape: Any) -> tuple[int, ...]:
        lengths = shape.tolist() if isinstance(shape, np.ndarray) else shape
        if not isinstance(lengths, (list, tuple)) or not all(is_int(n) for n in lengths):
            raise InputTypeError(
                f"{self!r}: got shape {shown(shape)}, expected a tuple of {self._ndim} ints"
            )
        if len(lengths) != self._ndim or any(n < 0 for n in lengths):
            raise InputValueError(
                f"{self!r}: got shape {shown(shape)}, expected {self._ndim} non-negative lengths"
            )
        return tuple(int(n) for n in lengths)

    def _allocate(
        self, shape: tuple[int, ...], oversize: Oversize, keep: bool, what: str = ""
    ) -> None:
        if type(oversize) is not int or oversize < 1:
            is_number = is_int(oversize) or isinstance(oversize, (float, np.floating))
            if not is_number or not 1 <= oversize < math.inf:
                raise InputValueError(
                    f"oversize: got {shown(oversize)}, expected a factor of at least 1, and finite"
                )
        size = math.prod(shape)
        if size * self._dtype.itemsize >= sys.maxsize / oversize:
            raise InputValueError(
                f"{self!r}: got shape {shown(shape)}"
                + (f" with oversize {oversize}" if oversize != 1 else "")
                + f" of {self._dtype}, expected no more than an address space can hold"
            )
        used = 0 if self._data is None else self._data.size
        moved = size > self.memory.size or not synk_shm.is_shared(self.memory)
        if moved:
            # New shared memory is zero.
            count = max(int(size * oversize), 1)
            memory = new_array(count, self._dtype, what or repr(self), self.named)
            if keep:
                memory[:used] = self.memory[:used]
            self._replace(memory)
        if moved or self._data is None or self._data.shape != shape:
            self._set(self.memory[:size].reshape(shape))

    def _set(self, array: Optional[np.ndarray]) -> None:
        before, self._data = self._data, array
        if before is None or array is None or before.shape[1:] != array.shape[1:]:
            # The rows are others now.
            for presence in self._tracking:
                presence.lose(..., 0)
        self._version += 1
        self.token = (self.key, self._version)

    def _replace(self, memory: np.ndarray) -> None:
        self.memory, self._unlinked = memory, False
        # Other processes can unmap the old memory.
        for moved in self.observers:
            moved.append(self.key)

    def _room(self, shape: tuple[int, ...], what: str) -> np.ndarray:
        """Take this shape; return the array, with arbitrary contents. Errors name it `what`."""
        self._allocate(shape, 1, keep=False, what=what)
        return self.data  # and so exposed: each call writes there

    def _unlink(self) -> None:
        """Remove the memory's name, so that it ends with this process; unless another runtime uses
        it."""
        if not self.observers and synk_shm.is_shared(self.memory):
            synk_shm.unlink(self.memory, missing_ok=True)
            self._unlinked = True

    def _ref(self) -> ArrayRef:
        """Return the address at which workers find the array as it is now."""
        array = self.array
        if self._unlinked:
            memory = new_array(self.memory.size, self._dtype, repr(self))
            memory[...] = self.memory
            self._replace(memory)
            self._set(memory[: array.size].reshape(array.shape))
            array = self.array
        if not synk_shm.is_shared(array):
            # Nothing was stored yet; an empty array needs an address, too.
            self._allocate(array.shape, 1, keep=False)
        return ArrayRef(self.key, synk_shm.handle(self.array))

    def __getitem__(self, key: Any) -> Any:
        found = self.array[key]
        if not self.is_exposed and isinstance(found, np.ndarray):
            self.is_exposed = np.may_share_memory(found, self.array)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        try:
            if key is ... and isinstance(value, Unread):
                value.read(self.array)
            else:
                self.array[key] = value
        finally:
            if self._tracking:
                self._note_written(key)

    def __len__(self) -> int:
        return len(self.array)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be copied or pickled; copy its array, as in np.array(data), and make "
            f"a new one with data(...)"
        )

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray:
        array = np.asarray(self.array, dtype=dtype)
        if copy:
            return np.array(array)
        self.is_exposed = self.is_exposed or np.may_share_memory(array, self.array)
        return array

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - OF_THE_RUNTIME)

    def __repr__(self) -> str:
        label = f" {shown(self._name)}" if self._name else ""
        shape = None if self._data is None else self._data.shape
        kind = ", minibatch" if self._minibatch else ""
        return f"<Data{label} {self._dtype} shape={shape}{kind}>"


class Unread(NamedTuple):
    """An array that is not in memory yet; `read` writes it to an array of this shape."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[np.ndarray], None]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray:
        array: np.ndarray = np.empty(self.shape, self.dtype if dtype is None else dtype)
        self.read(array)
        return array


class Presence:
    """The rows of a `Data`, of `row_nbytes` bytes each, that other hosts have as they are now."""

    def __init__(self, row_nbytes: int) -> None:
        self.row_nbytes = row_nbytes
        self._nodes: dict[int, np.ndarray] = {}
        # Another thread may write than the one that calls functions.
        self._lock = threading.RLock()

    def of(self, node: int, length: int) -> np.ndarray:
        """Return a boolean for each of `length` rows of a node, to read and to write."""
        with self._lock:
            present = self._nodes.get(node)
            if present is None or len(present) < length:
                longer = np.zeros(length, bool)
                if present is not None:
                    longer[: len(present)] = present
                present = self._nodes[node] = longer
            return present[:length]

    def lose(self, key: Any, length: int) -> None:
        """Forget the rows that `key` selects of an array of `length` rows."""
        row = key[0] if isinstance(key, tuple) and key else key
        known = isinstance(row, slice) or is_int(row)
        if isinstance(row, (list, np.ndarray)):
            row = np.asarray(row)
            known = row.ndim == 1 and row.dtype.kind in "iub"
        with self._lock:
            for node in self._nodes:
                if known:
                    with contextlib.suppress(IndexError):  # which the array raises, too
                        self.of(node, length)[row] = False
                else:
                    self._nodes[node][...] = False
