"""Find out why an execution gave a value that is not finite.

The search checks the inputs, then the shared variables that the function reads; if all of these are
finite, it runs the function again on fewer rows. Nothing of that stays: before each run the
variables get their old values back, states of random streams included, and at the end the call
fails, which undoes the rest. Only this rank computes: in-graph reductions return its own
contribution.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from synk_core._graph.reduce_op import AllReduce, meeting
from synk_core._graph.shared import value_of
from synk_core._graph.values import is_array, on_host
from synk_core._rank.finite.execution import Execution, Suspect, computed, is_finite
from synk_core._rank.finite.search import Found, search
from synk_core._rank.workplace import Workplace
from synk_core.exceptions import NotFinite


class Cause(NamedTuple):
    """The result of a search.

    Attributes:
        source: in words.
        rows: (start, stop) of the execution's rows that cause it; None if no rows do.
        place: of the scattered input that causes it; None for another cause.
    """

    source: str
    rows: Optional[Tuple[int, int]] = None
    place: Optional[int] = None


class CauseSearch:
    """A search for the cause, on the rank whose execution failed.

    Args:
        here: this rank.
        execution: the one that gave a value that is not finite.
        changed: storages of the variables that the function updates.
        before: their values before the execution.
    """

    def __init__(
        self, here: Workplace, execution: Execution, changed: List[List[Any]], before: List[Any]
    ) -> None:
        self._here = here
        self._execution = execution
        self._changed = changed
        self._before = before
        recipe = execution.loaded.recipe
        self._sliceable = [here.registry[number] for number in recipe.sliceable]
        self._count = self._count_rows()

    def error(self, suspect: Suspect, value: Any) -> NotFinite:
        """Return the error to raise for a suspect that is not finite."""
        what = self._named(suspect)
        cause = self._cause(suspect)
        return self._error(what, described(value), cause)

    # The checks, in order.

    def _cause(self, suspect: Suspect) -> Cause:
        self._restore()
        cause = self._of_inputs() or self._of_variables()
        if cause is not None:
            return cause
        if not self._count:
            return Cause("all inputs and variables are finite, and there are no rows")
        if not self._here.journal.on:
            return Cause(
                "all inputs are finite; fork(atomic=False) overwrites the old values, so the row "
                "that causes it cannot be searched for"
            )
        try:
            found = search(lambda start, stop: self._is_bad(suspect, start, stop), self._count)
        except Exception as error:  # noqa: BLE001 - whatever a function does with fewer rows
            return Cause(
                f"all inputs and variables are finite; the row that causes it was not found, "
                f"because for fewer rows the function raised {type(error).__name__}"
            )
        finally:
            self._restore()
        return self._judged(found)

    def _of_inputs(self) -> Optional[Cause]:
        execution, n_scattered = self._execution, len(self._execution.call.scattered)
        inputs = execution.function.maker.inputs
        # What comes after the inputs selects rows, and is made of whole numbers.
        for place, array in enumerate(execution.arguments):
            if is_finite(array):
                continue
            name = inputs[place].variable.name or inputs[place].name or f"number {place}"
            if place < n_scattered:
                row, text = first_row(array)
                return Cause(f"input {name!r} has {text} of it", (row, row + 1), place)
            return Cause(f"Broadcast input {name!r} has {described(array)}")
        return None

    def _of_variables(self) -> Optional[Cause]:
        seen = {id(storage): value for storage, value in zip(self._changed, self._before)}
        for variable in self._execution.function.get_shared():
            storage = variable.container.storage
            value = seen.get(id(storage), storage[0])
            if not is_array(value) or is_finite(value):
                continue
            name = repr(variable.name) if variable.name else str(variable)
            number = self._here.registry.known_number(storage)
            if number in self._execution.loaded.recipe.sliceable:
                rows = self._rows_of(on_host(value))
                if is_finite(rows):
                    continue
                if len(rows) == self._count:
                    row, text = first_row(rows)
                    return Cause(
                        f"sliceable shared variable {name} has {text} of it", (row, row + 1)
                    )
            return Cause(f"Shared variable {name} had {described(value)} before the call")
        return None

    def _is_bad(self, suspect: Suspect, start: int, stop: int) -> bool:
        """Return whether the suspect is not finite either if only these rows are computed."""
        self._here.flight.heed(self._here.serial)
        self._restore()
        execution, probe = self._execution, Probe()
        kept = self._cut_variables(start, stop)
        try:
            results = execution.launch(self._cut(start, stop), probe)
            if suspect.kind == "sent":
                return suspect.place in probe.bad
            return any(
                one == suspect and not is_finite(value)
                for one, value in computed(execution, results, self._here.registry)
            )
        finally:
            for storage, value in kept:
                storage[0] = value

    def _judged(self, found: Optional[Found]) -> Cause:
        if found is None:
            return Cause(
                "all inputs and variables are finite, and when the same rows were computed again "
                "the result was finite as well: the cause is random numbers, or the other ranks' "
                "contributions"
            )
        last = found.length - 1, found.length
        if self._count == 1:
            return Cause("it is the only row that was computed, and its inputs are finite", last)
        if found.every:
            return Cause(
                "that row alone reproduces it, but so does every other row that was tried: look at "
                "the variables and constants that all rows share",
                last,
            )
        if found.alone:
            return Cause("that row alone reproduces it", last)
        return Cause(
            "together they reproduce it, without the last one they do not",
            (0, found.length),
        )

    # The rows of an execution.

    def _count_rows(self) -> Optional[int]:
        """Count the rows; None for an execution that has none."""
        execution = self._execution
        arguments = execution.arguments
        if execution.call.scattered:
            return len(arguments[0])
        if execution.call.form.select == "range":
            return int(arguments[-1]) - int(arguments[-2])
        if execution.call.form.select == "index":
            return len(arguments[-1])
        if self._sliceable:
            return min(int(value_of(variable).shape[0]) for variable in self._sliceable)
        return None

    def _cut(self, start: int, stop: int) -> List[Any]:
        """Return the arguments for fewer rows."""
        arguments = list(self._execution.arguments)
        for place in range(len(self._execution.call.scattered)):
            arguments[place] = arguments[place][start:stop]
        if self._execution.call.form.select == "range":
            first = int(arguments[-2])
            arguments[-2:] = [np.asarray(first + start), np.asarray(first + stop)]
        elif self._execution.call.form.select == "index":
            arguments[-1] = arguments[-1][start:stop]
        return arguments

    def _cut_variables(self, start: int, stop: int) -> List[Tuple[List[Any], Any]]:
        """Cut sliceable variables that are used whole; return their storages and old values."""
        kept: List[Tuple[List[Any], Any]] = []
        if self._execution.call.form.select is not None:
            return kept
        for variable in self._sliceable:
            storage = variable.container.storage
            if storage[0].shape[0] == self._count:
                kept.append((storage, storage[0]))
                storage[0] = storage[0][start:stop]
        return kept

    def _rows_of(self, value: np.ndarray) -> np.ndarray:
        """Return the rows of a sliceable variable that the execution uses."""
        select, arguments = self._execution.call.form.select, self._execution.arguments
        if select == "range":
            return value[int(arguments[-2]) : int(arguments[-1])]
        return value[arguments[-1]] if select == "index" else value

    def _restore(self) -> None:
        for storage, value in zip(self._changed, self._before):
            storage[0] = value

    # Names and numbers.

    def _named(self, suspect: Suspect) -> str:
        if suspect.kind == "output":
            name = self._execution.function.maker.outputs[suspect.place].variable.name
            return f"output {suspect.place}" + (f" ({name!r})" if name else "")
        if suspect.kind == "update":
            return f"the new value of {self._here.registry.label(suspect.place)!r}"
        return f"the input of in-graph all_reduce {suspect.place}"

    def _array_row(self, row: int, place: int) -> Optional[int]:
        """Return the row of the user's array for a row of the selection; None if it is unknown."""
        execution = self._execution
        rows, arguments = execution.call.rows, execution.arguments
        item = execution.call.scattered[place] if execution.call.scattered else None
        if item is not None and item.minibatch and item.selected:
            return row
        if rows is None or item is None:
            select = execution.call.form.select
            if select == "range":
                return int(arguments[-2]) + row - execution.begin
            return int(arguments[-1][row - execution.begin]) if select == "index" else row
        if rows.index is not None:
            found = int(self._here.arrays.get(rows.index)[row])
        elif rows.is_regular:
            found = rows.first(execution.origin) + row * rows.step
        else:
            return None
        return found - (execution.origin if item.minibatch else 0)

    def _error(self, what: str, got: str, cause: Cause) -> NotFinite:
        execution, rank = self._execution, self._here.rank
        rows_of_all = execution.call.rows
        share = None if rows_of_all is None else rows_of_all.bounds[rank]
        piece = execution.piece or None
        row = array_row = rows = None
        where = ""
        if cause.rows is not None:
            start, stop = (execution.begin + end for end in cause.rows)
            rows, row = (start, stop), stop - 1
            array_row = self._array_row(row, cause.place or 0)
            where = self._where(start, stop, array_row, share)
        of_slice = f", slice {piece}" if piece else ""
        undone = "" if not self._here.journal.on else ". Nothing has changed on any rank"
        return NotFinite(
            f"function {execution.loaded.recipe.name!r} on rank {rank}{of_slice}: got {got} in "
            f"{what}, expected finite numbers. {where}{cause.source}{undone}.",
            rank=rank,
            piece=piece,
            what=what,
            source=cause.source,
            row=row,
            rows=rows,
            array_row=array_row,
            share=share,
        )

    def _where(self, start: int, stop: int, array_row: Optional[int], share: Any) -> str:
        if stop - start == 1:
            text = f"Caused by row {start} of the call"
            if not self._execution.call.scattered:
                text += f" (row {array_row} of the variables on this rank)"
            elif array_row is None:
                text += f" (row batch[{start}] of the arrays)"
            elif array_row != start:
                text += f" (row {array_row} of the arrays)"
        else:
            text = f"Caused by rows {start} to {stop - 1} of the call"
        if share is not None:
            text += f", of this rank's rows {share[0]} to {share[1] - 1}"
        return text + ": "


