"""Run one rank's share of a call: its rows, slice by slice; then collect with the other ranks.

The same functions in the master and in the workers. A call that is not sliced runs the plain
form once, and its updates are Theano's own. A sliced call runs every slice from the original
values of the updated variables, accumulates outputs and updates weighted by rows, and applies
the updates once, at the end. Updates of random states are the exception: they advance with
every execution.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ._accumulate import Accumulator
from ._messages import Call, Form, Recipe, Rows
from ._plan import Bounds, Selection, select, split_rows
from ._shared_vars import VariableRegistry, store, value_of
from .exceptions import InputValueError


class LoadedFunction:
    """A function as a rank holds it: its recipe, compiled forms, and excerpt buffers."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.forms: Dict[Form, Any] = {}
        self._buffers: Dict[int, np.ndarray] = {}

    def buffer(self, position: int, like: np.ndarray, length: int) -> np.ndarray:
        """Room for `length` rows of the input at `position`, reused from call to call."""
        held = self._buffers.get(position)
        row = like.shape[1:]
        if held is None or len(held) < length or held.shape[1:] != row or held.dtype != like.dtype:
            held = self._buffers[position] = np.empty((length, *row), like.dtype)
        return held[:length]


class Outcome(NamedTuple):
    """What a rank computed: `values` is None where it took no part.

    ``counts`` are the rows that each rank stands for (1 each if there is nothing to count).
    """

    values: Optional[List[Any]]
    counts: Tuple[int, ...]


class CallResult(NamedTuple):
    """What a call gives the master."""

    values: List[Any]
    counts: Tuple[int, ...]


def compute(
    loaded: LoadedFunction,
    call: Call,
    arrays: Any,
    registry: VariableRegistry,
    comm: Any,
    master: int,
) -> Optional[CallResult]:
    """Do this rank's part of `call`, updates included, and collect the outputs in the master.

    Blocks until all ranks have computed, if there is anything to collect.

    Returns:
        The outputs on the master, None elsewhere.
    """
    outcome = _run(loaded, call, arrays, registry, comm, master)
    wanted = range(len(loaded.recipe.output_ops)) if call.outputs is None else call.outputs
    # A call without rows is the master's alone, whose result counts whole.
    weight = float(outcome.counts[comm.rank]) or 1.0
    results = []
    for i, position in enumerate(wanted):
        value = None if outcome.values is None else outcome.values[i]
        results.append(collect(comm, master, loaded.recipe.output_ops[position], value, weight))
    return CallResult(results, outcome.counts) if comm.rank == master else None


def collect(comm: Any, master: int, op: Optional[str], value: Any, weight: float) -> Any:
    """Reduce or gather one output of all ranks that computed it into the master."""
    if op is None:
        return value
    if value is not None:
        value = np.asarray(value) if op != "gather" else np.atleast_1d(value)
    if op == "gather":
        parts = comm.gather(value, root=master)
        return None if parts is None else _joined(parts)
    if op == "avg":
        return comm.reduce(value, "avg", root=master, weight=weight)
    return comm.reduce(value, op, root=master)


def _joined(parts: Sequence[Any]) -> np.ndarray:
    try:
        return np.concatenate([part for part in parts if part is not None])
    except ValueError:
        shapes = {rank: part.shape for rank, part in enumerate(parts) if part is not None}
        raise InputValueError(
            f"an output with op 'gather' has shapes that differ in more than their length: by "
            f"rank {shapes}"
        ) from None


def _run(
    loaded: LoadedFunction,
    call: Call,
    arrays: Any,
    registry: VariableRegistry,
    comm: Any,
    master: int,
) -> Outcome:
    recipe = loaded.recipe
    selection = None
    counts = (1,) * comm.size
    if call.rows is not None:
        counts = call.rows.counts
    if recipe.sliceable and (call.rows is None or call.form.select is not None):
        selection = _select(recipe, call, registry, comm)
        if call.rows is None:
            parts = comm.all_gather(np.asarray(selection.count, np.int64))
            counts = tuple(int(part) for part in parts)
        else:
            # Every rank has the rows it needs before any rank computes.
            comm.barrier()
    total = sum(counts)
    if not counts[comm.rank] and not (total == 0 and comm.rank == master):
        return Outcome(None, counts)
    rows = counts[comm.rank]
    pieces = [piece for piece in split_rows(rows, call.num_slices) if piece[1] > piece[0]]
    execution = _Execution(loaded, call, arrays, registry, selection)
    return Outcome(execution.run(comm.rank, pieces or [(0, 0)], total), counts)


