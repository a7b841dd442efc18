"""One rank's share of a call in slices, with rows of sliceable variables, or without rows.

Each slice is computed from the original values of the updated variables; outputs and updates are
accumulated, weighted by rows, and the updates are made once, at the end. Updates of random states
are the exception: they advance with every execution.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from synk_core._graph.shared import Storage, store, value_of
from synk_core._plan.rows import (
    Selection,
    read_selector,
    require_own_row,
    select,
    selecting,
    split_rows,
)
from synk_core._wire.flight import Phase, in_slice
from synk_core._wire.messages import ROWLESS, Call
from synk_core.exceptions import InputValueError

from .functions import LoadedFunction
from .outputs import Accumulator
from .workplace import Workplace


class Slices:
    """Computes such a call, again and again. `run(function, arguments, begin, piece)` executes a
    function on rows of the selection, from row `begin`, as slice number `piece`; 0 for none.

    Attributes:
        selection: the rows of its sliceable variables that the rank uses.
        counts: rows of each rank.
    """

    def __init__(
        self,
        here: Workplace,
        call: Call,
        loaded: LoadedFunction,
        inputs: Any,
        ops: Sequence[Optional[str]],
        run: Callable[..., List[Any]],
    ) -> None:
        self._here, self._call, self._loaded = here, call, loaded
        self._inputs, self._ops, self._run = inputs, ops, run
        self._selectors = [(here.arrays.get(s.array), s.is_slice) for s in call.selectors]
        self._bounds, self._rows = call.shares(here.comm.size)
        self.counts = self._rows
        self.selection = Selection(0)
        self._doing = f"function {loaded.recipe.name!r}"

    def close(self) -> None:
        """Drop references to shared memory."""
        self._selectors = []

    def select(self) -> Tuple[int, ...]:
        """Find the rows of sliceable variables; return all ranks' numbers of rows. Blocks."""
        if not self._loaded.recipe.sliceable:
            return self._rows
        here, comm = self._here, self._here.comm
        here.flight.enter(Phase.COPY)
        self.selection = selection = self._select()
        here.flight.enter(Phase.COLLECTIVE)
        if self._call.rows is not None:
            # Every rank has the rows it needs before any rank computes.
            comm.barrier()
        else:
            parts = comm.all_gather(np.asarray(selection.count, np.int64))
            self.counts = tuple(int(part) for part in parts)
        require_own_row(self._ops, self.counts, here.master, self._doing)
        return self.counts

    def compute(
        self, function: Any, origin: int, changed: Sequence[Storage]
    ) -> Optional[List[Any]]:
        """Return the outputs of all slices; None: this rank contributes nothing. `changed` are the
        variables that get new values."""
        if self.counts[self._here.rank]:
            return self._compute(function, origin)
        return self._compute_without_rows(function, origin, changed)

    def _select(self) -> Selection:
        """Return the rows of its sliceable shared variables that this rank uses; raise if they
        do not fit each other or the scattered inputs' share."""
        rank, registry = self._here.rank, self._here.registry
        named = {
            registry.label(n): value_of(registry[n]).shape[0] for n in self._loaded.recipe.sliceable
        }
        selector = read_selector(*self._selectors[rank]) if self._selectors else None
        if selector is None and len(set(named.values())) > 1:
            raise InputValueError(
                f"sliceable shared variables must have one length on each rank, got {named} on "
                f"rank {rank}; select rows with batch_s="
            )
        selection = select(selector, min(named.values()), f"batch_s on rank {rank}")
        if self._call.rows is not None and selection.count != self._rows[rank]:
            raise InputValueError(
                f"rank {rank} got {self._rows[rank]} rows of the scattered inputs, but uses "
                f"{selection.count} of its sliceable shared variables; the two must be equal"
            )
        return selection

    def _compute(self, function: Any, origin: int) -> List[Any]:
        """Execute slice by slice."""
        rank, total = self._here.rank, sum(self.counts)
        rows = self.counts[rank]
        # As many as there are rows at most: the others are empty.
        pieces = split_rows(rows, min(self._call.num_slices, max(rows, 1)))
        accumulates = self._call.form.accumulate
        sliced = accumulates or len(pieces) > 1
        first = self._bounds[rank][0]
        recipe = self._loaded.recipe
        wanted, n_outputs = self._call.outputs, len(recipe.output_ops)
        ops = [*self._ops, *(recipe.update_ops if accumulates else ())] if sliced else []
        accumulators = [Accumulator(op, self._doing) for op in ops]
        values: List[Any] = []
        try:
            for i, (start, stop) in enumerate(pieces):
                piece = i + 1 if sliced else 0
                self._here.flight.enter(in_slice(Phase.COPY, piece))
                self._here.flight.raise_if_interrupted(self._here.serial)
                self._set_row_share((stop - start) / total if total else 1.0)
                arguments = self._inputs.take(origin, first + start, first + stop)
                arguments += selecting(self._call.form.select, self.selection, start, stop)
                values = self._run(function, arguments, first + start, piece)
                # Not every linker takes output_subset, and updates have to run whatever is wanted.
                if wanted is not None:
                    values = [values[i] for i in wanted] + values[n_outputs:]
                for accumulator, value in zip(accumulators, values):
                    # The one piece of a call without rows counts whole.
                    accumulator.add(value, stop - start or 1)
        finally:
            self._set_row_share(1.0)
        if not sliced:
            return values
        results = [accumulator.result() for accumulator in accumulators]
        n_wanted = len(self._ops)
        for number, value in zip(recipe.updated, results[n_wanted:]):
            store(self._here.registry[number], value)
        return results[:n_wanted]

    def _compute_without_rows(
        self, function: Any, origin: int, changed: Sequence[Storage]
    ) -> Optional[List[Any]]:
        """Make the updates that no row goes into; None: this rank contributes nothing.

        If no rank has rows, the master computes outputs on nothing.
        """
        values = None
        if not any(self.counts) and self._here.is_master:
            kept = self._here.journal.kept
            before = [(storage, kept(storage[0])) for storage in changed]
            try:
                values = self._compute(function, origin)
            finally:
                for storage, value in before:
                    storage[0] = value
        rowless = self._loaded.forms.get(ROWLESS)
        if rowless is not None:
            self._here.flight.enter(Phase.COMPUTE)
            self._here.flight.raise_if_interrupted(self._here.serial)
            brought = self._inputs.brought[len(self._call.scattered) :]
            bring, whole = self._here.device.argument, self._inputs.broadcast
            rowless(*(bring(a) if b else a for a, b in zip(whole, brought)))
        return values

    def _set_row_share(self, share: float) -> None:
        for number in self._loaded.recipe.row_shares:
            variable = self._here.registry[number]
            store(variable, np.asarray(share, dtype=variable.dtype))
