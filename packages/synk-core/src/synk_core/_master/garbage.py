"""Forget functions, arrays and shared variables that the program has dropped.

Weak references put them into queues, at any time and in any thread. The workers forget them with
the next order.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Dict, List

from synk_core._rank.workplace import Workplace
from synk_core._weakqueue import QueuedRef

from .acts import ActTable
from .record import Observers
from .store import DataStore

LINGERING_ORDERS = 2
"""Orders until the master itself has dropped a function's variables: acts are forgotten with the
first, and the journal's values with the second."""


class Garbage:
    """Forgets objects that the program has dropped, and informs observers.

    Attributes:
        queues: of what is to be forgotten.
        lingers_until: the order until which `collect` has something to do, whatever is in these.
    """

    def __init__(
        self, here: Workplace, acts: ActTable, store: DataStore, observers: Observers
    ) -> None:
        self._here = here
        self._registry = here.registry
        self._acts = acts
        self._store = store
        self._observers = observers
        self._functions: Dict[int, QueuedRef] = {}
        self._gone: Deque[QueuedRef] = deque()
        self.lingers_until = -1
        self.queues = self._gone, here.registry.gone, store.released

    def watch(self, function: Any, number: int) -> None:
        """Forget a function once the program has dropped it."""
        self._functions[number] = QueuedRef(function, self._gone, number)

    def watched(self) -> List[Any]:
        """Return the functions that the program still has."""
        return [one for one in (known() for known in list(self._functions.values())) if one]

    def collect(self) -> None:
        """Forget dropped objects, and acts whose arrays have moved. Call it with the lock held,
        before staging: an older act may refer to the same room."""
        if any(self.queues) or self._here.serial <= self.lingers_until:
            self._collect()

    def _collect(self) -> None:
        # Removed from the queues last: after an interrupt it is handled once more.
        if self._gone or self._registry.gone:
            self.lingers_until = self._here.serial + LINGERING_ORDERS
        while self._gone:
            self._forget_function(self._gone[0].number)
            self._gone.popleft()
        if self._store.released:
            keys = self._store.released_keys()
            self._acts.forget_arrays(keys)
            self._store.forget(keys)
        if self._here.serial <= self.lingers_until:
            self._forget_variables()

    def _forget_function(self, number: int) -> None:
        for forget in self._observers.forget_function:
            forget(number)
        self._acts.forget_function(number)
        self._store.forget_function(number)
        loaded = self._here.functions.pop(number, None)
        if loaded is not None:
            for form in loaded.compiled():
                self._registry.watch(form.maker)
        self._functions.pop(number, None)

    def _forget_variables(self) -> None:
        count = len(self._registry.gone)
        numbers = self._registry.unused()
        for forget in self._observers.forget_variables:
            forget(numbers)
        self._acts.forget_variables(numbers)
        self._registry.let_go(numbers)
        self._registry.forget_gone(count)
