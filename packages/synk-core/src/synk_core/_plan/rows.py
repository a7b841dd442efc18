"""Decide which rank computes which rows. Pure: no processes, no graph engine.

The one rule, everywhere: rows are split into contiguous shares in rank order whose sizes differ
by at most one, larger shares first. A share is split into slices by the same rule.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np

from synk_core._text import clipped, shown
from synk_core.exceptions import BatchError, InputValueError

Bounds = Tuple[int, int]

_NONE = np.iinfo(np.int64).min
"""Stands for a bound of a slice that is None."""


def split_rows(count: int, parts: int) -> List[Bounds]:
    """Split ``range(count)`` into `parts` contiguous (start, stop) shares, larger shares first.

    >>> split_rows(5, 3)
    [(0, 2), (2, 4), (4, 5)]
    """
    base, extra = divmod(count, parts)
    stops = [base * (i + 1) + min(i + 1, extra) for i in range(parts)]
    return list(zip([0, *stops[:-1]], stops))


@dataclass(eq=False)
class Selection:
    """The rows of every scattered input that a call uses, in the order of use.

    Either a progression (``start``, ``step``, ``count``) or an ``index`` (int64, shape
    ``(count,)``).
    """

    count: int
    start: int = 0
    step: int = 1
    index: Optional[np.ndarray] = None

    def covers(self, length: int) -> bool:
        """Return whether it is all of ``range(length)``, in order."""
        return (self.index is None, self.start, self.step, self.count) == (True, 0, 1, length)

    @property
    def positions(self) -> np.ndarray:
        """The rows' numbers, also of a progression."""
        if self.index is not None:
            return self.index
        positions: np.ndarray = np.arange(self.count) * self.step + self.start
        return positions

    @property
    def rows(self) -> Union[slice, np.ndarray]:
        """Their index for an array: a vector of numbers, or the slice of a progression."""
        if self.index is not None:
            return self.index
        stop = self.start + self.step * self.count
        return slice(self.start, None if stop < 0 else stop, self.step)

    @property
    def lowest(self) -> int:
        """The smallest row used; row 0 of inputs that hold only a minibatch."""
        if self.count == 0:
            return 0
        if self.index is not None:
            return int(self.index.min())
        return min(self.start, self.start + self.step * (self.count - 1))

    @property
    def highest(self) -> int:
        """The largest row used; -1 without rows."""
        if self.count == 0:
            return -1
        if self.index is not None:
            return int(self.index.max())
        return max(self.start, self.start + self.step * (self.count - 1))


Selector = Union[slice, np.ndarray]
"""Rows as they were asked for: a slice of ints, or a vector of int64 or booleans."""


def selector(batch: Any, what: str = "batch") -> Selector:
    """Convert a user's choice of rows into one of two forms; needs no number of rows.

    Args:
        batch: None (all rows), int (the first so many), slice with any step, 1-d list, range or
            array of integers, or a boolean mask.
    """
    if batch is None:
        return slice(None)
    if is_int(batch):
        return slice(None, _bounded(int(batch)))
    if isinstance(batch, slice):
        try:
            bounds = [None if b is None else _bounded(operator.index(b)) for b in _bounds(batch)]
        except TypeError:
            raise InputValueError(f"{what}: got {shown(batch)}, expected a slice of ints") from None
        if bounds[2] == 0:
            raise InputValueError(f"{what}: got {shown(batch)}, expected a step other than 0")
        return slice(*bounds)
    if isinstance(batch, range):
        return _of_range(batch, what)
    try:
        index = np.asarray(batch)
    except (TypeError, ValueError) as error:
        raise InputValueError(
            f"{what}: got {shown(batch)} of type {type(batch).__name__}, expected {_CHOICES}; "
            f"NumPy says: {clipped(error)}"
        ) from error
    if index.size == 0 and index.ndim == 1:
        return np.empty(0, np.int64)
    if index.ndim != 1 or index.dtype.kind not in "iub":
        raise InputValueError(
            f"{what}: got {type(batch).__name__} with dtype {index.dtype} and {index.ndim} "
            f"dimensions, expected {_CHOICES}"
        )
    if index.dtype == np.uint64:
        # What does not fit becomes the largest int64, and is no row either.
        index = np.minimum(index, np.uint64(np.iinfo(np.int64).max))
    return index if index.dtype.kind == "b" else index.astype(np.int64, copy=False)


