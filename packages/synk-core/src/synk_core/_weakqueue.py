"""A weak reference that enters a queue when its object is gone."""

from __future__ import annotations

import weakref
from typing import Any, Deque


class QueuedRef(weakref.ref):  # type: ignore[type-arg] # of anything
    """A weak reference that is appended to a deque when its object is gone.

    C code appends it, at any time and in any thread, so no signal's exception can interrupt it;
    finalizers in Python are lost to such an exception. Keep the reference until it is in the deque.

    Attributes:
        number: of the object, chosen by the caller.
    """

    __slots__ = ("number",)
    number: int

    def __new__(cls, thing: Any, queue: Deque[Any], number: int = 0) -> QueuedRef:  # noqa: PYI034
        """Watch `thing`."""
        made = super().__new__(cls, thing, queue.append)
        made.number = number
        return made

    def __init__(self, thing: Any, queue: Deque[Any], number: int = 0) -> None:  # noqa: ARG002
        super().__init__(thing, queue.append)  # type: ignore[call-arg] # says typeshed
