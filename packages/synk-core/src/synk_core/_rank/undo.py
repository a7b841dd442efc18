"""Keep the values of shared variables from before an order, to restore them if any rank fails.

An order computes into new arrays, so references to the old ones suffice. The next order commits it:
until then a rank that is done may learn that another one failed.
"""

from __future__ import annotations

import copy
import sys
from operator import itemgetter
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from numpy import ndarray

from synk_core._graph.shared import Storage
from synk_core._graph.values import empty_like, is_plain, is_view

SPARE_ORDERS = 64
"""Orders until an unused spare array is freed."""

_VALUE = itemgetter(0)

_FREE = 2
"""References to an array without other owners, as `sys.getrefcount` counts them in `room`."""


class Journal:
    """The old values of the variables; if not `on`, values are overwritten and not restored.

    Attributes:
        kept_values: storages, and their values from before the order.
        spares: arrays for later values, and the orders that left them, by number of a variable.
    """

    def __init__(self, on: bool = True) -> None:
        self.on = on
        self.kept_values: List[Tuple[Sequence[Storage], List[Any]]] = []
        self._known: Optional[Tuple[Set[int], Set[int]]] = None
        self.spares: Dict[int, Tuple[Any, int]] = {}
        self._orders = 0

    def begin(self) -> None:
        """Begin an order, and commit the one before."""
        if self.kept_values:
            self.kept_values, self._known = [], None
        if self.spares:
            self._orders += 1
            if self._orders % SPARE_ORDERS == 0:
                old = self._orders - SPARE_ORDERS
                self.spares = {n: spare for n, spare in self.spares.items() if spare[1] > old}

    def keep(self, storages: Sequence[Storage], always: bool = False) -> None:
        """Keep the values of variables that get new ones next; with `always` copies, if values are
        overwritten."""
        if storages and (self.on or always):
            values = list(map(_VALUE, storages))
            self.kept_values.append((storages, values if self.on else copy.deepcopy(values)))
            self._known = None

    def kept(self, value: Any) -> Any:
        """Return a value that stays as it is now: a copy if values are overwritten."""
        return value if self.on else copy.deepcopy(value)

    def room(self, number: int, storage: Storage) -> Any:
        """Return an array for a collective to fill with a variable's new value: the variable's own
        if this order made that; else the one from before the last collective, if nothing else
        refers to it."""
        value = storage[0]
        # Nothing that was not kept before is new.
        if (not self.on or (self.kept_values and self._is_new(storage))) and is_plain(value):
            return value
        spare, _ = self.spares.pop(number, (None, 0))
        if (
            spare is None
            or sys.getrefcount(spare) > _FREE
            or type(spare) is not type(value)
            or spare.shape != value.shape
            or spare.dtype != value.dtype
        ):
            spare = empty_like(value, value.shape, value.dtype)
        is_own = value.base is None if type(value) is ndarray else not is_view(value)
        if self.on and is_own:
            self.spares[number] = value, self._orders
        return spare

    def _is_new(self, storage: Storage) -> bool:
        """Return whether this order made a variable's value. A kept value does not prove that: a
        rank without rows changes nothing, and a function may exchange two variables' arrays."""
        if self._known is None:
            self._known = (
                {id(storage) for storages, _ in self.kept_values for storage in storages},
                {id(value) for _, values in self.kept_values for value in values},
            )
        storages, values = self._known
        return id(storage) in storages and id(storage[0]) not in values and not is_view(storage[0])

    def undo(self) -> None:
        """Restore the values that all variables had when the order began."""
        while self.kept_values:
            storages, values = self.kept_values[-1]
            for storage, value in zip(storages, values):
                storage[0] = value
            # Last: an interrupted undo can be repeated.
            self.kept_values.pop()
        self._known = None

    def forget(self, number: int) -> None:
        """Drop the spare array of a deleted variable."""
        self.spares.pop(number, None)

    def close(self) -> None:
        """Drop everything."""
        self.kept_values, self._known = [], None
        self.spares.clear()