def kept(batch: Any, is_list: bool = True) -> Any:
    """Return a copy of a choice of rows, or of a list of them; anything else as it is."""
    if isinstance(batch, (list, tuple)):
        only_ints = set(map(type, batch)) <= {int}
        return [*batch] if only_ints or not is_list else [kept(part, False) for part in batch]
    if isinstance(batch, slice):
        return slice(*map(kept, _bounds(batch)))
    if batch is None or isinstance(batch, (int, np.generic, range)):
        return batch
    try:
        index = np.array(np.asarray(batch))  # some objects cannot be asked for a copy
    except (TypeError, ValueError):  # the call raises it, with the expected kinds
        return batch
    return index if index.dtype.kind in "iub" else batch


_CHOICES = "an int, a slice, a 1-d list or array of ints, or a boolean mask"


def _bounded(bound: int) -> int:
    """Return the bound of a slice clipped to int64: a larger one is beyond all rows anyway."""
    most = int(np.iinfo(np.int64).max)
    return min(max(bound, -most), most)


def _of_range(batch: range, what: str) -> Selector:
    """Return the rows of a range, as a slice if possible, which takes no memory."""
    if not batch:
        return np.empty(0, np.int64)
    if batch.start >= 0 and batch.step > 0:
        return slice(_bounded(batch[0]), _bounded(batch[-1] + 1), _bounded(batch.step))
    if len(batch) > _LONGEST_RANGE:
        raise BatchError(
            f"{what}: got {shown(batch)}, which are {len(batch)} rows, expected at most "
            f"{_LONGEST_RANGE} of those that count backwards, or from the end"
        )
    return np.array([_bounded(row) for row in batch], np.int64)


_LONGEST_RANGE = 1 << 26


def is_int(value: Any) -> bool:
    """Return whether it is a whole number of Python or NumPy; True and False are none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def as_int(value: Any) -> Any:
    """Return the int that a float is equal to, as release 1.0 did; else the value itself."""
    is_float = isinstance(value, (float, np.floating))
    return int(value) if is_float and float(value).is_integer() else value


def _bounds(batch: slice) -> Tuple[Any, Any, Any]:
    return batch.start, batch.stop, batch.step


def require_own_row(
    ops: Sequence[Optional[str]], counts: Sequence[int], master: int, what: str
) -> None:
    """Raise if an output with op None, the master's own result, lacks a row there."""
    total = sum(counts)
    if None in ops and total and not counts[master]:
        raise InputValueError(
            f"{what} has an output with op None, which is the master's own result, but rank "
            f"{master}, the master, gets none of {total} rows (by rank: {list(counts)}); use more "
            f"rows, batch_s= to give it some, or another op"
        )


def select(batch: Any, length: int, what: str = "batch") -> Selection:
    """Convert a choice of rows (see `selector`) into a Selection of ``range(length)``; raise
    BatchError for rows that are not there (slices are not clipped silently)."""
    return _selection(selector(batch, what), length, what)


def _selection(chosen: Selector, length: int, what: str = "batch") -> Selection:
    if isinstance(chosen, slice):
        for name, bound in (("start", chosen.start), ("stop", chosen.stop)):
            if bound is not None and not -length <= bound <= length:
                raise BatchError(
                    f"{what}: got {name} {bound}, but there are only {length} rows; "
                    f"give more data or a smaller {what}"
                )
        start, stop, step = chosen.indices(length)
        count = len(range(start, stop, step))
        return Selection(count, start, step) if count else Selection(0)
    if chosen.dtype.kind == "b":
        if len(chosen) != length:
            raise BatchError(
                f"{what}: got a mask of {len(chosen)} entries, expected one for each of the "
                f"{length} rows"
            )
        chosen = np.flatnonzero(chosen)
    index, count = chosen, len(chosen)
    if not count:
        return Selection(0)
    # As unsigned numbers, negative ones are too large, too.
    if index.dtype == np.int64 and np.maximum.reduce(index.view(np.uint64)) < length:
        return Selection(count, index=index)
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
    """Return the Selection of a call, checked against every scattered input.

    Args:
        lengths: rows of each scattered input (at least one).
        minibatch: per input, True if it holds only the rows of the batch: where `batch` is an int
            or a slice, the rows from the lowest on; else a row for each entry, in their order.
        names: of the inputs, for messages.

    Raises:
        InputValueError: lengths differ and `batch` does not say which rows to use.
        BatchError: an input is too short.
    """
    if batch is None:
        if lengths.count(lengths[0]) == len(lengths):
            return Selection(lengths[0])
        listed = ", ".join(f"{name}: {n}" for name, n in zip(names, lengths))
        raise InputValueError(
            f"scattered inputs must have the same length along axis 0, got {listed}; "
            f"list what every rank needs whole in bcast_inputs, or cut them to one length, or "
            f"select rows with batch="
        )
    is_index = type(batch) is np.ndarray and batch.ndim == 1 and batch.dtype == np.int64
    chosen = batch if is_index else selector(batch)
    if not any(minibatch) and lengths.count(lengths[0]) == len(lengths):
        return _selection(chosen, lengths[0])  # the same for all inputs; below, for each
    full = [n for n, mini in zip(lengths, minibatch) if not mini]
    if full:
        selection = _selection(chosen, _common_length(chosen, full))
    else:
        selection = _select_of_minibatches(chosen, min(lengths))
    for name, n, mini in zip(names, lengths, minibatch):
        needed = selection.highest + 1
        if mini:
            needed = needed - selection.lowest if selection.index is None else selection.count
        if n < needed:
            raise BatchError(
                f"input {name} is too short for the batch: got {n} rows, "
                f"expected at least {needed}; give more data or a smaller batch"
            )
    return selection


