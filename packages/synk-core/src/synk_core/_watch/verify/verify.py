"""`verify()`: compare the ranks' results with those of plain Theano.

A function is run in parallel, in slices, and serially on all rows at once. The serial result's sums
are added up in another order, so the limit grows with the rows. A larger difference is not
rounding: rows got lost, weights are wrong, or the function cannot be split that way (a mean
declared "sum", a standard deviation over the batch, an update that is not linear in the rows).

Each rank applies its own update, from its own rows: those of all ranks, combined by the update's op
as an all_reduce() would, are compared with the serial one. A rank without rows makes only the
updates that do not depend on rows.

Differences are counted in epsilons of the largest magnitude in the array, because entries that
cancel to nearly nothing have no more digits. Whole results may do so, too: where one exceeds the
limit, the magnitude of each rank's part counts. And if a serial run from numbers that differ by one
rounding changes it by more than that, so may the order.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from synk_core._graph.leaves import depends_on_rows, differs_by_rank, draws, lineage_of
from synk_core._graph.random_streams import is_random_state
from synk_core._graph.rank_values import RankValues, Values, disturbed, equal_bits
from synk_core._plan.rows import is_int
from synk_core._text import shown
from synk_core.exceptions import InputValueError

from .report import Comparison, Difference, Report, largest_magnitude, measure
from .rows import sliced_rows, whole_inputs

MOST_SLICINGS = 100
"""Numbers of slices that are tried at most: each is a run."""

ROUNDING = 16.0
"""Ulps by which results may differ, times the root of the number of rows for the order of sums."""


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
) -> Report:
    """Run a function in parallel, sliced and serially, and compare; see `Function.verify`."""
    several = _checked_slices(num_slices)
    # NaN is not at least 0.
    is_number = isinstance(limit, (int, float, np.integer, np.floating))
    if limit is not None and not (is_number and limit >= 0):
        raise InputValueError(f"limit: got {shown(limit)}, expected a number of ulps, or None")
    values: List[RankValues] = []
    rows_before = function.rows

    def compare() -> Report:
        values.append(RankValues(runtime, function.get_shared(), function.copiers))
        options = {"batch": batch, "batch_s": batch_s}
        check = _Verification(function, runtime, values[0], args, kwargs, options)
        return check.report(several, output_subset, limit)

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
        args: Sequence[Any],
        kwargs: Dict[str, Any],
        options: Dict[str, Any],
    ) -> None:
        self._function, self._runtime, self._values = function, runtime, values
        self._args, self._kwargs, self._options = args, kwargs, options
        self._spec = spec = function.spec
        self._lineage = lineage = lineage_of(spec)
        self._found: List[Comparison] = []
        variables = values.variables
        self._places = {id(v.container.storage): i for i, v in enumerate(variables)}
        self._names = [v.name or f"shared variable {i}" for i, v in enumerate(variables)]
        self._sliceable = [self._place(variable) for variable in spec.sliceable]
        states = [i for i, v in enumerate(variables) if is_random_state(v)]
        own = {*self._sliceable, *states}
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
        # All ranks start from the master's values of the variables that they share.
        shared = {i: values.saved[runtime.master][i] for i in self._replicated}
        self._start = [{**saved, **shared} for saved in values.saved]

    def _place(self, leaf: Any) -> int:
        container = getattr(leaf, "container", None)
        return -1 if container is None else self._places.get(id(container.storage), -1)

    def report(
        self,
        num_slices: Sequence[int],
        output_subset: Optional[Sequence[int]],
        limit: Optional[float],
    ) -> Report:
        """Run and compare, without saving and restoring."""
        spec, notes = self._spec, []
        self._run = "start"
        self._compare_replicas()
        # The first call comes first: it refuses bad arguments.
        parallel = self._parallel(1, output_subset)
        self._rows = rows = tuple(self._function.rows)
        whole = whole_inputs(spec, self._args, self._kwargs, self._options["batch"])
        sliced = sliced_rows(self._start, self._sliceable, self._options["batch_s"])
        joined = {i: np.concatenate([part[i] for part in sliced]) for i in self._sliceable}
        self._all, self._sliced = (whole, joined), sliced
        self._whole = self._serial(*self._all)
        self._limit = ROUNDING * max(1.0, np.sqrt(sum(rows))) if limit is None else limit
        if not spec.n_scattered and not spec.sliceable:
            notes = ["not run in slices: the function has no rows to slice"]
        elif self._lineage.has_reductions:
            notes = ["not run in slices: its in-graph reductions would reduce slice by slice"]
        subset = list(range(len(spec.outputs)) if output_subset is None else output_subset)
        for count in [1] if notes else [1, *num_slices]:
            if count > 1:
                subset = [i for i in subset if spec.output_ops[i] is not None]
                parallel = self._parallel(count, subset)
            self._run = f"{count} slices" if count > 1 else "parallel"
            outputs, updated = parallel
            for got, i in zip(outputs, subset):
                self._compare_output(i, got)
            for i in sorted(self._leaves):
                self._compare_update(i, [values[i] for values in updated])
        for target, _ in self._lineage.updates:
            if is_random_state(target):
                self._skip(f"update of {target}", "last", "it is the state of a random stream")
        name = repr(spec.name) if spec.name else "the function"
        return Report(name, rows, tuple(self._found), tuple(notes if num_slices else ()))

    def _compare_replicas(self) -> None:
        """Compare the variables that are read with the master's values, from which all start.

        They may differ where the function updates them from each rank's own rows.
        """
        lineage, own = self._lineage, self._own_leaves
        everything = [*lineage.outputs, *(leaves for _, leaves in lineage.updates)]
        read = {self._place(leaf) for leaves in everything for leaf in leaves}
        for i in sorted(read.intersection(self._replicated)):
            if i not in self._leaves or not differs_by_rank(own[i], self._spec):
                for rank, values in enumerate(self._values.saved):
                    wanted = self._start[rank][i]
                    if not equal_bits(values[i], wanted):
                        what = f"{self._names[i]} on rank {rank}"
                        self._add(what, None, "master", measure(values[i], wanted), 0.0)

    def _parallel(
        self, count: int, subset: Optional[Sequence[int]]
    ) -> Tuple[List[np.ndarray], List[Values]]:
        """Run on all ranks; return the requested outputs, and each rank's new values."""
        places = sorted(self._leaves)
        for rank, start in enumerate(self._start):
            self._values.give(rank, {i: start[i] for i in {*places, *self._replicated}})
        options = {key: value for key, value in self._options.items() if value is not None}
        if count > 1:
            options["num_slices"] = count
        if subset is not None:
            options["output_subset"] = list(subset)
        outputs = _listed(self._function(*self._args, **options, **self._kwargs))
        return outputs, [self._values.fetch(rank, places) for rank in range(self._runtime.size)]

    def _serial(self, inputs: List[Any], sliced: Values, is_disturbed: bool = False) -> Run:
        """Run plain Theano on all rows, in the master.

        Args:
            sliced: rows of the sliceable variables, of all ranks.
            is_disturbed: start from parameters and inputs that differ by one rounding.
        """
        master = self._runtime.master
        start = {i: self._start[master][i] for i in {*self._leaves, *self._replicated}}
        if is_disturbed:
            start = {i: disturbed(v) if i in self._replicated else v for i, v in start.items()}
            sliced = {i: disturbed(value) for i, value in sliced.items()}
            inputs = [disturbed(value) for value in inputs]
        given = {**start, **sliced}
        self._values.give(master, given)
        outputs = _listed(self._function.as_theano(*inputs))
        updated = self._values.fetch(master, sorted(self._leaves))
        self._values.give(master, {i: self._start[master][i] for i in given})
        return Run(outputs, updated)

    @cached_property
    def _disturbed(self) -> Run:
        return self._serial(*self._all, is_disturbed=True)

    @cached_property
    def _parts(self) -> List[Run]:
        """The rows of each rank alone; for magnitudes only, so `row_share()` is 1."""
        n, whole, stop, runs = self._spec.n_scattered, self._all[0], 0, []
        for rows, sliced in zip(self._rows, self._sliced):
            start, stop = stop, stop + rows
            own = [value[start:stop] for value in whole[:n]]
            if rows:
                runs.append(self._serial(own + whole[n:], sliced))
        return runs

    def _compare_output(self, i: int, got: np.ndarray) -> None:
        op, leaves = self._spec.output_ops[i], self._lineage.outputs[i]
        variable = self._spec.outputs[i]
        what = f"output {i}" + (f" ({variable.name})" if variable.name else "")
        if draws(leaves):
            return self._skip(what, op, "it draws random numbers")
        if got.dtype == object:
            return self._skip(what, op, "it is no array")
        if op is None and differs_by_rank(leaves, self._spec):
            return self._skip(what, op, "the master's own result is computed from its own rows")
        # Without rows every rank computes the same, and the op combines all of them.
        has_rows = self._spec.n_scattered or self._spec.sliceable
        parts = 1 if has_rows else len(self._rows)
        return self._judge(
            what, op, got, lambda run: combine(op, [run.outputs[i]] * parts, [1] * parts)
        )

    def _compare_update(self, i: int, updated: Sequence[Any]) -> None:
        what, op, leaves = f"update of {self._names[i]}", self._ops[i], self._leaves[i]
        if draws(leaves):
            return self._skip(what, op, "it draws random numbers")
        depends = depends_on_rows(leaves, self._spec)
        # In-graph reductions make it equal on all ranks, also on those without rows.
        is_equal = not differs_by_rank(self._own_leaves[i], self._spec)
        is_equal = is_equal and (any(self._rows) or not depends)
        computed = [rank for rank, rows in enumerate(self._rows) if rows or is_equal]
        for rank in sorted({*range(len(updated))} - {*computed}):
            difference = measure(updated[rank], self._start[rank][i])
            self._add(f"{what} on rank {rank}", op, "before", difference, 0.0)
        if is_equal:
            for rank in computed:
                self._judge(f"{what} on rank {rank}", op, updated[rank], lambda r: r.updated[i])
            return None
        values = [updated[rank] for rank in computed]
        if len({value.shape for value in values}) > 1 and op != "last":
            return self._skip(what, op, "its shape differs between ranks")
        if values:
            got = combine(op, values, [self._rows[rank] for rank in computed])
            self._judge(what, op, got, lambda run: run.updated[i])
        return None

    def _judge(self, what: str, op: Optional[str], got: Any, pick: Callable[[Run], Any]) -> None:
        """Compare with plain Theano's result for all rows.

        Args:
            pick: finds the result in a serial run.
        """
        wanted, limit = pick(self._whole), self._limit
        difference = measure(got, wanted)
        if limit < difference.ulps < np.inf:
            scale = _scale(op, [pick(run) for run in self._parts])
            difference = measure(got, wanted, scale)
            noise = measure(pick(self._disturbed), wanted, scale).ulps
            # No digit of a gradient that is 0 but for rounding has a meaning.
            limit *= max(noise, 1.0) if np.isfinite(noise) else 1.0
        self._add(what, op, "serial", difference, limit)

    def _add(
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
    if op == "gather":
        return np.concatenate([np.atleast_1d(array) for array in arrays])
    stacked = np.stack(arrays)
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
