"""The `Data` of a runtime: the user's, and rooms for the arrays of calls."""

from __future__ import annotations

import itertools
import resource
import sys
import weakref
from collections import deque
from typing import Any, Callable, Dict, FrozenSet, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from synk_core._plan.conversion import unmasked
from synk_core._plan.rows import Bounds, Selection
from synk_core._text import shown
from synk_core._weakqueue import QueuedRef
from synk_core._wire.arrays import may_be_opened
from synk_core._wire.data import Data
from synk_core._wire.messages import ArrayRef, Rows
from synk_core.engine import TITLE, Variable
from synk_core.exceptions import InputTypeError


class Standing(NamedTuple):
    """The position of an act in a step, which has memory of its own for staging, and the numbers
    of the functions that earlier acts call."""

    place: int = 0
    called: FrozenSet[int] = frozenset()


ALONE = Standing()

_DESCRIPTORS_EACH = 8
"""Descriptors that a process may have, for each array without a name, which keeps two open."""


class DataStore:
    """Makes `Data`, and collects the keys of those that are gone, for workers to unmap; those that
    are not `named` the kernel frees.

    Attributes:
        released: keys of `Data` that have moved, and the weak references of those that are gone,
            oldest first. It grows at any time and in any thread.
    """

    def __init__(self, named: bool = True) -> None:
        self._named = named or not may_be_opened()
        self.released: deque[Union[int, QueuedRef]] = deque()
        self._watched: Dict[int, Callable[[], Any]] = {}
        self._staged: Dict[Tuple[Any, ...], Data] = {}
        self._owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

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
                    f"data(): got var={shown(var)}, expected a {TITLE} variable of tensor type"
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
                f"a {TITLE} variable (var=), or dtype= and ndim= (or shape=)"
            )
        data = Data(dtype, ndim, minibatch, name)
        data.named = self._named or len(self._watched) >= _most_unnamed()
        self._watch(data)
        if value is not None:
            data.set_value(value, force_cast=force_cast, oversize=oversize)
        if shape is not None:
            data.set_shape(shape, oversize=oversize)
        return data

    def ref(self, data: Data) -> ArrayRef:
        """Return the address of a `Data`, whichever runtime has made it."""
        if data.key not in self._watched:
            self._watch(data)
        return data._ref()

    def find(self, key: int) -> Data:
        """Return the `Data` of a key, which exists because an act refers to it."""
        data: Data = self._watched[key]()
        return data

    def is_room(self, data: Data) -> bool:
        """Return whether a `Data` is memory for the arrays of calls, not a user's."""
        return any(data is one for one in list(self._staged.values()))

    def _watch(self, data: Data) -> None:
        self._watched[data.key] = QueuedRef(data, self.released, data.key)
        data.observers.append(self.released)

    def room(
        self, slot: Tuple[Any, ...], dtype: np.dtype, shape: Tuple[int, ...], what: str
    ) -> Tuple[np.ndarray, ArrayRef]:
        """Return an array in shared memory, reused for `slot`, and its address; errors name it
        `what`."""
        data = self._staged.get(slot)
        if data is None or data.dtype != dtype or data.ndim != len(shape):
            data = self._staged[slot] = self.make(dtype=dtype, ndim=len(shape))
        return data._room(shape, what), self.ref(data)

    def rows(
        self,
        selection: Selection,
        bounds: Sequence[Bounds],
        place: int = 0,
        needs_index: bool = True,
    ) -> Tuple[Optional[np.ndarray], Rows]:
        """Stage a selection for the act at a place; return the room of its index (None without
        one), and the rows. `bounds` are those of each rank in the selection."""
        if selection.index is None or not needs_index:
            return None, Rows(tuple(bounds), selection.step)
        index = selection.index
        target, ref = self.room(("index", place), index.dtype, index.shape, "the rows of batch=")
        target[...] = index
        return target, Rows(tuple(bounds), 1, ref)

    def take_place(self, owner: Any) -> int:
        """Return a place for an act that is staged ahead: negative, and of no other act until it is
        released, or its owner is deleted."""
        place = next(n for n in itertools.count(1) if n not in self._owners)
        self._owners[place] = owner
        return -place

    def release_place(self, place: int) -> None:
        """Release a place."""
        self._owners.pop(-place, None)

    def forget_function(self, function_id: int) -> None:
        """Free the rooms of a function."""
        for slot in [slot for slot in list(self._staged) if slot[0] == function_id]:
            self._staged.pop(slot, None)

    def released_keys(self) -> Tuple[int, ...]:
        """Return the keys released up to now."""
        # By position: more may come meanwhile.
        several = [self.released[place] for place in range(len(self.released))]
        return tuple(one.number if isinstance(one, QueuedRef) else one for one in several)

    def forget(self, keys: Sequence[int]) -> None:
        """Forget these keys, the oldest of those released."""
        for key in keys:
            if isinstance(self.released[0], QueuedRef):
                self._watched.pop(key, None)
            self.released.popleft()

    def close(self) -> None:
        """Free the rooms."""
        # A user's error may keep memory: without a name no process finds it.
        while self._watched:  # other threads may add some
            known = self._watched.popitem()[1]()
            if known is not None:
                known.observers = [it for it in known.observers if it is not self.released]
                known._unlink()
        self._staged.clear()  # last: so that the memory of rooms has lost its names


def _most_unnamed() -> int:
    """Return how many arrays may have no name."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit // _DESCRIPTORS_EACH
