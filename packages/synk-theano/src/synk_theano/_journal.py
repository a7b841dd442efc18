"""What shared variables were before the order under way: to give it back if any rank fails.

What an order computes goes into new arrays, so that to keep the old ones is to keep references.
An order that all ranks have finished is committed by the next one: until then a rank that
is done already can still learn that another one failed.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from ._values import empty_like, is_plain

SPARE_ORDERS = 64
"""A spare array that was not used for so many orders is given up."""

Storage = List[Any]
"""The one-element list in which a shared variable's value lies."""


class Journal:
    """Keeps the values that variables had.

    Args:
        on: off, it keeps nothing: values are then overwritten, and cannot be given back.
    """

    def __init__(self, on: bool = True) -> None:
        self.on = on
        self._kept: List[Tuple[Sequence[Storage], List[Any]]] = []
        self._spares: Dict[int, Tuple[Any, int]] = {}
        self._orders = 0

    def begin(self) -> None:
        """An order begins: the one before is committed."""
        if self._kept:
            self._kept = []
        if self._spares:
            self._orders += 1
            if self._orders % SPARE_ORDERS == 0:
                old = self._orders - SPARE_ORDERS
                self._spares = {n: spare for n, spare in self._spares.items() if spare[1] > old}

    def keep(self, storages: Sequence[Storage]) -> None:
        """These variables are about to get new values."""
        if storages and self.on:
            self._kept.append((storages, [storage[0] for storage in storages]))

    def room(self, number: int, storage: Storage) -> Any:
        """An array like a variable's value, for its new one; for collectives that fill arrays.

        The very array that it has, if that was made in this order; else the one that it had
        before the last collective: so two take turns.

        Args:
            number: of the variable.
        """
        value = storage[0]
        if is_plain(value) and (not self.on or self._is_new(storage)):
            return value
        spare, _ = self._spares.pop(number, (None, 0))
        if (
            spare is None
            or spare is value
            or type(spare) is not type(value)
            or spare.shape != value.shape
            or spare.dtype != value.dtype
        ):
            spare = empty_like(value, value.shape, value.dtype)
        if self.on:
            self._spares[number] = value, self._orders
        return spare

    def _is_new(self, storage: Storage) -> bool:
        return any(storage is kept for storages, _ in self._kept for kept in storages)

    def undo(self) -> None:
        """Give all variables back what they were when the order began."""
        while self._kept:
            storages, values = self._kept[-1]
            for storage, value in zip(storages, values):
                storage[0] = value
            # Last: an interrupted undo can be repeated.
            self._kept.pop()

    def clear(self) -> None:
        """Let go of everything."""
        self._kept = []
        self._spares.clear()
