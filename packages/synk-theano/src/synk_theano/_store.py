"""The runtime's `Data`: made here, and reused for arrays that calls bring."""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Dict, Optional, Sequence, Tuple

import numpy as np
from theano.gof import Variable

import synk_shm

from ._data import Data, unmasked
from ._messages import ArrayRef
from ._shown import shown
from .exceptions import InputTypeError


class DataStore:
    """Makes `Data`, and remembers which of them are gone, so that workers drop their mappings.

    Attributes:
        released: keys of `Data` that are gone, or lie elsewhere, oldest first. Finalizers append to
            it, which may run at any time in any thread.
    """

    def __init__(self) -> None:
        self.released: Deque[int] = deque()
        self._staged: Dict[Tuple[Any, ...], Data] = {}

    def make(
        self,
        value: Any = None,
        var: Any = None,
        dtype: Any = None,
        ndim: Optional[int] = None,
        shape: Optional[Sequence[int]] = None,
        minibatch: bool = False,
        force_cast: bool = False,
        oversize: float = 1,
        name: Optional[str] = None,
    ) -> Data:
        """See `synkhronos.data`."""
        if var is not None:
            if not isinstance(var, Variable) or not hasattr(var, "ndim"):
                raise InputTypeError(
                    f"data(): got var={shown(var)}, expected a Theano variable of tensor type"
                )
            dtype = var.dtype if dtype is None else dtype
            ndim = var.ndim if ndim is None else ndim
        if value is not None:
            array = unmasked(value, "data()")
            dtype = array.dtype if dtype is None else dtype
            ndim = array.ndim if ndim is None else ndim
        if shape is not None and ndim is None:
            ndim = np.size(shape)
        if dtype is None or ndim is None:
            raise InputTypeError(
                f"data(): got dtype={dtype}, ndim={ndim}, expected both to be known; give a value, "
                f"a Theano variable (var=), or dtype= and ndim= (or shape=)"
            )
        data = Data(dtype, ndim, minibatch, name, self.released.append)
        if value is not None:
            data.set_value(value, force_cast=force_cast, oversize=oversize)
        if shape is not None:
            data.set_shape(shape, oversize=oversize)
        return data

    def ref(self, data: Data) -> ArrayRef:
        """Where the workers find it, whichever runtime it is from."""
        return data.ref(self.released.append)

    def room(
        self, slot: Tuple[Any, ...], dtype: np.dtype, shape: Tuple[int, ...]
    ) -> Tuple[np.ndarray, ArrayRef]:
        """An array in shared memory that is reused for `slot`, and where the workers find it."""
        data = self._staged.get(slot)
        if data is None or data.dtype != dtype or data.ndim != len(shape):
            data = self._staged[slot] = self.make(dtype=dtype, ndim=len(shape))
        return data.room(shape), self.ref(data)

    def drop(self, function_id: int) -> None:
        """Free what was staged for a function."""
        for slot in [slot for slot in self._staged if slot[0] == function_id]:
            del self._staged[slot]

    def forget(self, count: int) -> None:
        """The first so many of the released keys have been dealt with."""
        for _ in range(count):
            self.released.popleft()

    def clear(self) -> None:
        """Free what was staged."""
        for data in self._staged.values():
            # An error that the user keeps may keep the memory, but nobody shall find it any more.
            if synk_shm.is_shared(data.data):
                synk_shm.unlink(data.data, missing_ok=True)
        self._staged.clear()
