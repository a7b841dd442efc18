"""`verify()`: compare the ranks' results with those of plain Theano.

A function is run in parallel, in parallel with slices, serially on all rows at once, and serially
on each piece of the rows that a rank or slice had. That allows two comparisons:

- with the *pieces*: the results must be those of the pieces, combined by the op and weighted by
  rows. Both sides did the same work, so hardly a bit may differ. Otherwise replicas differ, rows
  got lost, or weights are wrong.
- with the *serial* result: its sums were added up in another order, so the limit grows with the
  rows. A larger difference is not rounding: the function cannot be split that way (a mean declared
  "sum", a standard deviation over the batch, an update that is not linear in the rows).

An update has no result in the master alone: each rank applies its own, from its own rows. Each
rank's new value is compared with its pieces; all of them, combined by the update's op as an
all_reduce() would, with the serial one. Ranks without rows make the updates that do not depend on
rows, and no others. With in-graph reductions over ranks no piece can be computed alone: only the
serial result is compared.

Errors are counted in machine epsilons of the largest magnitude in the array and in the pieces that
were combined, not of each entry, because entries that cancel to nearly nothing have no more digits
than the numbers that they were computed from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from synk_core._graph.leaves import (
    depends_on_rows,
    differs_by_rank,
    draws,
    is_row_share,
    lineage_of,
)
from synk_core._graph.random_streams import is_random_state
from synk_core._graph.rank_values import RankValues, Values, disturbed, equal_bits
from synk_core._plan.arguments import checked_flag
from synk_core._plan.rows import is_int
from synk_core._text import shown
from synk_core.exceptions import InputValueError

from .report import Comparison, Difference, Drift, Report, largest_magnitude, measure
from .rows import Piece, all_rows, pieces_of, sliced_rows, whole_inputs

MOST_SLICINGS = 100
"""Numbers of slices that are tried at most: each is a run."""

ROUNDING = 16.0
"""Epsilons by which the same computation may differ on another rank; times the root of the number
of rows, by which sums in another order may."""


class Run(NamedTuple):
    """The result of plain Theano: all outputs, and the new values of updated variables."""

    outputs: List[np.ndarray]
    updated: Values


def verify(
    function: Any,
    runtime: Any,
    args: Sequence[Any],
    kwargs: Dict[str, Any],
    *,
    batch: Any = None,
    batch_s: Any = None,
    num_slices: Union[int, Sequence[int]] = (2, 3),
    output_subset: Optional[Sequence[int]] = None,
    limit: Optional[float] = None,
    sync: bool = True,
) -> Report:
    """Run a function in parallel, sliced and serially, and compare; see `Function.verify`."""
    several, sync = _checked_slices(num_slices), checked_flag(sync, "sync")
    # NaN is not at least 0.
    is_number = isinstance(limit, (int, float, np.integer, np.floating))
    if limit is not None and not (is_number and limit >= 0):
        raise InputValueError(f"limit: got {shown(limit)}, expected a number of epsilons, or None")
    values: List[RankValues] = []
    rows_before = function.rows

    def compare() -> Report:
        values.append(RankValues(runtime, function.get_shared(), function.copiers))
        call = args, kwargs, {"batch": batch, "batch_s": batch_s}
        check = _Verification(function, runtime, values[0], call, limit, sync)
        return check.report(several, output_subset)

    def restore() -> None:
        function.rows = rows_before
        for saved in values:
            saved.restore()

    report: Report = runtime.unrecorded(compare, restore)
    return report


def _checked_slices(num_slices: Any) -> List[int]:
    """Return the numbers of slices to try."""
    several = [num_slices] if is_int(num_slices) else num_slices
    is_list = isinstance(several, (list, tuple, range)) and len(several) <= MOST_SLICINGS
    if not is_list or not all(is_int(n) and n > 0 for n in several):
        raise InputValueError(
            f"num_slices: got {shown(num_slices)}, expected an int of at least 1, or a list of at "
            f"most {MOST_SLICINGS} of these"
        )
    return [int(n) for n in several if n > 1]


class _Verification:
    """One verification; see `verify`."""

    def __init__(
        self,
        function: Any,
        runtime: Any,
        values: RankValues,
        call: Tuple[Sequence[Any], Dict[str, Any], Dict[str, Any]],
        limit: Optional[float],
        sync: bool,
    ) -> None:
        self._function, self._runtime, self._values = function, runtime, values
        self._args, self._kwargs, self._options = call
        self._limit, self._sync = limit, sync
        self._spec = spec = function.spec
        self._lineage = lineage = lineage_of(spec)
        self._found: List[Comparison] = []
        self._noisy: Optional[Run] = None
        variables = values.variables
        self._places = {id(v.container.storage): i for i, v in enumerate(variables)}
        self._names = [v.name or f"shared variable {i}" for i, v in enumerate(variables)]
        self._sliceable = [self._place(variable) for variable in spec.sliceable]
        self._row_shares = [i for i, v in enumerate(variables) if is_row_share(v)]
        states = [i for i, v in enumerate(variables) if is_random_state(v)]
        own = {*self._sliceable, *self._row_shares, *states}
        self._replicated = [i for i in range(len(variables)) if i not in own]
        # Leaves and op of each update of an array; random states are not compared.
        self._leaves = {
            self._place(target): leaves
            for target, leaves in lineage.updates
            if not is_random_state(target) and self._place(target) >= 0
        }
        self._own_leaves = {self._place(target): leaves for target, leaves in lineage.since_reduced}
        ops = {self._place(target): op for target, _, op in spec.accumulated}
        self._ops = {i: ops.get(i, "last") for i in self._leaves}
        master = values.saved[runtime.master]
        self._start = [
            {i: master[i] if sync and i in self._replicated else saved[i] for i in saved}
            for saved in values.saved
        ]

    def _place(self, leaf: Any) -> int:
        container = getattr(leaf, "container", None)
        return -1 if container is None else self._places.get(id(container.storage), -1)

    def report(self, num_slices: Sequence[int], output_subset: Optional[Sequence[int]]) -> Report:
        """Run and compare, without saving and restoring."""
        spec, master = self._spec, self._runtime.master
        drifts = self._drifts()
        # The first call comes first: it refuses bad arguments.
        parallel = self._parallel(1, output_subset)
        rows = tuple(self._function.rows)
        whole = whole_inputs(spec, self._args, self._kwargs, self._options["batch"])
        sliced = sliced_rows(self._start, self._sliceable, self._options["batch_s"])
        self._all = all_rows(master, sum(rows), whole, sliced)
        self._whole = self._serial(self._all)
        unsliced = ""
        if not spec.n_scattered and not spec.sliceable:
            unsliced = "the function has no rows to slice"
        elif self._lineage.has_reductions:
            unsliced = "in slices its in-graph reductions would reduce slice by slice"
        subset = list(range(len(spec.outputs)) if output_subset is None else output_subset)
        for count in [1] if unsliced else [1, *num_slices]:
            if count > 1:
                subset = [i for i in subset if spec.output_ops[i] is not None]
                parallel = self._parallel(count, subset)
            self._run = f"{count} slices" if count > 1 else "parallel"
            pieces = pieces_of(spec.n_scattered, master, count, rows, whole, sliced)
            self._compare(subset, parallel, pieces)
        for target, _ in self._lineage.updates:
            if is_random_state(target):
                self._skip(f"update of {target}", "last", "it is the state of a random stream")
        name = repr(spec.name) if spec.name else "the function"
        notes = (f"not run in slices: {unsliced}",) if unsliced and num_slices else ()
        return Report(name, rows, tuple(self._found), tuple(drifts), notes)

    def _drifts(self) -> List[Drift]:
        """Find variables that differ between ranks; make them equal if `sync` is set."""
        saved, master = self._values.saved, self._runtime.master
        lineage, drifts = self._lineage, []
        everything = [*lineage.outputs, *(leaves for _, leaves in lineage.updates)]
        read = {self._place(leaf) for leaves in everything for leaf in leaves}
        for i in sorted(read.intersection(self._replicated)):
            tolerated = i in self._leaves and differs_by_rank(self._own_leaves[i], self._spec)
            for rank, values in enumerate(saved):
                if not equal_bits(values[i], saved[master][i]):
                    found = measure(values[i], saved[master][i])
                    drifts.append(Drift(self._names[i], rank, found, tolerated))
                    if self._sync:
                        self._values.give(rank, {i: saved[master][i]})
        return drifts

    def _parallel(
        self, count: int, subset: Optional[Sequence[int]]
    ) -> Tuple[List[np.ndarray], List[Values]]:
        """Run on all ranks; return the requested outputs, and each rank's new values."""
        places = sorted(self._leaves)
        for rank, start in enumerate(self._start):
            self._values.give(rank, {i: start[i] for i in places})
        options = {key: value for key, value in self._options.items() if value is not None}
        if count > 1:
            options["num_slices"] = count
        if subset is not None:
            options["output_subset"] = list(subset)
        outputs = _listed(self._function(*self._args, **options, **self._kwargs))
        return outputs, [self._values.fetch(rank, places) for rank in range(self._runtime.size)]

    def _serial(self, piece: Piece, share: float = 1.0, is_disturbed: bool = False) -> Run:
        """Run plain Theano in the master, from the start values of the piece's rank.

        Args:
            share: the value of `row_share()`.
            is_disturbed: start from parameters and inputs that differ by one rounding.
        """
        master = self._runtime.master
        start = {i: self._start[piece.rank][i] for i in {*self._leaves, *self._replicated}}
        inputs, sliced = piece.inputs, piece.sliced
        if is_disturbed:
            start = {i: disturbed(v) if i in self._replicated else v for i, v in start.items()}
            sliced = {i: disturbed(value) for i, value in sliced.items()}
            inputs = [disturbed(value) for value in inputs]
        variables = self._values.variables
        shares = {i: np.asarray(share, variables[i].dtype) for i in self._row_shares}
        given = {**start, **sliced, **shares}
        self._values.give(master, given)
        outputs = _listed(self._function.as_theano(*inputs))
        updated = self._values.fetch(master, sorted(self._leaves))
        self._values.give(master, {i: self._start[master][i] for i in given})
        return Run(outputs, updated)

    def _compare(self, subset: Sequence[int], parallel: Any, pieces: Sequence[Piece]) -> None:
        outputs, updated = parallel
        total = self._all.rows
        runs = [self._serial(p, p.rows / total if total else 1.0) for p in pieces]
        for got, i in zip(outputs, subset):
            self._compare_output(i, got, pieces, runs)
        for i in sorted(self._leaves):
            self._compare_update(i, [values[i] for values in updated], pieces, runs)

    def _compare_output(
        self, i: int, got: np.ndarray, pieces: Sequence[Piece], runs: Sequence[Run]
    ) -> None:
        op, leaves = self._spec.output_ops[i], self._lineage.outputs[i]
        variable = self._spec.outputs[i]
        what = f"output {i}" + (f" ({variable.name})" if variable.name else "")
        parts = [run.outputs[i] for run in runs]
        if draws(leaves):
            return self._skip(what, op, "it draws random numbers")
        if any(part.dtype == object for part in parts):
            return self._skip(what, op, "it is no array")
        if op is None:
            own = [p.rank == self._runtime.master for p in pieces]
            self._judge_pieces(what, op, got, [parts[own.index(True)]], [1])
            if not all(own) and differs_by_rank(leaves, self._spec):
                reason = "the master's own result is computed from its own rows"
                return self._skip(what, op, reason)
            parts = []
        else:
            self._judge_pieces(what, op, got, parts, [piece.rows or 1 for piece in pieces])

        def expected(run: Run) -> np.ndarray:
            if op is None or self._spec.n_scattered or self._spec.sliceable:
                return run.outputs[i]
            # Every rank computes the same, and the op combines all of them.
            return combine(op, [run.outputs[i]] * len(pieces), [1] * len(pieces))

        return self._judge_serial(what, op, got, expected, parts)

    def _compare_update(
        self, i: int, updated: Sequence[Any], pieces: Sequence[Piece], runs: Sequence[Run]
    ) -> None:
        what, op, leaves = f"update of {self._names[i]}", self._ops[i], self._leaves[i]
        if draws(leaves):
            return self._skip(what, op, "it draws random numbers")
        differs = differs_by_rank(self._own_leaves[i], self._spec)
        weights: Dict[int, int] = {}
        for rank, got in enumerate(updated):
            where = f"{what} on rank {rank}"
            own = [(p.rows, run.updated[i]) for p, run in zip(pieces, runs) if p.rank == rank]
            own = [(rows, value) for rows, value in own if rows]
            if not own and self._lineage.has_reductions and not differs and self._all.rows:
                weights[rank] = 0
                continue
            if not own and depends_on_rows(leaves, self._spec):
                self._judge(where, op, "before", measure(got, self._start[rank][i]), 0.0)
                continue
            if not own:
                # It is the same, whatever rows the function is computed with.
                own = [(1, self._serial(self._all._replace(rank=rank)).updated[i])]
            weights[rank] = sum(rows for rows, _ in own)
            self._judge_pieces(where, op, got, [v for _, v in own], [rows for rows, _ in own])
        # Equal values are the serial one on each rank; others are combined.
        groups = {what: [*weights]}
        if not differs:
            groups = {f"{what} on rank {rank}": [rank] for rank in weights}
        elif len({updated[rank].shape for rank in weights}) > 1 and op != "last":
            return self._skip(what, op, "its shape differs between ranks")
        parts = [run.updated[i] for run in runs]
        for name, ranks in groups.items():
            if ranks:
                values = [updated[rank] for rank in ranks]
                got = values[0] if len(ranks) == 1 else combine(op, values, [*weights.values()])
                self._judge_serial(name, op, got, lambda run: run.updated[i], parts)
        return None

    # What counts as rounding.

    def _judge_pieces(
        self, what: str, op: Optional[str], got: Any, parts: Sequence[Any], weights: Sequence[float]
    ) -> None:
        """Compare with plain Theano's results for the pieces, combined."""
        if self._lineage.has_reductions:
            return  # a piece cannot be computed alone
        expected = parts[0] if len(parts) == 1 else combine(op, parts, weights)
        difference = measure(got, _as_collected(expected, op), _scale(op, parts))
        self._judge(
            what, op, "pieces", difference, ROUNDING if self._limit is None else self._limit
        )

    def _judge_serial(
        self,
        what: str,
        op: Optional[str],
        got: Any,
        expected: Callable[[Run], Any],
        parts: Sequence[Any],
    ) -> None:
        """Compare with plain Theano's result for all rows.

        Where that exceeds the limit, the serial result is computed again from numbers that differ
        by one rounding. If these change it as much, like a gradient that is 0 but for rounding, no
        digit of it has a meaning.

        Args:
            expected: finds the result in a serial run.
            parts: the pieces' results, for the magnitude of the summands.
        """
        wanted, scale = _as_collected(expected(self._whole), op), _scale(op, parts)
        limit = self._limit
        if limit is None:
            limit = ROUNDING * np.sqrt(max(self._all.rows, 1))
        difference = measure(got, wanted, scale)
        if limit < difference.error < np.inf:
            if self._noisy is None:
                self._noisy = self._serial(self._all, is_disturbed=True)
            noise = measure(_as_collected(expected(self._noisy), op), wanted, scale).error
            if np.isfinite(noise) and noise > 1.0:
                difference = replace(difference, error=difference.error / noise, noise=noise)
        self._judge(what, op, "serial", difference, limit)

    def _judge(
        self, what: str, op: Optional[str], against: str, difference: Difference, limit: float
    ) -> None:
        self._found.append(Comparison(what, op, self._run, against, difference, float(limit)))

    def _skip(self, what: str, op: Optional[str], reason: str) -> None:
        self._found.append(Comparison(what, op, reason=reason))


