"""What the workers have already, and the message that brings them the rest."""

from __future__ import annotations

from typing import Any, Callable, Set, Tuple

import numpy as np

from ._messages import Distribute, Form
from ._pickling import dumps
from ._rank import Rank, pack
from ._store import DataStore


class Distributor:
    """Sends new shared variables, functions and compiled forms; each only once.

    Args:
        rank: the master's.
        run: has all ranks perform a command.
        store: where the message lies on its way.
    """

    def __init__(self, rank: Rank, run: Callable[[Distribute], Any], store: DataStore) -> None:
        self._rank = rank
        self._run = run
        self._store = store
        self._variables = 0
        self._forms: Set[Tuple[int, Form]] = set()

    def has_form(self, function_id: int, form: Form) -> bool:
        """Whether the workers have a compiled form of a function."""
        return (function_id, form) in self._forms

    def has_all_variables(self) -> bool:
        """Whether the workers have every variable of the registry."""
        return self._variables == len(self._rank.registry)

    def send_new(self) -> None:
        """Send what the workers do not have yet; blocks until they have it.

        If it fails, nothing counts as sent, and the workers have kept nothing of it.
        """
        functions = self._rank.functions
        forms = [
            (function_id, form, compiled)
            for function_id, loaded in functions.items()
            for form, compiled in loaded.forms.items()
            if (function_id, form) not in self._forms
        ]
        known = {function_id for function_id, _ in self._forms}
        recipes = [loaded.recipe for i, loaded in functions.items() if i not in known]
        if self._rank.size > 1 and (forms or not self.has_all_variables()):
            # Functions first: pickling them can bring variables to light.
            pickled_functions = dumps((recipes, forms), self._rank.registry)
            records = self._rank.registry.records(self._variables)
            pickled_variables = dumps(records, self._rank.registry)
            parts, (variables, compiled), length = pack(pickled_variables, pickled_functions)
            payload = self._store.make(dtype=np.uint8, shape=(length,))
            for start, stop, part in parts:
                payload.data[start:stop] = np.frombuffer(part, np.uint8)
            self._run(Distribute(payload.ref(), variables, compiled))
        self._variables = len(self._rank.registry)
        self._forms.update((function_id, form) for function_id, form, _ in forms)
