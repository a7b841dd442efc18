"""Results of several slices -> one result, exactly.

``avg`` weighs each slice by its rows: sum(rows * value) / sum(rows), in the value's own
precision (float16 in float32), so that the result does not depend on how rows were sliced,
but for rounding.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

import numpy as np

from . import _device_sums
from ._values import concatenated, is_on_device
from .exceptions import InputValueError, OpError

_COMBINE: Dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


class Accumulator:
    """One output's or update's values over the slices of a call."""

    def __init__(self, op: Optional[str], what: str) -> None:
        if op is None:
            raise OpError(
                f"{what}: got op None with num_slices > 1, expected an op that accumulates over "
                f"slices ('avg', 'sum', 'max', 'min', 'prod', 'gather')"
            )
        self._op = op
        self._what = what
        self._value: Any = None
        self._weight = 0.0
        self._parts: List[Any] = []
        self._dtype: Any = None

    def add(self, value: Any, rows: float) -> None:
        """Take in the value of a slice of so many rows.

        Raises:
            InputValueError: its shape is another than that of the slices before.
        """
        value = value if is_on_device(value) else np.asarray(value)
        held = self._value
        if held is not None and self._op != "last" and held.shape != value.shape:
            raise InputValueError(
                f"{self._what}: slices gave shapes {held.shape} and {value.shape}, which op "
                f"{self._op!r} cannot combine; an output with an entry for each row needs op "
                f"'gather', as in (variable, 'gather')"
            )
        self._dtype = value.dtype
        if is_on_device(value):
            self._add_on_device(value, rows)
        elif self._op == "avg":
            if value.dtype == np.float16:
                value = value.astype(np.float32)
            value = value * value.dtype.type(rows)
            self._weight += rows
            self._value = value if self._value is None else self._value + value
        elif self._op == "gather":
            self._parts.append(np.atleast_1d(value))
        elif self._op == "last" or self._value is None:
            self._value = value
        else:
            self._value = _COMBINE[self._op](self._value, value)

    def _add_on_device(self, value: Any, rows: float) -> None:
        if self._op == "avg":
            self._weight += rows
            if self._value is None:
                self._value = _device_sums.scaled(value, rows)
            else:
                _device_sums.add_scaled(self._value, value, rows)
        elif self._op == "gather":
            self._parts.append(value if value.ndim else value.reshape((1,)))
        elif self._op == "last" or self._value is None:
            self._value = value
        else:
            _device_sums.combine(self._op, self._value, value)

    def result(self) -> Any:
        """The value for all slices taken in so far (at least one), where the slices' lie."""
        if self._op == "gather":
            return concatenated(self._parts)
        value = self._value
        if is_on_device(value):
            return (
                _device_sums.quotient(value, self._weight, self._dtype) if self._weight else value
            )
        if self._op == "avg":
            value = value / np.asarray(value).dtype.type(self._weight)
        return np.asarray(value, dtype=self._dtype)
