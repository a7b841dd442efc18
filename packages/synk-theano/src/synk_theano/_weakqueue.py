"""A word from what is gone."""

from __future__ import annotations

import weakref
from typing import Any, Deque


class Farewell(weakref.ref):  # type: ignore[type-arg] # of anything
    """A weak reference that is appended to a deque when its object is gone.

    That happens in C, at any time and in any thread: no signal's exception can come in between, as
    it does in finalizers that are written in Python, which are lost then. To be kept until it is
    there.

    Attributes:
        number: of the object, for who keeps it.
    """

    __slots__ = ("number",)
    number: int

    def __new__(cls, thing: Any, queue: Deque[Any], number: int = 0) -> Farewell:  # noqa: PYI034
        """Watch `thing`."""
        made = super().__new__(cls, thing, queue.append)
        made.number = number
        return made

    def __init__(self, thing: Any, queue: Deque[Any], number: int = 0) -> None:  # noqa: ARG002
        super().__init__(thing, queue.append)  # type: ignore[call-arg] # says typeshed
