"""One execution of a function, and those of its values that have to be finite."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence

import numpy as np

from synk_core._graph.shared import VariableRegistry, changed_by
from synk_core._graph.values import on_host
from synk_core._rank.functions import LoadedFunction
from synk_core._wire.messages import Call


class Execution(NamedTuple):
    """One execution of a compiled function, of some of the rank's rows.

    Attributes:
        loaded: the function.
        call: the call that it is part of.
        origin: the lowest row of the call's selection.
        begin: the row of the selection that is row 0 here.
        piece: the number of the slice, from 1; 0 without slices.
        in_graph: the function's `GraphReductions`, or None.
        launch: runs the function, given its arguments and `in_graph`.
        arguments: in host memory.
    """

    loaded: LoadedFunction
    call: Call
    origin: int
    begin: int
    piece: int
    in_graph: Any
    launch: Callable[[Sequence[Any], Any], List[Any]]
    arguments: Sequence[Any]

    @property
    def function(self) -> Any:
        """The compiled function."""
        return self.loaded.forms[self.call.form]

    @property
    def wanted(self) -> Sequence[int]:
        """Positions of the outputs that the call returns."""
        outputs = self.call.outputs
        return range(len(self.loaded.recipe.output_ops)) if outputs is None else outputs

    @property
    def reductions(self) -> List[Any]:
        """The graph's nodes that reduce over ranks."""
        return self.loaded.reductions(self.call.form)


class Suspect(NamedTuple):
    """A value that an execution has computed.

    Attributes:
        kind: "output", "update" (of a variable), or "sent" (to an in-graph reduction).
        place: among the outputs, a variable's number, or among the reductions.
    """

    kind: str
    place: int


def computed(execution: Execution, results: Sequence[Any], registry: VariableRegistry) -> List[Any]:
    """Return the values of an execution: (suspect, value) for wanted outputs, then for updates."""
    found = [(Suspect("output", place), results[place]) for place in execution.wanted]
    if execution.call.form.accumulate:
        updates = results[len(execution.loaded.recipe.output_ops) :]
        found += [
            (Suspect("update", number), value)
            for number, value in zip(execution.loaded.recipe.updated, updates)
        ]
    for storage in changed_by(execution.function):
        number = registry.known_number(storage)
        if number is not None:
            found.append((Suspect("update", number), storage[0]))
    return found


def first_suspect(
    execution: Execution, results: Sequence[Any], registry: VariableRegistry
) -> Optional[Any]:
    """Return the first value that is not finite: (suspect, value); None if all are finite."""
    for suspect, value in computed(execution, results, registry):
        if not is_finite(value):
            return suspect, value
    return None


def is_finite(value: Any) -> bool:
    """Return whether no element is NaN or infinite. Everything but floats is finite.

    Args:
        value: an array, wherever it lies; or anything else that a Theano function gives.
    """
    array = np.asarray(on_host(value))
    if array.dtype.kind not in "fc":
        return True
    # The sum is finite only if each element is; it may overflow, so check those then.
    with np.errstate(all="ignore"):
        total = np.add.reduce(
            array, axis=None, dtype=np.float32 if array.dtype == np.float16 else None
        )
    return bool(np.isfinite(total)) or bool(np.isfinite(array).all())