def _common_length(chosen: Selector, lengths: Sequence[int]) -> int:
    """Return the length that the choice refers to; inputs may differ if it does not matter."""
    if len(set(lengths)) == 1:
        return lengths[0]
    if isinstance(chosen, slice):
        relative = chosen.stop is None or chosen.stop < 0 or (chosen.start or 0) < 0
    else:
        relative = chosen.dtype.kind == "b" or (chosen.size > 0 and chosen.min() < 0)
    if relative:
        raise InputValueError(
            f"batch {shown(chosen)} counts from the end, or masks, but the inputs have different "
            f"lengths {list(lengths)}; give inputs of one length, or non-negative indexes"
        )
    return max(lengths)


def _select_of_minibatches(chosen: Selector, rows: int) -> Selection:
    """Return a Selection where every input holds only its minibatch, of so many rows.

    How many rows the whole data have is not known, so nothing can be counted from its end.
    """
    if isinstance(chosen, slice):
        start, stop, step = _bounds(chosen)
        start = start or 0
        stop = start + rows if stop is None else stop
        if min(start, stop) < 0 or (step or 1) < 0:
            raise InputValueError(
                f"batch {shown(chosen)} counts from the end, but all inputs hold only a minibatch; "
                f"give a slice with non-negative bounds and a positive step, or indexes"
            )
        return _selection(slice(start, stop, step), max(start, stop))
    if chosen.dtype.kind == "b":
        return _selection(chosen, len(chosen))
    if chosen.size and chosen.min() < 0:
        raise BatchError(
            f"batch: got index {chosen.min()}, but all inputs hold only a minibatch, so that rows "
            f"cannot be counted from the end; give non-negative indexes"
        )
    return _selection(chosen, int(chosen.max()) + 1 if chosen.size else 0)


def selectors_for(batch_s: Any, size: int) -> Tuple[Selector, ...]:
    """Return a selector for each rank; () for all rows everywhere. `batch_s` is None, one choice of
    rows for all ranks, or a list of them, one per rank."""
    if batch_s is None:
        return ()
    per_rank = isinstance(batch_s, (list, tuple)) and any(
        isinstance(item, (slice, list, tuple, range, np.ndarray)) for item in batch_s
    )
    if not per_rank:
        return (selector(batch_s, "batch_s"),) * size
    if len(batch_s) != size:
        raise InputValueError(
            f"batch_s: got a list of {len(batch_s)} selections, expected one for each of "
            f"{size} ranks"
        )
    return tuple(selector(item, f"batch_s[{i}]") for i, item in enumerate(batch_s))


def written(chosen: Selector) -> np.ndarray:
    """Return a selector as an array: a slice's start, stop and step, or the vector itself."""
    if isinstance(chosen, slice):
        return np.array([_NONE if b is None else b for b in _bounds(chosen)], np.int64)
    return chosen


def read_selector(array: np.ndarray, is_slice: bool) -> Selector:
    """Return the selector that `written` has made an array of."""
    if not is_slice:
        return array
    return slice(*(None if bound == _NONE else bound for bound in array.tolist()))


def all_ranges(selectors: Sequence[Selector]) -> bool:
    """Return whether each selects rows that lie together."""
    return all(isinstance(chosen, slice) and chosen.step in (None, 1) for chosen in selectors)


def selecting(
    select: Optional[str], selection: Selection, start: int, stop: int
) -> List[np.ndarray]:
    """Return the arguments that select rows ``start:stop`` of a selection; see `Form.select`."""
    if select is None:
        return []
    if select == "range":
        return [np.asarray(selection.start + start), np.asarray(selection.start + stop)]
    if selection.index is not None:
        return [selection.index[start:stop]]
    return [np.arange(start, stop) * selection.step + selection.start]
