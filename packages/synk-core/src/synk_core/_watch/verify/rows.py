"""The rows of a call for plain Theano. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import numpy as np

from synk_core._graph.inputs import Signature
from synk_core._graph.rank_values import Values
from synk_core._graph.spec import FunctionSpec
from synk_core._plan.rows import select, selection_for, selectors_for
from synk_core._wire.data import Data


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
