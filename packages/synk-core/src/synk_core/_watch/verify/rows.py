"""The rows of a call for plain Theano: all of them, or piece by piece. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence

import numpy as np

from synk_core._graph.inputs import Signature
from synk_core._graph.rank_values import Values
from synk_core._graph.spec import FunctionSpec
from synk_core._plan.rows import select, selection_for, selectors_for, split_rows
from synk_core._wire.data import Data


class Piece(NamedTuple):
    """The rows of one execution.

    Attributes:
        rank: the rank that computes them in parallel.
        rows: the number of rows, which is the weight.
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
    signature, n = Signature(spec), spec.n_scattered
    given = [signature.accepted(i, v) for i, v in enumerate(signature.ordered(args, kwargs))]
    values = [value.array if isinstance(value, Data) else value for value in given]
    if n == 0:
        return values
    minis = [isinstance(value, Data) and value.minibatch for value in given[:n]]
    chosen = selection_for(batch, [len(value) for value in values[:n]], minis, signature.labels)
    index = chosen.positions
    of_minibatch = index - chosen.lowest if chosen.index is None else np.arange(chosen.count)
    rows = [value[of_minibatch if mini else index] for value, mini in zip(values[:n], minis)]
    return rows + values[n:]


def sliced_rows(starts: Sequence[Values], sliceable: Sequence[int], batch_s: Any) -> List[Values]:
    """Return for each rank the rows of the sliceable variables that a call with `batch_s` uses."""
    chosen = selectors_for(batch_s, len(starts))
    result = [{i: start[i] for i in sliceable} for start in starts]
    for rank, wanted in enumerate(chosen if sliceable else ()):
        index = select(wanted, min(map(len, result[rank].values()))).positions
        result[rank] = {i: array[index] for i, array in result[rank].items()}
    return result


def all_rows(rank: int, count: int, whole: List[Any], sliced: Sequence[Values]) -> Piece:
    """Return all rows of all ranks, in rank order, for plain Theano on `rank`."""
    joined = {i: np.concatenate([part[i] for part in sliced]) for i in sliced[0]}
    return Piece(rank, count, whole, joined)


def pieces_of(
    n_scattered: int,
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
    pieces = []
    first = 0
    for rank, length in enumerate(rows):
        bounds = [b for b in split_rows(length, count) if b[1] > b[0]]
        if not sum(rows) and rank == master:
            bounds = [(0, 0)]
        for start, stop in bounds:
            inputs = [array[first + start : first + stop] for array in whole[:n_scattered]]
            own = sliced[rank]
            if count > 1:
                own = {i: array[start:stop] for i, array in own.items()}
            pieces.append(Piece(rank, stop - start, inputs + whole[n_scattered:], own))
        first += length
    return pieces
