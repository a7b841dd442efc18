"""Check after each execution that all is finite, while `watch_finite()` is on, and find the cause.

Each rank checks its own results. A value that is not finite fails the call there, like any error in
a function. Before that the rank looks for the cause: in the inputs, in the shared variables, and
then by running the function again by itself, from the old values, on fewer of its first rows.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from synk_core._graph.reduce_op import AllReduce, alone, meeting
from synk_core._graph.shared import changed_by, value_of
from synk_core._graph.values import is_array, on_host
from synk_core._rank.call import Execution
from synk_core._rank.workplace import Workplace
from synk_core.exceptions import NotFinite

Suspect = Tuple[str, int]
"""An "output", "update" or "sent" (to an in-graph reduction), and its place or variable number."""

Cause = Tuple[str, Optional[int]]
"""A cause in words, and the row of the execution that it is, if it is one."""


def watch_finite(here: Workplace, on: bool) -> bool:
    """Check from now on, or stop checking; return whether this rank checked before."""
    was_on = here.check[0] is not None
    # If a rank fails here, the others switch back too.
    here.journal.keep([here.check])
    here.check[0] = (lambda execution: _Check(here, execution).run()) if on else None
    return was_on


class _NotSent(Exception):
    """This rank's contribution to an in-graph reduction is not finite: its place and value."""


class _Contributions:
    """Checks this rank's contributions to one execution's in-graph reductions; may stand in for
    `GraphReductions`, and then each reduction returns the contribution, as on one rank."""

    def __init__(self) -> None:
        self._places = itertools.count()

    def check(self, value: np.ndarray) -> None:
        """Raise `_NotSent` if the next contribution is not finite."""
        place = next(self._places)
        if not is_finite(value):
            raise _NotSent(place, value)

    def execute(self, function: Any, arguments: Sequence[Any]) -> Any:
        """Run the function."""
        with meeting(self):
            return function(*arguments)

    def all_reduce(self, x: np.ndarray, op: AllReduce) -> np.ndarray:
        """Return the result of a single rank; called in the middle of a graph."""
        self.check(x)
        return alone(x, op)


