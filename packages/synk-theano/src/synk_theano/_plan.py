"""Which rank computes which rows. Pure: no processes, no Theano.

The one rule, everywhere: rows are split into contiguous shares in rank order whose sizes differ
by at most one, larger shares first. A share is split into slices by the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from .exceptions import BatchError, InputValueError

Bounds = Tuple[int, int]


def split_rows(count: int, parts: int) -> List[Bounds]:
    """Split ``range(count)`` into `parts` contiguous (start, stop) shares, larger shares first.

    >>> split_rows(5, 3)
    [(0, 2), (2, 4), (4, 5)]
    """
    base, extra = divmod(count, parts)
    stops = [base * (i + 1) + min(i + 1, extra) for i in range(parts)]
    return list(zip([0, *stops[:-1]], stops))


@dataclass(frozen=True, eq=False)
class Selection:
    """The rows of every scattered input that a call uses, in the order of use.

    Either a progression (``start``, ``step``, ``count``) or an ``index`` (int64, shape
    ``(count,)``). ``lowest`` is the smallest row used: inputs that hold only a minibatch are
    counted from it.
    """

    count: int
    start: int = 0
    step: int = 1
    index: Optional[np.ndarray] = None

    @property
    def lowest(self) -> int:
        if self.count == 0:
            return 0
        if self.index is not None:
            return int(self.index.min())
        return min(self.start, self.start + self.step * (self.count - 1))

    @property
    def highest(self) -> int:
        if self.count == 0:
            return -1
        if self.index is not None:
            return int(self.index.max())
        return max(self.start, self.start + self.step * (self.count - 1))


def select(batch: Any, length: int, what: str = "batch") -> Selection:
    """Turn a user's `batch` into a Selection of ``range(length)``.

    Args:
        batch: None (all rows), int (the first so many), slice with any step, 1-d list or array of
            integers (negative ones count from the end), or a boolean mask of shape ``(length,)``.
        length: number of rows there are.

    Raises:
        BatchError: if it asks for rows that are not there (slices are not clipped silently).
        InputValueError: if it is of no such kind.
    """
    if batch is None:
        return Selection(length)
    if isinstance(batch, (int, np.integer)) and not isinstance(batch, (bool, np.bool_)):
        batch = slice(None, int(batch))
    if isinstance(batch, range):
        batch = np.arange(batch.start, batch.stop, batch.step)
    if isinstance(batch, slice):
        return _select_slice(batch, length, what)
    return _select_index(batch, length, what)


def _select_slice(batch: slice, length: int, what: str) -> Selection:
    for name, bound in (("start", batch.start), ("stop", batch.stop)):
        if bound is not None and not -length <= bound <= length:
            raise BatchError(
                f"{what}: got {name} {bound}, but there are only {length} rows; "
                f"give more data or a smaller {what}"
            )
    try:
        start, stop, step = batch.indices(length)
    except (TypeError, ValueError) as error:
        raise InputValueError(
            f"{what}: got {batch!r}, expected a slice of ints ({error})"
        ) from None
    count = len(range(start, stop, step))
    return Selection(count, start, step) if count else Selection(0)


def _select_index(batch: Any, length: int, what: str) -> Selection:
    index = np.asarray(batch)
    if index.size == 0 and index.ndim == 1:
        return Selection(0)
    if index.ndim != 1 or index.dtype.kind not in "iub":
        raise InputValueError(
            f"{what}: got {type(batch).__name__} with dtype {index.dtype} and {index.ndim} "
            f"dimensions, expected an int, a slice, a 1-d list or array of ints, or a boolean mask"
        )
    if index.dtype.kind == "b":
        if len(index) != length:
            raise BatchError(
                f"{what}: got a mask of {len(index)} entries, expected one for each of the "
                f"{length} rows"
            )
        index = np.flatnonzero(index)
        return Selection(len(index), index=index) if len(index) else Selection(0)
    index = index.astype(np.int64)
    lowest, highest = int(index.min()), int(index.max())
    if lowest < -length or highest >= length:
        bad = lowest if lowest < -length else highest
        raise BatchError(
            f"{what}: got index {bad}, but there are only {length} rows "
            f"(valid: {-length} to {length - 1})"
        )
    if lowest < 0:
        index = np.where(index < 0, index + length, index)
    return Selection(len(index), index=index)


def selection_for(
    batch: Any, lengths: Sequence[int], minibatch: Sequence[bool], names: Sequence[str]
) -> Selection:
    """The Selection of a call, checked against every scattered input.

    Args:
        lengths: rows of each scattered input (at least one).
        minibatch: per input, True if it holds only the rows from the selection's lowest on.
        names: of the inputs, for messages.

    Raises:
        InputValueError: lengths differ and `batch` does not say which rows to use.
        BatchError: an input is too short.
    """
    full = [n for n, mini in zip(lengths, minibatch) if not mini]
    if batch is None and len(set(lengths)) > 1:
        listed = ", ".join(f"{name}: {n}" for name, n in zip(names, lengths))
        raise InputValueError(
            f"scattered inputs must have the same length along axis 0, got {listed}; "
            f"cut them, or select rows with batch="
        )
    if full:
        selection = select(batch, _common_length(batch, full))
    elif batch is None or isinstance(batch, (int, np.integer)):
        selection = select(batch, min(lengths))
    else:
        # Every input holds only its minibatch: rows are counted from the lowest asked for.
        selection = select(batch, _span(batch))
    for name, n, mini in zip(names, lengths, minibatch):
        needed = selection.highest + 1 - (selection.lowest if mini else 0)
        if n < needed:
            raise BatchError(
                f"input {name} is too short for the batch: got {n} rows, "
                f"expected at least {needed}; give more data or a smaller batch"
            )
    return selection


def _common_length(batch: Any, lengths: Sequence[int]) -> int:
    """The length that `batch` refers to; inputs may differ in length only if it does not matter."""
    if len(set(lengths)) == 1:
        return lengths[0]
    if isinstance(batch, slice):
        relative = batch.stop is None or batch.stop < 0 or (batch.start or 0) < 0
    else:
        index = np.asarray(batch)
        relative = index.dtype.kind == "b" or (index.size > 0 and index.min() < 0)
    if relative:
        raise InputValueError(
            f"batch {batch!r} counts from the end, or masks, but the inputs have different "
            f"lengths {list(lengths)}; give inputs of one length, or non-negative indexes"
        )
    return max(lengths)


def _span(batch: Any) -> int:
    """One more than the highest row that an absolute batch names."""
    if isinstance(batch, slice):
        return max(batch.stop or 0, (batch.start or 0) + 1)
    index = np.asarray(batch)
    if index.dtype.kind == "b":
        return len(index)
    return int(index.max()) + 1 if index.size else 0
