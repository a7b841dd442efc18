"""One rank's share of a call: its rows, slice by slice; the master collects the results.

The same functions in the master and in the workers. A call that is not sliced runs the plain
form once, and its updates are the engine's own. A sliced call runs every slice from the original
values of the updated variables, accumulates outputs and updates weighted by rows, and applies
the updates once, at the end. Updates of random states are the exception: they advance with
every execution.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from synk_core._graph.fast_call import trusting
from synk_core._graph.shared import changed_by, store, value_of
from synk_core._plan.rows import (
    Selection,
    read_selector,
    require_own_row,
    select,
    selecting,
    split_rows,
)
from synk_core._wire.flight import KINDS, Phase, in_slice
from synk_core._wire.messages import ROWLESS, Call, Prefetch
from synk_core.device import Launcher, VectorParts
from synk_core.exceptions import InputValueError, SynkError

from .collectives import PreparedCollective
from .functions import LoadedFunction
from .in_graph import GraphReductions
from .inputs import CallInputs
from .outputs import Accumulator, collect, collect_on_device, reduce_to
from .overlap import OverlappedAverage
from .workplace import Workplace

# Members of enums are slow to look up in some versions of Python.
_COPY, _COMPUTE, _SLICE = Phase.COPY, Phase.COMPUTE, Phase.SLICE
_COLLECTIVE, _REDUCE = Phase.COLLECTIVE, Phase.REDUCE


Execute = Callable[[Any, Sequence[Any]], List[Any]]
"""Runs a function on arguments, and does more: reductions inside it, or an average of its parts."""


class CallResult(NamedTuple):
    """A rank's result of a call: the master's, and what others still have to give for it.

    Attributes:
        later: places of those outputs that are still this rank's own, by op.
        weight: of these, in averages.
        report: of a variant of the call, such as a proof.
    """

    values: Sequence[Any]
    counts: Tuple[int, ...]
    later: Mapping[str, Sequence[int]] = MappingProxyType({})
    weight: float = 1.0
    report: Any = None

    def collected(self, comm: Any, master: int) -> CallResult:
        """Return the result with all ranks' outputs, in host memory by now; blocks for them."""
        values = list(self.values)
        for op, places in self.later.items():
            own = [values[place] for place in places]
            reduced = reduce_to(comm, master, op, own, self.weight)
            for place, value in zip(places, reduced or ()):
                values[place] = value
        return self._replace(values=values, later={})


_result: Any = tuple.__new__  # the class's own constructor is written in Python


class Execution(NamedTuple):
    """One execution of a compiled function, of some of the rank's rows.

    Attributes:
        begin: the row of the selection that is row 0 here.
        piece: the number of the slice, from 1; 0 without slices.
        in_graph: the function's `GraphReductions`, or None.
        launch: runs the function, given its arguments and an `Execute` or None.
        arguments: in host memory.
    """

    loaded: LoadedFunction
    call: Call
    begin: int
    piece: int
    in_graph: Any
    launch: Callable[[Sequence[Any], Any], List[Any]]
    arguments: Sequence[Any]


