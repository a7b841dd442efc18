"""`batch_s` on its way: the master writes it into shared memory, each rank reads its own."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from synk_theano.exceptions import InputValueError

from .rows import Selection, Selector, selector

_NONE = np.iinfo(np.int64).min
"""Stands for a bound of a slice that is None."""


def selectors_for(batch_s: Any, size: int) -> Tuple[Selector, ...]:
    """One selector for each of `size` ranks; () for all rows everywhere.

    Args:
        batch_s: None, one choice of rows for all ranks, or a list of them, one per rank.

    Raises:
        InputValueError: it is no choice of rows, or a list of a wrong length.
    """
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
    """What travels for a selector: a slice's start, stop and step, or the vector as it is."""
    if isinstance(chosen, slice):
        fields = (chosen.start, chosen.stop, chosen.step)
        return np.array([_NONE if bound is None else bound for bound in fields], np.int64)
    return chosen


def read_selector(array: np.ndarray, is_slice: bool) -> Selector:
    """The reverse of `written`."""
    if not is_slice:
        return array
    return slice(*(None if bound == _NONE else bound for bound in array.tolist()))


def all_ranges(selectors: Sequence[Selector]) -> bool:
    """Whether each selects rows that lie together."""
    return all(isinstance(chosen, slice) and chosen.step in (None, 1) for chosen in selectors)


def selecting(
    select: Optional[str], selection: Optional[Selection], start: int, stop: int
) -> List[np.ndarray]:
    """The arguments that select rows ``start:stop`` of a selection; see `Form` for `select`."""
    if select is None or selection is None:
        return []
    if select == "range":
        return [np.asarray(selection.start + start), np.asarray(selection.start + stop)]
    if selection.index is not None:
        return [selection.index[start:stop]]
    return [np.arange(start, stop) * selection.step + selection.start]
