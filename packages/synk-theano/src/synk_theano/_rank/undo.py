"""What shared variables were before the order under way: to give it back if any rank fails.

What an order computes goes into new arrays, so that to keep the old ones is to keep references.
An order that all ranks have finished is committed by the next one: until then a rank that
is done already can still learn that another one failed.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from synk_theano._graph.shared import Storage
from synk_theano._graph.values import empty_like, is_plain

SPARE_ORDERS = 64
"""A spare array that was not used for so many orders is given up."""

_FREE = 2
"""References to an array that nobody else has, as `sys.getrefcount` counts them in `room`."""


class Journal:
    """Keeps the values that variables had.

    Args:
        on: off, it keeps nothing: values are then overwritten, and cannot be given back.
    """

    def __init__(self, on: bool = True) -> None:
        self.on = on
        self._kept: List[Tuple[Sequence[Storage], List[Any]]] = []
        self._known: Optional[Tuple[Set[int], Set[int]]] = None
        self._spares: Dict[int, Tuple[Any, int]] = {}
        self._orders = 0

    def begin(self) -> None:
        """An order begins: the one before is committed."""
        if self._kept:
            self._kept, self._known = [], None
        if self._spares:
            self._orders += 1
            if self._orders % SPARE_ORDERS == 0:
                old = self._orders - SPARE_ORDERS
                self._spares = {n: spare for n, spare in self._spares.items() if spare[1] > old}

    def keep(self, storages: Sequence[Storage]) -> None:
        """These variables are about to get new values."""
        if storages and self.on:
            self._kept.append((storages, [storage[0] for storage in storages]))
            self._known = None

    def room(self, number: int, storage: Storage) -> Any:
        """An array like a variable's value, for its new one; for collectives that fill arrays.

        The very array that it has, if that was made in this order; else the one that it had
        before the last collective, if nobody else has it: so two take turns.

        Args:
            number: of the variable.
        """
        value = storage[0]
        if is_plain(value) and (not self.on or self._is_new(storage)):
            return value
        spare, _ = self._spares.pop(number, (None, 0))
        if (
            spare is None
            or sys.getrefcount(spare) > _FREE
            or type(spare) is not type(value)
            or spare.shape != value.shape
            or spare.dtype != value.dtype
        ):
            spare = empty_like(value, value.shape, value.dtype)
        if self.on and not _is_view(value):
            self._spares[number] = value, self._orders
        return spare

    def _is_new(self, storage: Storage) -> bool:
        """Whether a variable's value was made in this order.

        That it was kept is not enough: a rank without rows leaves all as it is, and a function may
        give one variable the array that another one had.
        """
        if self._known is None:
            self._known = (
                {id(storage) for storages, _ in self._kept for storage in storages},
                {id(value) for _, values in self._kept for value in values},
            )
        storages, values = self._known
        return id(storage) in storages and id(storage[0]) not in values and not _is_view(storage[0])

    def undo(self) -> None:
        """Give all variables back what they were when the order began."""
        while self._kept:
            storages, values = self._kept[-1]
            for storage, value in zip(storages, values):
                storage[0] = value
            # Last: an interrupted undo can be repeated.
            self._kept.pop()
        self._known = None

    def forget(self, number: int) -> None:
        """Let go of what is kept for a variable that nobody has any more."""
        self._spares.pop(number, None)

    def clear(self) -> None:
        """Let go of everything."""
        self._kept, self._known = [], None
        self._spares.clear()


def _is_view(array: Any) -> bool:
    """Whether its memory is another array's, maybe one that is kept."""
    return array.base is not None
