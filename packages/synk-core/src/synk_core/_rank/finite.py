"""Check after each execution that all is finite, while `watch_finite()` is on, and find the cause.

Each rank checks its own results. A value that is not finite fails the call on that rank, like any
error in a function, and all ranks get their old values back. Before that the rank looks for the
cause: in the inputs, in the shared variables that the function reads, and if all of these are
finite, by running the function again on fewer rows. Before each run the variables get their old
values back, states of random streams included. Only this rank computes: in-graph reductions return
its own contribution.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from synk_core._graph.reduce_op import AllReduce, meeting
from synk_core._graph.shared import changed_by, value_of
from synk_core._graph.values import is_array, on_host
from synk_core._watch.flight import KINDS
from synk_core._wire.messages import Call
from synk_core.exceptions import NotFinite

from .functions import LoadedFunction
from .workplace import OwnAct, Workplace

Suspect = Tuple[str, int]
"""What a value is, and its place: "output", "update" (of a variable, by its number), or "sent" (to
an in-graph reduction)."""


class Execution(NamedTuple):
    """One execution of a compiled function, of some of the rank's rows.

    Attributes:
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


class PreparedFiniteWatch(OwnAct):
    """An act of `WatchFinite`."""

    name = doing = "watch_finite()"
    record = (KINDS.index("watch_finite"), 0)

    def __call__(self, origin: int, place: int) -> bool:  # noqa: ARG002 - all acts are called alike
        """Switch; return whether the rank checked before."""
        held, here = self._here.check_finite, self._here
        was_on = held[0] is not None
        # If a rank fails here, the others switch back too.
        here.journal.keep([held])
        held[0] = (lambda execution: _Check(here, execution).run()) if self._act.on else None
        return was_on


class _NotSent(Exception):
    """A contribution of this rank to an in-graph reduction is not finite: its place and value."""


class _Cause(NamedTuple):
    """A cause in words; the (start, stop) of the execution's rows that are it, if some are; and the
    scattered input that it lies in."""

    source: str
    rows: Optional[Tuple[int, int]] = None
    place: int = 0