def _select(recipe: Recipe, call: Call, registry: VariableRegistry, comm: Any) -> Selection:
    """The rows of its sliceable shared variables that this rank uses.

    Raises:
        InputValueError: their lengths differ, or do not fit the scattered inputs' share.
        BatchError: `batch_s` asks for rows that are not there.
    """
    named = {
        registry[n].name or f"shared variable {n}": len(value_of(registry[n]))
        for n in recipe.sliceable
    }
    selector = call.selectors[comm.rank] if call.selectors else None
    if selector is None and len(set(named.values())) > 1:
        raise InputValueError(
            f"sliceable shared variables must have one length on each rank, got {named} on "
            f"rank {comm.rank}; select rows with batch_s="
        )
    selection = select(selector, min(named.values()), f"batch_s on rank {comm.rank}")
    if call.rows is not None and selection.count != call.rows.counts[comm.rank]:
        raise InputValueError(
            f"rank {comm.rank} got {call.rows.counts[comm.rank]} rows of the scattered inputs, but "
            f"uses {selection.count} of its sliceable shared variables; the two must be equal"
        )
    return selection


class _Execution:
    """The executions of one function on one rank for one call."""

    def __init__(
        self,
        loaded: LoadedFunction,
        call: Call,
        arrays: Any,
        registry: VariableRegistry,
        selection: Optional[Selection],
    ) -> None:
        self._loaded = loaded
        self._call = call
        self._registry = registry
        self._selection = selection
        self._function = loaded.forms[call.form]
        self._scattered = [(arrays.get(item.array), item) for item in call.scattered]
        self._broadcast = [arrays.get(ref) for ref in call.broadcast]
        self._rows = call.rows or Rows(bounds=())
        self._index = None if self._rows.index is None else arrays.get(self._rows.index)

    def run(self, rank: int, pieces: Sequence[Bounds], total: int) -> List[Any]:
        """Execute piece by piece; `total` is the rows of the whole call."""
        recipe = self._loaded.recipe
        sliced = self._call.form.accumulate or len(pieces) > 1
        first = self._rows.bounds[rank][0] if self._rows.bounds else 0
        ops = self._accumulated_ops() if sliced else []
        accumulators = [Accumulator(op, f"function {recipe.name!r}") for op in ops]
        values: List[Any] = []
        try:
            for start, stop in pieces:
                self._set_row_share((stop - start) / total if total else 1.0)
                values = self._execute(first, start, stop)
                for accumulator, value in zip(accumulators, values):
                    # The one piece of a call without rows counts whole.
                    accumulator.add(value, stop - start or 1)
        finally:
            self._set_row_share(1.0)
        if not sliced:
            return values
        results = [accumulator.result() for accumulator in accumulators]
        n_updates = len(recipe.updated) if self._call.form.accumulate else 0
        n_outputs = len(results) - n_updates
        for number, value in zip(recipe.updated, results[n_outputs:]):
            store(self._registry[number], value)
        return results[:n_outputs]

    def _accumulated_ops(self) -> List[Optional[str]]:
        recipe = self._loaded.recipe
        wanted = self._call.outputs
        ops = list(recipe.output_ops)
        if wanted is not None:
            ops = [ops[i] for i in wanted]
        if self._call.form.accumulate:
            ops += recipe.update_ops
        return ops

    def _set_row_share(self, share: float) -> None:
        for number in self._loaded.recipe.row_shares:
            variable = self._registry[number]
            store(variable, np.asarray(share, dtype=variable.dtype))

    def _execute(self, first: int, start: int, stop: int) -> List[Any]:
        arguments = [
            self._excerpt(i, first + start, first + stop) for i in range(len(self._scattered))
        ]
        arguments += self._broadcast
        arguments += self._selected(start, stop)
        results: List[Any] = self._function(*arguments)
        if self._call.outputs is None:
            return results
        # Not every linker takes output_subset, and updates have to run whatever is wanted.
        n_outputs = len(self._loaded.recipe.output_ops)
        return [results[i] for i in self._call.outputs] + results[n_outputs:]

    def _selected(self, start: int, stop: int) -> List[np.ndarray]:
        """The arguments that select rows ``start:stop`` of the sliceable selection."""
        form, chosen = self._call.form.select, self._selection
        if form is None or chosen is None:
            return []
        if form == "range":
            return [np.asarray(chosen.start + start), np.asarray(chosen.start + stop)]
        if chosen.index is not None:
            return [chosen.index[start:stop]]
        return [np.arange(start, stop) * chosen.step + chosen.start]

    def _excerpt(self, position: int, start: int, stop: int) -> np.ndarray:
        """Rows ``start:stop`` of the selection: a view, or a copy in a reused buffer."""
        array, item = self._scattered[position]
        if item.selected:
            return array[start:stop]
        if self._index is not None:
            wanted = self._index[start:stop] - item.offset
            buffer = self._loaded.buffer(position, array, stop - start)
            # The master has checked the range; "clip" spares numpy a second buffer.
            return np.take(array, wanted, axis=0, out=buffer, mode="clip")
        rows = self._rows
        begin = rows.start - item.offset + start * rows.step
        end = begin + (stop - start) * rows.step
        return array[begin : (None if end < 0 else end) : rows.step]
