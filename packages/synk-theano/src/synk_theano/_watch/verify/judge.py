"""Compares what one run gave with what it should have given, and decides what is rounding."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import numpy as np

from synk_theano.exceptions import InputValueError

from .report import Comparison, Difference, largest_magnitude, measure

PIECES_LIMIT = 16.0
"""Epsilons that the same computation may differ by on another rank."""

SERIAL_LIMIT = 16.0
"""Epsilons, times the root of the number of rows, for sums in another order."""


class Judge:
    """Notes comparisons of one run.

    Args:
        run: its name.
        rows: of the whole call.
        limit: epsilons, in place of the two limits above.
        found: takes the comparisons.
        alone: whether pieces give alone what they give together; else they are not compared.
    """

    def __init__(
        self,
        run: str,
        rows: int,
        limit: Optional[float],
        found: List[Comparison],
        alone: bool = True,
    ) -> None:
        self._run, self._found, self._alone = run, found, alone
        self._pieces_limit = PIECES_LIMIT if limit is None else limit
        self._serial_limit = SERIAL_LIMIT * np.sqrt(max(rows, 1)) if limit is None else limit

    def pieces(
        self, what: str, op: Optional[str], got: Any, parts: Sequence[Any], weights: Sequence[float]
    ) -> None:
        """Compare with plain Theano's results for the pieces, combined."""
        if not self._alone:
            return
        expected = parts[0] if len(parts) == 1 else combine(op, parts, weights)
        difference = measure(got, _as_collected(expected, op), _scale(op, parts))
        self._note(what, op, "pieces", difference, self._pieces_limit)

    def serial(
        self,
        what: str,
        op: Optional[str],
        got: Any,
        expected: Any,
        parts: Sequence[Any],
        disturbed: Callable[[], Any],
    ) -> None:
        """Compare with plain Theano's result for all rows.

        Args:
            parts: the pieces' results, for the magnitude of what was added up.
            disturbed: computes the serial result again from numbers that differ by one
                rounding. It is called only if the limit is exceeded: where that alone changes
                the result as much, as it does a gradient that is 0 but for rounding, no digit
                of it means anything.
        """
        expected = _as_collected(expected, op)
        scale = _scale(op, parts)
        difference = measure(got, expected, scale)
        if self._serial_limit < difference.error < np.inf:
            noise = measure(_as_collected(disturbed(), op), expected, scale).error
            if np.isfinite(noise) and noise > 1.0:
                difference = difference.in_units_of(noise)
        self._note(what, op, "serial", difference, self._serial_limit)

    def unchanged(self, what: str, op: Optional[str], got: Any, before: Any) -> None:
        """Compare with the value before the call: equal, to the bit."""
        self._note(what, op, "before", measure(got, before), 0.0)

    def _note(
        self, what: str, op: Optional[str], against: str, difference: Difference, limit: float
    ) -> None:
        self._found.append(Comparison(what, op, self._run, against, difference, float(limit)))


def combine(op: Optional[str], parts: Sequence[Any], weights: Sequence[float]) -> np.ndarray:
    """The parts' values as one, in higher precision than theirs: for comparison only.

    Args:
        weights: rows of each part; they count for "avg": ``sum(w * v) / sum(w)``.
    """
    try:
        return _combined(op, [np.asarray(part) for part in parts], weights)
    except ValueError as error:
        shapes = [np.shape(part) for part in parts]
        raise InputValueError(
            f"results of the pieces, of shapes {shapes}, cannot be combined by op {op!r}; an "
            f"output with an entry for each row needs op 'gather', as in (variable, 'gather')"
        ) from error


def _combined(op: Optional[str], arrays: List[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    dtype = arrays[0].dtype
    if op == "gather":
        return np.concatenate([np.atleast_1d(array) for array in arrays])
    if op is None or op == "last":
        return arrays[-1]
    stacked = np.stack(arrays)
    if op in ("max", "min"):
        return np.asarray((np.maximum if op == "max" else np.minimum).reduce(stacked))
    wide = {"f": np.longdouble, "c": np.clongdouble}.get(dtype.kind, dtype)
    stacked = stacked.astype(wide)
    with np.errstate(all="ignore"):
        if op == "sum":
            result = np.sum(stacked, axis=0, dtype=wide)
        elif op == "prod":
            result = np.prod(stacked, axis=0, dtype=wide)
        else:
            factors = np.asarray(weights, np.longdouble) / np.longdouble(sum(weights))
            result = np.sum(stacked * factors.reshape(-1, *[1] * (stacked.ndim - 1)), axis=0)
        return np.asarray(result).astype(dtype)


def _scale(op: Optional[str], parts: Sequence[Any]) -> float:
    """The magnitude of what was added up; only sums and averages have any but the result's."""
    magnitudes = [largest_magnitude(part) for part in parts]
    if op == "sum":
        return sum(magnitudes)
    return max(magnitudes, default=0.0) if op in ("avg", "last") else 0.0


def _as_collected(expected: Any, op: Optional[str]) -> Any:
    """`gather` makes a vector of scalars, which serially stay scalars."""
    return np.atleast_1d(expected) if op == "gather" else expected