class _Check:
    """Checks one execution, and looks for the cause of a failure. Made before it runs."""

    def __init__(self, here: Workplace, execution: Execution) -> None:
        self._here, self._execution = here, execution
        self._call, self._arguments = execution.call, execution.arguments
        self._function = execution.loaded.forms[execution.call.form]
        self._changed = [(storage, storage[0]) for storage in changed_by(self._function)]

    def run(self) -> List[Any]:
        """Run the function; raise `NotFinite` if a result, or a contribution to an in-graph
        reduction, is not finite."""
        reductions = self._execution.in_graph
        if reductions is not None:
            reductions.watch = _Contributions().check
        try:
            execute = None if reductions is None else reductions.execute
            results = self._execution.launch(self._arguments, execute)
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
        """Yield the computed values: wanted outputs, then new values of variables."""
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
        """Return the error for a value that is not finite, with its cause."""
        execution, rank, got = self._execution, self._here.rank, _described(value)
        kind, place = suspect
        if kind == "output":
            name = self._function.maker.outputs[place].variable.name
            what = f"output {place}" + (f" ({name!r})" if name else "")
        elif kind == "update":
            what = f"the new value of {self._here.registry.label(place)!r}"
        else:
            what = f"the input of in-graph all_reduce {place}"
        self._restore()
        source, bad_row = self._of_inputs() or self._of_variables() or self._of_rows(suspect)
        share = None if self._call.rows is None else self._call.rows.bounds[rank]
        row = None if bad_row is None else execution.begin + bad_row
        where = "" if row is None else f"Caused by row {row} of the call: "
        of_rows = f", rows {share[0]} to {share[1] - 1}" if share and share[1] > share[0] else ""
        of_slice = f", slice {execution.piece}" if execution.piece else ""
        undone = ". Nothing has changed on any rank" if self._here.journal.on else ""
        return NotFinite(
            f"function {execution.loaded.recipe.name!r} on rank {rank}{of_rows}{of_slice}: "
            f"got {got} in {what}, expected finite numbers. {where}{source}{undone}.",
            rank=rank,
            piece=execution.piece or None,
            what=what,
            source=source,
            row=row,
            share=share,
        )

    def _of_inputs(self) -> Optional[Cause]:
        # The arguments after the inputs select rows, and are whole numbers.
        for place, array in enumerate(self._arguments):
            if is_finite(array):
                continue
            given = self._function.maker.inputs[place]
            name = given.variable.name or given.name or f"number {place}"
            if place >= len(self._call.scattered):
                return f"Broadcast input {name!r} has {_described(array)}", None
            array = np.moveaxis(array, self._call.scattered[place].axis, 0)
            row = _first_bad(array)[0]
            return f"input {name!r} has {_described(array[row])} of it", row
        return None

    def _of_variables(self) -> Optional[Cause]:
        for variable in self._function.get_shared():
            value = value_of(variable)
            if is_array(value) and not is_finite(value):
                name = repr(str(variable))
                return f"Shared variable {name} had {_described(value)} before the call", None
        return None

    def _of_rows(self, suspect: Suspect) -> Cause:
        count = self._count_rows()
        if not count or not self._here.journal.on:
            # Without a journal there are no old values to begin with again.
            return "all inputs and variables are finite, and no rows can be searched", None
        try:
            row = last_of_bad(lambda stop: self._is_bad(suspect, stop), count)
        except Exception as error:  # noqa: BLE001 - whatever a function does with fewer rows
            return (
                f"all inputs and variables are finite; the row that causes it was not found, "
                f"because for fewer rows the function raised {type(error).__name__}"
            ), None
        finally:
            self._restore()
        if row is not None:
            return "the rows before it give finite numbers, with it they do not", row
        return (
            "all inputs and variables are finite, and the same rows computed again give finite "
            "numbers: the cause is random numbers, or the other ranks' contributions"
        ), None

    def _is_bad(self, suspect: Suspect, stop: int) -> bool:
        """Return whether the suspect of the rows before `stop` alone is not finite either."""
        self._here.flight.raise_if_interrupted(self._here.serial)
        self._restore()
        arguments = list(self._arguments)
        for place, item in enumerate(self._call.scattered):
            arguments[place] = arguments[place][(slice(None),) * item.axis + (slice(stop),)]
        if self._call.form.select == "range":
            arguments[-1] = np.asarray(int(arguments[-2]) + stop)
        elif self._call.form.select == "index":
            arguments[-1] = arguments[-1][:stop]
        try:
            results = self._execution.launch(arguments, _Contributions().execute)
        except _NotSent:
            return True
        return not is_finite(dict(self._computed(results)).get(suspect))

    def _restore(self) -> None:
        for storage, value in self._changed:
            storage[0] = value

    def _count_rows(self) -> int:
        """Return the number of rows of the execution: 0 for whole sliceable variables."""
        if self._call.scattered:
            return int(self._arguments[0].shape[self._call.scattered[0].axis])
        if self._call.form.select == "range":
            return int(self._arguments[-1]) - int(self._arguments[-2])
        return len(self._arguments[-1]) if self._call.form.select == "index" else 0


def last_of_bad(is_bad: Callable[[int], bool], count: int) -> Optional[int]:
    """Return the last row of the smallest bad beginning of ``range(count)``; None if all is good.

    Calls `is_bad` with the length of a beginning about log2(count) times. Assumes that rows added
    to a bad beginning leave it bad, as one NaN makes all NaN.
    """
    if not is_bad(count):
        return None
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if is_bad(middle) else (middle, bad)
    return bad - 1


def is_finite(value: Any) -> bool:
    """Return whether no element of an array, on any device, is NaN or infinite. Everything but
    floats is finite."""
    array = np.asarray(on_host(value))
    if array.dtype.kind not in "fc":
        return True
    # The sum is finite only if each element is; it may overflow, so check those then.
    wide = np.float32 if array.dtype == np.float16 else None
    with np.errstate(all="ignore"):
        total = np.add.reduce(array, axis=None, dtype=wide)
    return bool(np.isfinite(total)) or bool(np.isfinite(array).all())


def _first_bad(array: np.ndarray) -> List[int]:
    """Return the index of the first element that is not finite."""
    return [int(i) for i in np.unravel_index(np.argmin(np.isfinite(array)), array.shape)]


def _described(value: Any) -> str:
    """Describe the first element that is not finite: "nan at [0, 3]"."""
    array = np.asarray(on_host(value))
    place = _first_bad(array)
    kind = "nan" if np.isnan(array[tuple(place)]) else "inf"
    return kind + (f" at {place}" if place else "")
