"""The rows of a call for plain Theano: all of them, or piece by piece. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Union

import numpy as np

from synk_core._graph.rank_values import Values
from synk_core._graph.spec import FunctionSpec
from synk_core._plan.rows import select, selection_for, split_rows
from synk_core._wire.data import Data
from synk_core._wire.sources import RowSource


class Piece(NamedTuple):
    """The rows of one execution.

    Attributes:
        rank: the rank that computes them in parallel.
        rows: the number of rows, which is the weight.
        inputs: all inputs in order.
        sliced: rows of the sliceable variables.
    """

    rank: int
    rows: int
    inputs: List[Any]
    sliced: Values


def whole_inputs(
    spec: FunctionSpec, args: Sequence[Any], kwargs: Dict[str, Any], batch: Any
) -> List[Any]:
    """Return the inputs in order; of scattered ones the rows that `batch` selects."""
    names = [variable.name for variable in spec.variables]
    given = list(args) + [kwargs[name] for name in names[len(args) :]]
    n = spec.n_scattered
    values = [_array(spec, i, value) for i, value in enumerate(given)]
    if n == 0:
        return values
    lengths = [len(value) for value in values[:n]]
    minis = [isinstance(value, Data) and value.minibatch for value in given[:n]]
    labels = [name or str(i) for i, name in enumerate(names)]
    chosen = selection_for(batch, lengths, minis, labels[:n])
    index = chosen.positions
    of_minibatch = index - chosen.lowest if chosen.index is None else np.arange(chosen.count)
    rows = [value[of_minibatch if mini else index] for value, mini in zip(values[:n], minis)]
    return rows + values[n:]


def sliced_rows(starts: Sequence[Values], sliceable: Sequence[int], batch_s: Any) -> List[Values]:
    """Return for each rank the rows of the sliceable variables that a call with `batch_s` uses.

    Args:
        starts: all values of each rank.
        sliceable: keys of the sliceable ones.
    """
    kinds = (slice, list, tuple, range, np.ndarray)
    chosen: Sequence[Any] = [batch_s] * len(starts)
    if isinstance(batch_s, (list, tuple)) and any(isinstance(item, kinds) for item in batch_s):
        chosen = batch_s
    result = []
    for start, wanted in zip(starts, chosen):
        arrays = {i: start[i] for i in sliceable}
        if arrays and wanted is not None:
            index = select(wanted, min(len(array) for array in arrays.values())).positions
            arrays = {i: array[index] for i, array in arrays.items()}
        result.append(arrays)
    return result


def all_rows(rank: int, whole: List[Any], sliced: Sequence[Values]) -> Piece:
    """Return all rows of all ranks, in rank order, for plain Theano on `rank`."""
    joined = {i: np.concatenate([part[i] for part in sliced]) for i in sliced[0]}
    return Piece(rank, 0, whole, joined)


def pieces_of(
    spec: FunctionSpec,
    master: int,
    count: int,
    rows: Sequence[int],
    whole: List[Any],
    sliced: Sequence[Values],
) -> List[Piece]:
    """Return the slices that the ranks compute, in the order of the rows.

    Args:
        count: the number of slices on each rank.
        rows: the number of rows of each rank. If all are 0, the master computes on no rows.
    """
    n = spec.n_scattered
    pieces = []
    first = 0
    for rank, length in enumerate(rows):
        bounds = [b for b in split_rows(length, count) if b[1] > b[0]]
        if not sum(rows) and rank == master:
            bounds = [(0, 0)]
        for start, stop in bounds:
            inputs = [array[first + start : first + stop] for array in whole[:n]]
            own = sliced[rank]
            if count > 1:
                own = {i: array[start:stop] for i, array in own.items()}
            pieces.append(Piece(rank, stop - start, inputs + whole[n:], own))
        first += length
    return pieces


def _array(spec: FunctionSpec, place: int, value: Any) -> Union[np.ndarray, RowSource]:
    """Return an input as an array, converted as Theano converts it in a call; or its rows'
    source."""
    if isinstance(value, Data):
        return value.array
    if isinstance(value, np.ndarray):
        return value
    source = RowSource.of(value) if place < spec.n_scattered else None
    if source is not None:
        return source
    downcast = getattr(spec.inputs[place], "allow_downcast", None)
    if downcast is None:
        downcast = spec.kwargs.get("allow_input_downcast")
    return np.asarray(spec.variables[place].type.filter(value, allow_downcast=downcast))