class _Check:
    """Checks one execution, and looks for the cause where that fails. Made before it runs."""

    def __init__(self, here: Workplace, execution: Execution) -> None:
        self._here, self._execution = here, execution
        self._call, self._arguments = execution.call, execution.arguments
        self._select = execution.call.form.select
        self._changed = [(storage, storage[0]) for storage in changed_by(execution.function)]

    def run(self) -> List[Any]:
        """Run the function, and check its results.

        Raises:
            NotFinite: some are not finite, or a contribution to an in-graph reduction is not.
        """
        reductions, places = self._execution.in_graph, itertools.count()

        def watch(value: np.ndarray) -> None:
            place = next(places)
            if not is_finite(value):
                raise _NotSent(place, value)

        if reductions is not None:
            reductions.watch = watch
        try:
            results = self._execution.launch(self._arguments, reductions)
        except _NotSent as sent:
            place, value = sent.args
            raise self._error(("sent", place), value) from None
        finally:
            if reductions is not None:
                reductions.watch = None
        for suspect, value in self._computed(results):
            if not is_finite(value):
                raise self._error(suspect, value)
        return results

    def _computed(self, results: Sequence[Any]) -> Iterator[Tuple[Suspect, Any]]:
        """Yield what has been computed: wanted outputs, then new values of variables."""
        recipe, wanted = self._execution.loaded.recipe, self._call.outputs
        for place in range(len(recipe.output_ops)) if wanted is None else wanted:
            yield ("output", place), results[place]
        if self._call.form.accumulate:
            for number, value in zip(recipe.updated, results[len(recipe.output_ops) :]):
                yield ("update", number), value
        for storage, _ in self._changed:
            known = self._here.registry.known_number(storage)
            if known is not None:
                yield ("update", known), storage[0]

    def _error(self, suspect: Suspect, value: Any) -> NotFinite:
        """Return the error to raise for a value that is not finite, with its cause."""
        execution, rank, got = self._execution, self._here.rank, _described(value)
        kind, place = suspect
        if kind == "output":
            name = execution.function.maker.outputs[place].variable.name
            what = f"output {place}" + (f" ({name!r})" if name else "")
        elif kind == "update":
            what = f"the new value of {self._here.registry.label(place)!r}"
        else:
            what = f"the input of in-graph all_reduce {place}"
        self._restore()
        cause = self._of_inputs() or self._of_variables() or self._of_rows(suspect)
        share = None if self._call.rows is None else self._call.rows.bounds[rank]
        row = array_row = rows = None
        where = ""
        if cause.rows is not None:
            start, stop = rows = cause.rows[0] + execution.begin, cause.rows[1] + execution.begin
            row, array_row = stop - 1, self._array_row(stop - 1, cause.place)
            where = f"Caused by rows {start} to {row} of the call"
            if start == row:
                where = f"Caused by row {row} of the call"
                if not self._call.scattered:
                    where += f" (row {array_row} of the variables on this rank)"
                elif array_row is None:
                    where += f" (row batch[{row}] of the arrays)"
                elif array_row != row:
                    where += f" (row {array_row} of the arrays)"
            if share is not None:
                where += f", of this rank's rows {share[0]} to {share[1] - 1}"
            where += ": "
        of_slice = f", slice {execution.piece}" if execution.piece else ""
        undone = ". Nothing has changed on any rank" if self._here.journal.on else ""
        return NotFinite(
            f"function {execution.loaded.recipe.name!r} on rank {rank}{of_slice}: got {got} in "
            f"{what}, expected finite numbers. {where}{cause.source}{undone}.",
            rank=rank,
            piece=execution.piece or None,
            what=what,
            source=cause.source,
            row=row,
            rows=rows,
            array_row=array_row,
            share=share,
        )

    # The causes, in the order in which they are looked for.

    def _of_inputs(self) -> Optional[_Cause]:
        inputs = self._execution.function.maker.inputs
        # What comes after the inputs selects rows, and is made of whole numbers.
        for place, array in enumerate(self._arguments):
            if is_finite(array):
                continue
            name = inputs[place].variable.name or inputs[place].name or f"number {place}"
            if place < len(self._call.scattered):
                row, text = _first_row(array)
                return _Cause(f"input {name!r} has {text} of it", (row, row + 1), place)
            return _Cause(f"Broadcast input {name!r} has {_described(array)}")
        return None

    def _of_variables(self) -> Optional[_Cause]:
        sliceable, registry = self._execution.loaded.recipe.sliceable, self._here.registry
        for variable in self._execution.function.get_shared():
            value = value_of(variable)
            if not is_array(value) or is_finite(value):
                continue
            name = repr(variable.name) if variable.name else str(variable)
            if registry.known_number(variable.container.storage) in sliceable:
                rows = on_host(value) if self._select is None else on_host(value)[self._selected]
                if is_finite(rows):
                    continue
                if len(rows) == self._count_rows():
                    row, text = _first_row(rows)
                    source = f"sliceable shared variable {name} has {text} of it"
                    return _Cause(source, (row, row + 1))
            return _Cause(f"Shared variable {name} had {_described(value)} before the call")
        return None

    def _of_rows(self, suspect: Suspect) -> _Cause:
        count = self._count_rows()
        if not count:
            return _Cause("all inputs and variables are finite, and there are no rows")
        if not self._here.journal.on:
            return _Cause(
                "all inputs are finite; fork(atomic=False) overwrites the old values, so the row "
                "that causes it cannot be searched for"
            )
        try:
            found = search(lambda start, stop: self._is_bad(suspect, start, stop), count)
        except Exception as error:  # noqa: BLE001 - whatever a function does with fewer rows
            return _Cause(
                f"all inputs and variables are finite; the row that causes it was not found, "
                f"because for fewer rows the function raised {type(error).__name__}"
            )
        finally:
            self._restore()
        if found is None:
            return _Cause(
                "all inputs and variables are finite, and when the same rows were computed again "
                "the result was finite as well: the cause is random numbers, or the other ranks' "
                "contributions"
            )
        if not found.alone:
            source = "together they reproduce it, without the last one they do not"
            return _Cause(source, (0, found.length))
        if count == 1:
            source = "it is the only row that was computed, and its inputs are finite"
        elif found.every:
            source = (
                "that row alone reproduces it, but so does every other row that was tried: look at "
                "the variables and constants that all rows share"
            )
        else:
            source = "that row alone reproduces it"
        return _Cause(source, (found.length - 1, found.length))

    def _is_bad(self, suspect: Suspect, start: int, stop: int) -> bool:
        """Return whether the suspect is not finite either if only these rows are computed."""
        self._here.flight.heed(self._here.serial)
        self._restore()
        probe, arguments, kept = _Probe(), list(self._arguments), []
        for place in range(len(self._call.scattered)):
            arguments[place] = arguments[place][start:stop]
        if self._select == "range":
            first = int(arguments[-2])
            arguments[-2:] = [np.asarray(first + start), np.asarray(first + stop)]
        elif self._select == "index":
            arguments[-1] = arguments[-1][start:stop]
        else:
            whole = self._count_rows()
            kept = [(held, held[0]) for held in self._sliceables() if held[0].shape[0] == whole]
        try:
            for storage, value in kept:
                storage[0] = value[start:stop]
            results = self._execution.launch(arguments, probe)
            if suspect[0] == "sent":
                return suspect[1] in probe.bad
            computed = self._computed(results)
            return any(one == suspect and not is_finite(value) for one, value in computed)
        finally:
            for storage, value in kept:
                storage[0] = value

    def _restore(self) -> None:
        for storage, value in self._changed:
            storage[0] = value

    # The rows of an execution.

    def _sliceables(self) -> List[List[Any]]:
        """Return the storages of sliceable variables."""
        numbers = self._execution.loaded.recipe.sliceable
        return [self._here.registry[number].container.storage for number in numbers]

    @property
    def _selected(self) -> np.ndarray:
        """The rows of sliceable variables that the execution uses, where it selects some."""
        if self._select == "range":
            return np.arange(int(self._arguments[-2]), int(self._arguments[-1]))
        return self._arguments[-1]

    def _count_rows(self) -> Optional[int]:
        """Count the rows; None for an execution that has none."""
        if self._call.scattered:
            return len(self._arguments[0])
        if self._select is not None:
            return len(self._selected)
        return min((int(held[0].shape[0]) for held in self._sliceables()), default=None)

    def _array_row(self, row: int, place: int) -> Optional[int]:
        """Return the row of the user's array for a row of the selection; None if it is unknown."""
        execution, rows = self._execution, self._call.rows
        if rows is None or not self._call.scattered:
            return row if self._select is None else int(self._selected[row - execution.begin])
        item = self._call.scattered[place]
        if item.minibatch and item.selected:
            return row
        if rows.index is not None:
            found = int(self._here.arrays.get(rows.index)[row])
        elif rows.is_regular:
            found = rows.first(execution.origin) + row * rows.step
        else:
            return None
        return found - (execution.origin if item.minibatch else 0)


