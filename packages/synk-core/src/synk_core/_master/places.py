"""Places of acts: each stages its arrays in memory of its own."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, FrozenSet, NamedTuple


class Standing(NamedTuple):
    """The position of an act among the acts of a step.

    Attributes:
        place: from 0.
        called: numbers of the functions that earlier acts call.
    """

    place: int = 0
    called: FrozenSet[int] = frozenset()


ALONE = Standing()


class Places:
    """Places of acts whose rows are taken before others are performed; these are negative."""

    def __init__(self) -> None:
        self._owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def take(self, owner: Any) -> int:
        """Return a place that no other act has, until it is released or the owner is deleted."""
        place = next(n for n in itertools.count(1) if n not in self._owners)
        self._owners[place] = owner
        return -place

    def release(self, place: int) -> None:
        """Release a place."""
        self._owners.pop(-place, None)
