"""Combine the results of several slices into one, exactly.

``avg`` weighs each slice by its rows: sum(rows * value) / sum(rows), in the value's own
precision (float16 in float32), so that the result does not depend on how rows were sliced,
but for rounding.
"""

from __future__ import annotations

from typing import Any, List, Optional

import numpy as np

from synk_theano._graph.devices import sums as device_sums
from synk_theano._graph.values import at_least_1d, concatenated, is_on_device
from synk_theano._text import shown
from synk_theano.exceptions import InputValueError, OpError

from . import host_sums


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
        self._sums: Any = host_sums

    def add(self, value: Any, rows: float) -> None:
        """Add the value of a slice with `rows` rows.

        Raises:
            InputValueError: its shape differs from that of earlier slices.
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
        self._sums = device_sums if is_on_device(value) else host_sums
        if self._op == "avg":
            self._weight += rows
            self._value = (
                self._sums.scaled(value, rows)
                if held is None
                else self._sums.add_scaled(held, value, rows)
            )
        elif self._op == "gather":
            self._parts.append(at_least_1d(value))
        elif self._op == "last" or held is None:
            self._value = value
        else:
            self._value = self._sums.combine(self._op, held, value)

    def result(self) -> Any:
        """Return the value of all slices so far (at least one), in the memory of the slices.

        Raises:
            InputValueError: the rows to gather have different shapes.
        """
        if self._op == "gather":
            try:
                return concatenated(self._parts)
            except ValueError:
                shapes = [part.shape for part in self._parts]
                raise InputValueError(
                    f"{self._what}: an output with op 'gather' has shapes that differ in more than "
                    f"their length: by slice {shown(shapes)}"
                ) from None
        if self._op == "avg":
            return self._sums.quotient(self._value, self._weight, self._dtype)
        return self._value