class _Probe:
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


class Found(NamedTuple):
    """The result of a search for rows.

    Attributes:
        length: rows from the beginning that are bad together; one row fewer is not.
        alone: whether the last of these rows is bad by itself.
        every: whether other rows are bad by themselves too: then no single row is the cause.
    """

    length: int
    alone: bool
    every: bool


def search(is_bad: Callable[[int, int], bool], count: int) -> Optional[Found]:
    """Find the smallest beginning of ``range(count)`` that is bad, in about log2(count) tests.

    Assumes that rows added to a bad beginning leave it bad, as where one NaN makes all NaN.

    Args:
        is_bad: whether the rows ``start:stop``, never empty, are bad by themselves.

    Returns:
        None if all rows together are not bad (any more).

    >>> search(lambda start, stop: start <= 5 < stop, 100)
    Found(length=6, alone=True, every=False)
    """
    if not count or not is_bad(0, count):
        return None
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        if is_bad(0, middle):
            bad = middle
        else:
            good = middle
    alone = bad == 1 or is_bad(bad - 1, bad)
    others = {count // 2, count - 1} - {0}
    every = bad == 1 and bool(others) and all(is_bad(row, row + 1) for row in others)
    return Found(bad, alone, every)


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


def _first_row(array: np.ndarray) -> Tuple[int, str]:
    """Return the first row of an array that is not finite, and its first bad element in words."""
    finite = np.isfinite(array).reshape(len(array), -1).all(axis=1)
    row = int(np.argmin(finite))
    return row, _described(np.asarray(array[row]))


def _described(value: Any) -> str:
    """Describe the first element that is not finite: "nan at [0, 3]"."""
    array = np.asarray(on_host(value))
    place = np.unravel_index(int(np.argmin(np.isfinite(array))), array.shape)
    kind = "nan" if np.isnan(array[place]) else "inf"
    return kind + (f" at {[int(i) for i in place]}" if array.ndim else "")