class Probe:
    """In place of `GraphReductions`: each reduction returns its input, as on one rank.

    Attributes:
        bad: places of the reductions whose input was not finite.
    """

    def __init__(self) -> None:
        self.bad: List[int] = []
        self._place = 0

    def execute(self, function: Any, arguments: Sequence[Any]) -> Any:
        """Run the function."""
        with meeting(self):
            return function(*arguments)

    def all_reduce(self, x: np.ndarray, op: AllReduce) -> np.ndarray:  # noqa: ARG002 - as there
        """Return the input; called in the middle of a graph."""
        if not is_finite(x):
            self.bad.append(self._place)
        self._place += 1
        return np.array(x)


def first_row(array: np.ndarray) -> Tuple[int, str]:
    """Return the first row of an array that is not finite, and its first bad element in words."""
    finite = np.isfinite(array).reshape(len(array), -1).all(axis=1)
    row = int(np.argmin(finite))
    return row, described(np.asarray(array[row]))


def described(value: Any) -> str:
    """Describe the first element that is not finite: "nan at [0, 3]"."""
    array = np.asarray(on_host(value))
    place = np.unravel_index(int(np.argmin(np.isfinite(array))), array.shape)
    kind = "nan" if np.isnan(array[place]) else "inf"
    return kind + (f" at {[int(i) for i in place]}" if array.ndim else "")
