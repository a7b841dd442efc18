"""Data and validation: copy arrays to shared memory once, and compute means over all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import synkhronos as synk

from ._arguments import require_distinct, require_rows


def placed(function: Any, values: Any, what: str) -> tuple[Any, ...]:
    """Return data sets as ``function`` needs them: in shared memory if it is parallel.

    Args:
        function: Has ``build_inputs`` if its values have to be copied.
        values: An array or ``Data``, or a sequence of them, one per input.
        what: Name of the argument, for errors.

    Raises:
        ValueError: There is nothing to divide into batches, or the inputs' rows differ.
    """
    values = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    if not values:
        raise ValueError(f"{what} is empty; expected one array or Data for each input")
    if not all(isinstance(value, synk.Data) for value in values):
        if hasattr(function, "build_inputs"):
            built = function.build_inputs(*values)
            values = built if isinstance(built, tuple) else (built,)
        else:
            values = tuple(np.asarray(value) for value in values)
    # A plain function divides all inputs, the others only those that are scattered.
    divided = function.spec if isinstance(function, synk.Function) else function
    require_rows(values[: getattr(divided, "n_scattered", None)], what)
    return values


class Validation:
    """Compute the outputs of a function over the validation set, as means over rows.

    Args:
        function: A ``synkhronos.Function``, whose averages are exact over ranks and slices; or any
            callable, such as a compiled Theano function, whose outputs are means over its rows.
        data: An array or ``Data``, or a sequence of them, one per input.
        num_slices: Number of slices, computed one after the other to save memory.
        names: Names of all outputs but the first, for the log.

    Raises:
        ValueError: ``num_slices`` is less than 1, or the names or rows do not fit.
    """

    def __init__(self, function: Any, data: Any, num_slices: int, names: Sequence[str]) -> None:
        require_distinct(names, "valid_names")
        self._function = function
        if num_slices < 1:
            raise ValueError(f"valid_slices is {num_slices}; expected at least 1")
        self._data = placed(function, data, "valid_data")
        self._num_slices = num_slices
        self.columns = ["valid_loss", *(f"valid_{name}" for name in names)]
        count = _number_of_outputs(function)
        if count is not None:
            self._check(count)

    def __call__(self) -> dict[str, float]:
        """Return the means, by the names of the log's columns.

        Raises:
            ValueError: The function returns the wrong number of outputs.
        """
        if isinstance(self._function, synk.Function):
            outputs = as_list(self._function(*self._data, num_slices=self._num_slices))
        else:
            outputs = self._weighted()
        self._check(len(outputs))
        return {name: scalar(name, value) for name, value in zip(self.columns, outputs)}

    def _check(self, count: int) -> None:
        if count != len(self.columns):
            raise ValueError(
                f"valid returns {count} outputs; expected {len(self.columns)}, for {self.columns}: "
                "give valid_names, a name for each output but the first"
            )

    def _weighted(self) -> list[Any]:
        """Return the means over slices, weighted by rows."""
        rows = len(self._data[0])
        sums: list[Any] = []
        for part in np.array_split(np.arange(rows), min(self._num_slices, max(rows, 1))):
            place = slice(part[0], part[-1] + 1) if len(part) else slice(0)
            outputs = as_list(self._function(*(np.asarray(value)[place] for value in self._data)))
            share = len(part) / max(rows, 1)
            weighted = [share * np.asarray(value, dtype="float64") for value in outputs]
            sums = [a + b for a, b in zip(sums, weighted)] if sums else weighted
        return sums


def _number_of_outputs(function: Any) -> int | None:
    """Return the number of a function's outputs, or None if it is unknown."""
    if isinstance(function, synk.Function):
        return len(function.output_modes)
    outputs = getattr(getattr(function, "maker", None), "outputs", None)  # of Theano
    return None if outputs is None else len(outputs)


def as_list(outputs: Any) -> list[Any]:
    """Return one output or several as a list."""
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def scalar(name: str, value: Any) -> float:
    """
    Raises:
        TypeError: The value is more than one number.
    """
    if np.size(value) != 1:
        raise TypeError(
            f"{name} has the shape {np.shape(value)}; the Trainer needs scalar outputs: "
            "take the mean over the rows, or write your own loop for this output"
        )
    return float(np.asarray(value).reshape(()))