def _listed(results: Any) -> List[Any]:
    """Return results as a list of copies, because the next call may use their buffers again."""
    if results is None:
        return []
    items = results if isinstance(results, (list, tuple)) else [results]
    return [np.array(item) for item in items]


def combine(op: Optional[str], parts: Sequence[Any], weights: Sequence[float]) -> np.ndarray:
    """Return the parts' values combined, computed in higher precision, for comparison only.

    Args:
        weights: rows of each part, used for "avg": ``sum(w * v) / sum(w)``.
    """
    arrays = [np.asarray(part) for part in parts]
    if op is None or op == "last":
        return arrays[-1]
    try:
        if op == "gather":
            return np.concatenate([np.atleast_1d(array) for array in arrays])
        stacked = np.stack(arrays)
    except ValueError as error:
        raise InputValueError(
            f"results of the pieces, of shapes {[array.shape for array in arrays]}, cannot be "
            f"combined by op {op!r}; an output with an entry for each row needs op 'gather', as "
            f"in (variable, 'gather')"
        ) from error
    if op in ("max", "min"):
        return np.asarray(stacked.max(axis=0) if op == "max" else stacked.min(axis=0))
    dtype = stacked.dtype
    wide = {"f": np.longdouble, "c": np.clongdouble}.get(dtype.kind, dtype)
    stacked = stacked.astype(wide)
    with np.errstate(all="ignore"):
        if op == "avg":
            factors = np.asarray(weights, np.longdouble) / np.longdouble(sum(weights))
            result = np.sum(stacked * factors.reshape(-1, *[1] * (stacked.ndim - 1)), axis=0)
        else:
            result = (np.sum if op == "sum" else np.prod)(stacked, axis=0, dtype=wide)
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