class PreparedCall:
    """A call that this rank has read and can perform again and again.

    Attributes:
        sends_early: whether its outputs without axes are results as soon as they are computed.
        synchronizes: whether the master has the result only when all ranks have computed.
    """

    def __init__(self, here: Workplace, call: Call) -> None:
        arrays, comm, loaded = here.arrays, here.comm, here.functions[call.function_id]
        self._here = here
        self._comm = comm
        self._call = call
        self._loaded = loaded
        self._function = loaded.forms[call.form]
        nodes = loaded.reductions(call.form)
        self._reductions: Optional[GraphReductions] = None
        if nodes and here.size > 1:
            self._reductions = GraphReductions(nodes, loaded.recipe.replicated, here)
        self._inputs = CallInputs(here, call, loaded, self._function)
        self._selectors = [(arrays.get(s.array), s.is_slice) for s in call.selectors]
        self._bounds = ((0, 0),) * comm.size if call.rows is None else call.rows.bounds
        self._counts = (1,) * comm.size if call.rows is None else call.rows.counts
        rows = self._counts[comm.rank]
        recipe = loaded.recipe
        wanted = range(len(recipe.output_ops)) if call.outputs is None else call.outputs
        self._ops = [recipe.output_ops[position] for position in wanted]
        self._selects = bool(recipe.sliceable)
        # Whether there is one execution, of rows that lie together.
        self._whole = (
            call.num_slices == 1
            and not call.form.accumulate
            and call.form.select is None
            and not recipe.row_shares
            and not (self._selects and call.rows is None)
            and rows > 0
        )
        # Whether all ranks just run the function: else some need results of earlier acts at once.
        self._joins = self._whole and all(self._counts) and self._reductions is None
        # A slice computes only a part of a number.
        self.sends_early = self._whole and (comm.size == 1 or here.device.takes_collectives)
        self._origin: Optional[int] = None
        self._piece = 0
        self._arguments: List[np.ndarray] = []
        self._ahead: Optional[List[Any]] = None  # arguments whose rows were taken before
        self._average: Optional[OverlappedAverage] = None
        # How the function is executed, if it is not just called.
        reductions = self._reductions
        self._strategy: Optional[Execute] = None if reductions is None else reductions.execute
        self._use(self._function)
        self.name = recipe.name
        self.doing = f"function {recipe.name!r}"
        self.synchronizes = any(op is not None for op in self._ops)
        self.record = (KINDS.index("function"), recipe.function_id)

    def _use(self, function: Any, parts: Optional[VectorParts] = None) -> None:
        """Compute with this form, which reports `parts` of a vector while it computes."""
        recipe, registry = self._loaded.recipe, self._here.registry
        self._function = function
        self._launcher: Optional[Launcher] = None
        self._quick = trusting(function, self._inputs.arrays)
        # A device's functions check shapes themselves; the check would take arrays from there.
        is_functional = self._here.device.is_functional and self._inputs.brings
        self._careful: Any = self._quick if is_functional else function
        if self._quick is not function and self._reductions is None:
            launcher = self._loaded.launcher(function, self._here.device, parts)
            if launcher is not None and launcher.is_possible:
                self._quick = self._careful = self._launcher = launcher
        # These get new values: the journal keeps the old ones.
        self._changed = changed_by(function)
        if self._call.form.accumulate:
            self._changed += [registry[n].container.storage for n in recipe.updated]
        self._changed += [registry[n].container.storage for n in recipe.row_shares]

    def plan_overlap(self, following: Any) -> Optional[OverlappedAverage]:
        """Return what averages a variable that this call computes while it computes others; None
        unless the act that comes next in this order is to do just that."""
        here, loaded, form = self._here, self._loaded, self._call.form
        averages = following.averages if isinstance(following, PreparedCollective) else None
        # All ranks see this alike.
        is_possible = self._whole and all(self._counts) and self._reductions is None
        self._average = None
        if averages is not None and averages[0] == self._call.function_id and is_possible:
            key = form, averages[1]
            if key not in loaded.averages:
                found = OverlappedAverage.of(here, loaded.forms[form], averages[1])
                loaded.averages[key] = found
            self._average = average = loaded.averages[key]
            if average is not None and self._function is not average.function:
                self._use(average.function, average.parts)
        if self._reductions is None:
            self._strategy = None if self._average is None else self._average.execute
        return self._average

    def __call__(self, origin: int, place: int) -> Optional[CallResult]:
        """Do this rank's part, updates included. Blocks until all ranks have done theirs, if
        there is anything to collect now. Return the outputs; None where nothing is to collect.

        `origin` is the lowest row of the selection, `place` is in `times`, where there is room.
        """
        here, counts = self._here, self._counts
        rank, flight = here.rank, here.flight
        if not self._joins or here.check[0] is not None:
            here.device.flush()
        if self._changed:
            here.journal.keep(self._changed)
        if self._average is not None:
            self._average.begin(self._counts)
        if self._launcher is not None:
            self._launcher.sends_early = self.sends_early
        begin = perf_counter()
        values: Optional[List[Any]]
        selection = None
        if self._selects:
            selection, counts = self._select_rows()
            begin = perf_counter()
        if self._reductions is not None:
            self._reductions.begin(counts, self._call.num_slices)
        if self._whole:
            values = self._compute_whole(origin)
        else:
            compute = self._compute if counts[rank] else self._compute_without_rows
            values = compute(origin, counts, selection)
        if self._reductions is not None:
            flight.enter(_COLLECTIVE)
            self._reductions.finish()
        flight.enter(_REDUCE)
        computed = perf_counter()
        if place < len(here.times):
            here.times[place] = computed - begin
        self._loaded.counts = counts
        result = self._collect(values, counts)
        return result if here.is_master or result.later else None

    def _collect(self, values: Optional[List[Any]], counts: Tuple[int, ...]) -> CallResult:
        """Collect the outputs of all ranks, as far as that is not better done later."""
        here, comm, ops = self._here, self._comm, self._ops
        # A call without rows is the master's alone, whose result counts whole.
        weight = float(counts[here.rank]) or 1.0
        if here.device.takes_collectives and all(counts):
            results, places = collect_on_device(
                comm, here.master, here.device, ops, values or [], weight
            )
            later: Dict[str, List[int]] = {}
            for place in places:
                later.setdefault(str(ops[place]), []).append(place)
            if not here.is_master:
                results = [value if i in places else None for i, value in enumerate(results)]
        else:
            later = {}
            results = []
            for i, op in enumerate(ops):
                value = None if values is None else values[i]
                results.append(collect(comm, here.master, op, value, weight))
        if here.device.is_gpu and (here.is_master or later):
            results = here.device.send(results)
        return _result(CallResult, (results, counts, later, weight, None))

    def _compute_whole(self, origin: int) -> List[Any]:
        """Execute once, on views of the inputs or on excerpts by index."""
        start, stop = self._bounds[self._comm.rank]
        arguments, self._ahead = self._ahead, None
        if self._here.check[0] is not None:
            arguments = None  # the check takes arrays in host memory
        if arguments is None and (origin != self._origin or self._inputs.copies):
            self._here.flight.enter(_COPY)
            # What interrupts in between leaves no rows that pass for others.
            self._origin = None
            self._arguments = self._inputs.take(origin, start, stop)
            self._origin = origin
        if arguments is None:
            arguments = self._arguments
        results = self._run(self._quick, arguments, start)
        wanted = self._call.outputs
        return results if wanted is None else [results[i] for i in wanted]

    def prefetch(self, origin: int) -> None:
        """Take this rank's rows now, and start to copy them to the device; `__call__` uses them.

        Does nothing where that saves no time: on the processor, in slices, without rows.
        """
        here, loaded = self._here, self._loaded
        self._ahead = None
        if loaded.ahead is not None:
            loaded.ahead.drop_prefetched()
        uploads = here.device.uploads
        if not self._whole or uploads is None or here.check[0] is not None:
            return
        here.flight.enter(_COPY)
        turn = loaded.turn
        loaded.ahead, loaded.turn = self, 3 - turn
        places = [(self._call.function_id, i, turn) for i in range(len(self._inputs.brought))]
        uploads.wait(places)
        start, stop = self._bounds[self._comm.rank]
        arguments = self._inputs.take(origin, start, stop, turn)
        self._ahead = [
            uploads.start(place, array) if brought else array
            for place, array, brought in zip(places, arguments, self._inputs.brought)
        ]

    def drop_prefetched(self) -> None:
        """Forget prefetched rows: the call takes them itself."""
        self._ahead = None

    def _run(self, function: Any, arguments: Sequence[np.ndarray], begin: int) -> List[Any]:
        """Run the function on rows of the selection, from row `begin`."""
        check = self._here.check[0]
        try:
            if check is None:
                return self._launch(function, arguments, self._strategy)
            loaded, call, launch = self._loaded, self._call, partial(self._launch, function)
            about = loaded, call, begin, self._piece, self._reductions, launch, arguments
            return check(Execution(*about))
        except Exception as error:
            if self._call.scattered and not isinstance(error, SynkError):
                rows = arguments[0].shape[self._call.scattered[0].axis]
                end, total = begin + rows - 1, sum(self._counts)
                self._here.doing = f"{self.doing}, rows {begin} to {end} of the call's {total}"
            raise

    def _launch(
        self, function: Any, arguments: Sequence[np.ndarray], execute: Optional[Execute]
    ) -> List[Any]:
        try:
            if self._inputs.brings:
                self._here.flight.enter(_COPY)
                arguments = self._inputs.bring(arguments)
            self._here.flight.enter(in_slice(_SLICE, self._piece) if self._piece else _COMPUTE)
            results: List[Any] = (
                function(*arguments) if execute is None else execute(function, arguments)
            )
        except BaseException:
            # The engine does so only after a success; here it would keep shared memory alive.
            for container in self._function.input_storage[: len(arguments)]:
                container.storage[0] = None
            raise
        finally:
            if self._inputs.brings:
                self._here.device.settle()
        return results

    def close(self) -> None:
        """Drop references to shared memory: others may still hold this object."""
        self._inputs.close()
        self._selectors = []
        self._arguments = []
        self._ahead = None

    def _select_rows(self) -> Tuple[Selection, Tuple[int, ...]]:
        """Return this rank's rows of sliceable variables, and all ranks' counts; blocks."""
        counts = self._counts
        self._here.flight.enter(_COPY)
        selection = self._select()
        self._here.flight.enter(_COLLECTIVE)
        if self._call.rows is not None:
            # Every rank has the rows it needs before any rank computes.
            self._comm.barrier()
        else:
            parts = self._comm.all_gather(np.asarray(selection.count, np.int64))
            counts = tuple(int(part) for part in parts)
        require_own_row(self._ops, counts, self._here.master, self.doing)
        return selection, counts

    def _select(self) -> Selection:
        """Return the rows of its sliceable shared variables that this rank uses; raise if they
        do not fit each other or the scattered inputs' share."""
        rank, registry = self._comm.rank, self._here.registry
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
        if self._call.rows is not None and selection.count != self._counts[rank]:
            raise InputValueError(
                f"rank {rank} got {self._counts[rank]} rows of the scattered inputs, but uses "
                f"{selection.count} of its sliceable shared variables; the two must be equal"
            )
        return selection

    def _compute(
        self, origin: int, counts: Sequence[int], selection: Optional[Selection]
    ) -> List[Any]:
        """Execute slice by slice."""
        rank, total = self._comm.rank, sum(counts)
        rows = counts[rank]
        # As many as there are rows at most: the others are empty.
        pieces = split_rows(rows, min(self._call.num_slices, max(rows, 1)))
        accumulates = self._call.form.accumulate
        sliced = accumulates or len(pieces) > 1
        first = self._bounds[rank][0]
        recipe = self._loaded.recipe
        wanted, n_outputs = self._call.outputs, len(recipe.output_ops)
        ops = [*self._ops, *(recipe.update_ops if accumulates else ())] if sliced else []
        accumulators = [Accumulator(op, self.doing) for op in ops]
        values: List[Any] = []
        try:
            for i, (start, stop) in enumerate(pieces):
                self._piece = i + 1 if sliced else 0
                self._here.flight.enter(in_slice(_COPY, self._piece))
                self._here.flight.raise_if_interrupted(self._here.serial)
                self._set_row_share((stop - start) / total if total else 1.0)
                arguments = self._inputs.take(origin, first + start, first + stop)
                arguments += selecting(self._call.form.select, selection, start, stop)
                values = self._run(self._careful, arguments, first + start)
                # Not every linker takes output_subset, and updates have to run whatever is wanted.
                if wanted is not None:
                    values = [values[i] for i in wanted] + values[n_outputs:]
                for accumulator, value in zip(accumulators, values):
                    # The one piece of a call without rows counts whole.
                    accumulator.add(value, stop - start or 1)
        finally:
            self._piece = 0
            self._set_row_share(1.0)
        if not sliced:
            return values
        results = [accumulator.result() for accumulator in accumulators]
        n_wanted = len(self._ops)
        for number, value in zip(recipe.updated, results[n_wanted:]):
            store(self._here.registry[number], value)
        return results[:n_wanted]

    def _compute_without_rows(
        self, origin: int, counts: Sequence[int], selection: Optional[Selection]
    ) -> Optional[List[Any]]:
        """Make the updates that no row goes into; None: this rank contributes nothing.

        If no rank has rows, the master computes outputs on nothing.
        """
        values = None
        if not any(counts) and self._comm.rank == self._here.master:
            kept = self._here.journal.kept
            before = [(storage, kept(storage[0])) for storage in self._changed]
            try:
                values = self._compute(origin, counts, selection)
            finally:
                for storage, value in before:
                    storage[0] = value
        rowless = self._loaded.forms.get(ROWLESS)
        if rowless is not None:
            self._here.flight.enter(_COMPUTE)
            self._here.flight.raise_if_interrupted(self._here.serial)
            brought = self._inputs.brought[len(self._call.scattered) :]
            bring, whole = self._here.device.bring, self._inputs.broadcast
            rowless(*(bring(a) if b else a for a, b in zip(whole, brought)))
        return values

    def _set_row_share(self, share: float) -> None:
        for number in self._loaded.recipe.row_shares:
            variable = self._here.registry[number]
            store(variable, np.asarray(share, dtype=variable.dtype))


class PreparedPrefetch:
    """A prefetch that this rank has read: of the rows of a call that it has prepared."""

    synchronizes = False

    def __init__(self, here: Workplace, act: Prefetch) -> None:
        self._call: Optional[PreparedCall] = here.acts[act.call] if act.call else None
        self.name = self.doing = "prefetch"
        self.record = (KINDS.index("prefetch"), 0)
        if self._call is not None:
            self.doing = f"prefetch for {self._call.doing}"
            self.record = (self.record[0], self._call.record[1])

    def __call__(self, origin: int, place: int) -> None:  # noqa: ARG002 - all acts are called alike
        """Take the rows. Never waits for other ranks."""
        if self._call is not None:
            self._call.prefetch(origin)
