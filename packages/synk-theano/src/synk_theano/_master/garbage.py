"""Forgets functions, arrays and shared variables on all ranks, once the program has dropped them.

Weak references put them into queues, at any time and from any thread. The workers forget them with
the next order.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Deque, Dict

from synk_theano._rank.workplace import Workplace
from synk_theano._weakqueue import QueuedRef

from .acts import ActTable
from .replicas import Replicas
from .store import DataStore

LINGERING_ORDERS = 2
"""Orders until the master itself has dropped a function's variables: acts are forgotten with the
first, and the journal's values with the second."""


class Garbage:
    """Collects what the program has dropped.

    Args:
        here: the master.
        acts: has the workers forget.
        store: of arrays.
        replicas: of variables.

    Attributes:
        on_function: called with the number of each function that was dropped.
    """

    def __init__(
        self, here: Workplace, acts: ActTable, store: DataStore, replicas: Replicas
    ) -> None:
        self.on_function: Callable[[int], None] = lambda _number: None
        self._here = here
        self._registry = here.registry
        self._acts = acts
        self._store = store
        self._replicas = replicas
        self._functions: Dict[int, QueuedRef] = {}
        self._gone: Deque[QueuedRef] = deque()
        self._lingers_until = -1

    def watch(self, function: Any, number: int) -> None:
        """Forget a function once the program has dropped it."""
        self._functions[number] = QueuedRef(function, self._gone, number)

    def collect(self) -> None:
        """Forget what is gone, and acts whose arrays have moved; the caller holds the lock.

        To be called before staging: an older act may refer to the same room.
        """
        if self._gone or self._registry.gone or self._store.released or self._lingers():
            self._collect()

    def _lingers(self) -> bool:
        """Return whether the master may still hold variables of something that is gone."""
        return self._here.serial <= self._lingers_until

    def _collect(self) -> None:
        # Removed from the queues last: after an interrupt it is handled once more.
        if self._gone or self._registry.gone:
            self._lingers_until = self._here.serial + LINGERING_ORDERS
        while self._gone:
            self._forget_function(self._gone[0].number)
            self._gone.popleft()
        if self._store.released:
            keys = self._store.released_keys()
            self._acts.forget_arrays(keys)
            self._store.forget(keys)
        if self._lingers():
            self._forget_variables()

    def _forget_function(self, number: int) -> None:
        self.on_function(number)
        self._acts.forget_function(number)
        self._store.forget_function(number)
        self._replicas.forget_function(number)
        loaded = self._here.functions.pop(number, None)
        if loaded is not None:
            for form in loaded.forms.values():
                self._registry.watch(form)
        self._functions.pop(number, None)

    def _forget_variables(self) -> None:
        count = len(self._registry.gone)
        numbers = self._registry.unused()
        self._replicas.forget_variables(numbers)
        self._acts.forget_variables(numbers)
        self._registry.let_go(numbers)
        self._registry.forget_gone(count)
