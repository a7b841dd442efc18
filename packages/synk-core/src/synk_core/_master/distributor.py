"""Send functions and variables to the workers."""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Set, Tuple

import numpy as np

from synk_comm.processes import current_folder, import_path
from synk_core._graph.transfer.pickling import dumps
from synk_core._rank.distribute import pack
from synk_core._rank.workplace import Workplace
from synk_core._wire.messages import Distribute, Form
from synk_core.exceptions import SpecError

from .store import DataStore


class Distributor:
    """Sends new shared variables, functions and compiled forms, each once; calls `collect` before,
    to forget those that the program has dropped."""

    def __init__(
        self,
        here: Workplace,
        run: Callable[[Distribute], Any],
        store: DataStore,
        collect: Callable[[], None],
    ) -> None:
        self._here = here
        self._run = run
        self._store = store
        self._collect = collect
        self._variables = 0
        self._forms: Set[Tuple[int, Form]] = set()

    def has_all_variables(self) -> bool:
        """Return whether the workers have every variable of the registry."""
        return self._variables == self._here.registry.end

    def forget_function(self, function_id: int) -> None:
        """Forget a function that the program has dropped."""
        self._forms = {(number, form) for number, form in self._forms if number != function_id}

    def send(self, function_ids: Iterable[int] = ()) -> None:
        """Send the forms of these functions that the workers lack, and all new variables; block
        until they have them. If that fails, nothing counts as sent, and they keep nothing of it.

        Raises:
            SpecError: a function uses an object that cannot be pickled.
            WorkerFailed: a worker cannot build a function.
        """
        # A function sent with the order that forgets it would stay on the workers.
        self._collect()
        functions = {number: self._here.functions[number] for number in function_ids}
        forms = [
            (number, form, compiled)
            for number, loaded in functions.items()
            for form, compiled in loaded.forms.items()
            if (number, form) not in self._forms
        ]
        known = {number for number, _ in self._forms}
        recipes = [loaded.recipe for number, loaded in functions.items() if number not in known]
        if self._here.size > 1 and (forms or not self.has_all_variables()):
            # Functions first: pickling them can reveal new variables.
            names = ", ".join(repr(recipe.name) for recipe in recipes)
            pickled_functions = self._pickle((recipes, forms), names)
            records = self._here.registry.records(self._variables, self._here.device.takes)
            names = ", ".join(
                repr(record.name or "a variable without a name") for record in records
            )
            pickled_variables = self._pickle(records, f"the values of {names}")
            parts, (variables, compiled), length = pack(pickled_variables, pickled_functions)
            payload = self._store.make(dtype=np.uint8, shape=(length,), name="functions")
            for start, stop, part in parts:
                payload.array[start:stop] = np.frombuffer(part, np.uint8)
            apart = tuple(record.number for record in records if record.shape is not None)
            here = import_path(), current_folder()
            self._run(Distribute(self._store.ref(payload), variables, compiled, apart, *here))
        self._variables = self._here.registry.end
        self._forms.update((number, form) for number, form, _ in forms)

    def _pickle(self, content: Any, what: str) -> Tuple[bytes, List[memoryview]]:
        try:
            return dumps(content, self._here.registry)
        except Exception as error:
            raise SpecError(
                f"cannot send {what} to the workers: something in it cannot be pickled "
                f"({type(error).__name__}: {error}); make it in a module that workers import from "
                f"a folder in sys.path: not in the main script, nor loaded by hand"
            ) from error
