"""What the program has let go of: functions, arrays and shared variables, on all ranks.

It is told in deques, at any time and by any thread. What is to be forgotten goes with the next
order.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Deque, Dict

from synk_theano._rank.rank import Rank
from synk_theano._weakqueue import Farewell

from .acts import Book
from .replicas import Replicas
from .store import DataStore

LINGERING_ORDERS = 2
"""So many orders later nobody here has what a function had: acts are forgotten with the first, and
what the journal keeps with the one after it."""


class Releases:
    """Looks at what is of no more use.

    Args:
        rank: the master's.
        book: of acts; it has the workers forget.
        store: of arrays.
        replicas: what is known of the variables' values.

    Attributes:
        on_function: called with the number of each function that nobody has any more.
    """

    def __init__(self, rank: Rank, book: Book, store: DataStore, replicas: Replicas) -> None:
        self.on_function: Callable[[int], None] = lambda _number: None
        self._rank = rank
        self._registry = rank.registry
        self._book = book
        self._store = store
        self._replicas = replicas
        self._functions: Dict[int, Farewell] = {}
        self._gone: Deque[Farewell] = deque()
        self._lingers_until = -1

    def watch(self, function: Any, number: int) -> None:
        """Notice when nobody has a function any more."""
        self._functions[number] = Farewell(function, self._gone, number)

    def look(self) -> None:
        """Have everybody forget what is gone, or lies elsewhere; the caller has the turn.

        Before anything is staged: an older act may refer to where it goes.
        """
        if self._gone or self._registry.left or self._store.released or self._lingers():
            self._look()

    def _lingers(self) -> bool:
        """Whether what something that is gone has had may still be kept here."""
        return self._rank.serial <= self._lingers_until

    def _look(self) -> None:
        # What is removed from the deques is so last: after an interrupt it is looked at once more.
        if self._gone or self._registry.left:
            self._lingers_until = self._rank.serial + LINGERING_ORDERS
        while self._gone:
            self._drop_function(self._gone[0].number)
            self._gone.popleft()
        if self._store.released:
            keys = self._store.released_keys()
            self._book.release(keys)
            self._store.forget(keys)
        if self._lingers():
            self._drop_variables()

    def _drop_function(self, number: int) -> None:
        self.on_function(number)
        self._book.drop_function(number)
        self._store.drop(number)
        self._replicas.drop_function(number)
        loaded = self._rank.functions.pop(number, None)
        if loaded is not None:
            for form in loaded.forms.values():
                self._registry.watch(form)
        self._functions.pop(number, None)

    def _drop_variables(self) -> None:
        count = len(self._registry.left)
        numbers = self._registry.unused()
        self._replicas.drop_variables(numbers)
        self._book.drop_variables(numbers)
        self._registry.let_go(numbers)
        self._registry.looked_at(count)
