"""What the program has let go of: functions, arrays and shared variables, on all ranks.

Finalizers tell of it, which may run at any time in any thread: they append a number to a deque.
What is to be forgotten then goes with the next order.
"""

from __future__ import annotations

from collections import deque
from typing import Callable, Deque

from ._book import Book
from ._replicas import Replicas
from ._shared_vars import VariableRegistry
from ._store import DataStore


class Releases:
    """Looks at what is of no more use.

    Args:
        book: of acts; it has the workers forget.
        store: of arrays.
        registry: of shared variables.
        replicas: what is known of their values.

    Attributes:
        functions: numbers of functions that nobody has any more.
        on_function: called with each of these.
    """

    def __init__(
        self, book: Book, store: DataStore, registry: VariableRegistry, replicas: Replicas
    ) -> None:
        self.functions: Deque[int] = deque()
        self.on_function: Callable[[int], None] = lambda _number: None
        self._book = book
        self._store = store
        self._registry = registry
        self._replicas = replicas

    def look(self) -> None:
        """Have everybody forget what is gone, or lies elsewhere; the caller has the turn.

        Before anything is staged: an older act may refer to where it goes.
        """
        if self.functions or self._store.released or self._registry.left:
            self._look()

    def _look(self) -> None:
        # What is removed from the deques is so last: after an interrupt it is looked at once more.
        while self.functions:
            number = self.functions[0]
            self.on_function(number)
            self._book.drop_function(number)
            self._store.drop(number)
            self._replicas.drop_function(number)
            self.functions.popleft()
        released = self._store.released
        if released:
            # Not by iterating: a finalizer may append meanwhile.
            keys = tuple(released[i] for i in range(len(released)))
            self._book.release(keys)
            self._store.forget(len(keys))
        if self._registry.left:
            numbers = self._registry.unused()
            self._replicas.drop_variables(numbers)
            self._book.drop_variables(numbers)
            # Functions on their way out may have some still: these are looked at again then.
            self._registry.looked_at(numbers, again=self._book.forgets_functions)
