"""Compare the results of a run with the expected ones, and decide what counts as rounding."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import numpy as np

from synk_core.exceptions import InputValueError

from .report import Comparison, Difference, largest_magnitude, measure

PIECES_LIMIT = 16.0
"""Epsilons by which the same computation may differ on another rank."""

SERIAL_LIMIT = 16.0
"""Epsilons by which sums in another order may differ, divided by the root of the number of rows."""


class Judge:
    """Makes the comparisons of one run.

    Args:
        run: name of the run.
        rows: number of rows of the whole call.
        limit: epsilons, in place of the two limits above.
        found: receives the comparisons.
        alone: whether a piece can be computed alone; else pieces are not compared.
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
        self._add(what, op, "pieces", difference, self._pieces_limit)

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
            parts: the pieces' results, for the magnitude of the summands.
            disturbed: computes the serial result again from numbers that differ by one rounding.
                It is called only if the limit is exceeded: if such numbers change the result as
                much, like a gradient that is 0 but for rounding, no digit of it has a meaning.
        """
        expected = _as_collected(expected, op)
        scale = _scale(op, parts)
        difference = measure(got, expected, scale)
        if self._serial_limit < difference.error < np.inf:
            noise = measure(_as_collected(disturbed(), op), expected, scale).error
            if np.isfinite(noise) and noise > 1.0:
                difference = difference.in_units_of(noise)
        self._add(what, op, "serial", difference, self._serial_limit)

    def unchanged(self, what: str, op: Optional[str], got: Any, before: Any) -> None:
        """Compare with the value before the call, to which it must be equal to the bit."""
        self._add(what, op, "before", measure(got, before), 0.0)

    def _add(
        self, what: str, op: Optional[str], against: str, difference: Difference, limit: float
    ) -> None:
        self._found.append(Comparison(what, op, self._run, against, difference, float(limit)))


def combine(op: Optional[str], parts: Sequence[Any], weights: Sequence[float]) -> np.ndarray:
    """Return the parts' values combined, computed in higher precision, for comparison only.

    Args:
        weights: rows of each part, used for "avg": ``sum(w * v) / sum(w)``.
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
    """Return the magnitude of the summands; 0 for other ops, for which the result's counts."""
    magnitudes = [largest_magnitude(part) for part in parts]
    if op == "sum":
        return sum(magnitudes)
    return max(magnitudes, default=0.0) if op in ("avg", "last") else 0.0


def _as_collected(expected: Any, op: Optional[str]) -> Any:
    """Return a serial result as collected: `gather` makes a vector of scalars."""
    return np.atleast_1d(expected) if op == "gather" else expected
