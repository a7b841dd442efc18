"""Data and validation: copy arrays to shared memory once, and compute means over all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import synkhronos as synk
from synk_core import RowSource

from ._arguments import LOSS, at_least_one, require_first_axis
from ._serial import combine


def placed(function: Any, values: Any, what: str) -> tuple[Any, ...]:
    """Return data sets as ``function`` needs them: in shared memory if it is parallel.

    If the rows of one are in a file, all stay where they are; scattered ones are returned as
    sources of rows. ``what`` is the name of the argument, for errors.
    """
    values = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    if not values:
        raise ValueError(f"{what} is empty; expected one array or Data for each input")
    # A plain function divides all inputs, the others only those that are scattered.
    divided = function.spec if isinstance(function, synk.Function) else function
    axes = getattr(divided, "row_axes", (0,) * len(values))
    scattered = len(axes)
    if any_source(values[:scattered]):
        require_first_axis(axes)
        whole = tuple(np.asarray(value) for value in values[scattered:])
        values = (*map(as_source, values[:scattered]), *whole)
    elif not all(isinstance(value, synk.Data) for value in values):
        if hasattr(function, "build_inputs"):
            built = function.build_inputs(*values)
            values = built if isinstance(built, tuple) else (built,)
        else:
            values = tuple(np.asarray(value) for value in values)
    rows = [item.shape[axis] if item.ndim > axis else "no" for item, axis in zip(values, axes)]
    if len(set(rows)) > 1 or "no" in rows:
        raise ValueError(f"{what} has {rows} rows; expected the same number for all inputs")
    return values


def number_of_rows(function: Any, values: Sequence[Any]) -> int:
    """Return the number of rows of data sets that are `placed`."""
    return int(values[0].shape[(*getattr(function, "row_axes", ()), 0)[0]])


def any_source(values: Sequence[Any]) -> bool:
    """Return whether the rows of one of these are not in memory."""
    return any(RowSource.of(value) is not None for value in values)


def as_source(value: Any) -> RowSource:
    """Return a source of the rows of any array or ``Data``."""
    array = value.array if isinstance(value, synk.Data) else value
    return RowSource.of(value) or RowSource(np.asarray(array))


class Validation:
    """Compute the outputs of a function over the validation set, as means over rows.

    The arguments are those of the Trainer whose names begin with "valid".
    """

    def __init__(self, function: Any, data: Any, num_slices: int, names: Sequence[str]) -> None:
        if len({LOSS, *names}) != 1 + len(names):
            raise ValueError(
                f"valid_names is {list(names)}; expected different names, none of them {LOSS!r}, "
                "which is the first output"
            )
        self._function = function
        self._num_slices = at_least_one("valid_slices", num_slices)
        self._data = placed(function, data, "valid_data")
        self.columns = ["valid_loss", *(f"valid_{name}" for name in names)]
        if isinstance(function, synk.Function):
            self._check(len(function.output_modes))
        elif (outputs := getattr(getattr(function, "maker", None), "outputs", None)) is not None:
            self._check(len(outputs))  # of a plain function

    def __call__(self) -> dict[str, float]:
        """Return the means, by the names of the log's columns."""
        if isinstance(self._function, synk.Function) and not any_source(self._data):
            outputs = as_list(self._function(*self._data, num_slices=self._num_slices))
        else:
            outputs = self._sliced()
        self._check(len(outputs))
        return {name: scalar(name, value) for name, value in zip(self.columns, outputs)}

    def _check(self, count: int) -> None:
        if count != len(self.columns):
            raise ValueError(
                f"valid returns {count} outputs; expected {len(self.columns)}, for {self.columns}: "
                "give valid_names, a name for each output but the first"
            )

    def _sliced(self) -> list[Any]:
        """Return the outputs over all rows, from a call for each slice: of a plain function their
        means, weighted by rows."""
        rows = len(self._data[0])
        parallel = isinstance(self._function, synk.Function)
        results, weights = [], []
        for part in np.array_split(np.arange(rows), min(self._num_slices, max(rows, 1))):
            place = slice(part[0], part[-1] + 1) if len(part) else slice(0)
            if parallel:
                outputs = self._function(*self._data, batch=place)
            else:
                outputs = self._function(*(value[place] for value in self._data))
            results.append([np.asarray(value, dtype="float64") for value in as_list(outputs)])
            weights.append(len(part))
        ops = self._function.output_modes if parallel else ["avg"] * len(results[0])
        return [combine(op, values, weights) for op, values in zip(ops, zip(*results))]


def as_list(outputs: Any) -> list[Any]:
    """Return one output or several as a list."""
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def scalar(name: str, value: Any) -> float:
    """Return one number as a float; raise TypeError if it is several."""
    if np.size(value) != 1:
        raise TypeError(
            f"{name} has the shape {np.shape(value)}; the Trainer needs scalar outputs: "
            "take the mean over the rows, or write your own loop for this output"
        )
    return float(np.asarray(value).reshape(()))
