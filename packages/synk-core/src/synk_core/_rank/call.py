"""One rank's share of a call: take its rows, compute; the master collects the results.

The same functions in the master and in the workers. A call of rows that lie together runs the plain
form once, and its updates are the engine's own; `.slices` does the others.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy import generic, ndarray

from synk_core._graph.fast_call import trusting
from synk_core._graph.shared import changed_by
from synk_core._graph.values import is_device_type
from synk_core._plan.ops import REDUCE_OPS
from synk_core._wire.arrays import PIECE
from synk_core._wire.flight import KINDS, Phase, in_slice
from synk_core._wire.messages import Call, Prefetch, Rows
from synk_core.device import Launcher, VectorParts
from synk_core.engine import machine_of
from synk_core.exceptions import SynkError

from .collectives import PreparedCollective
from .functions import LoadedFunction
from .in_graph import GraphReductions
from .outputs import collect, collect_on_device, reduce_to
from .overlap import OverlappedAverage
from .slices import Slices
from .workplace import Workplace

# Members of enums are slow to look up in some versions of Python.
_COPY, _COMPUTE, _SLICE = Phase.COPY, Phase.COMPUTE, Phase.SLICE
_COLLECTIVE, _REDUCE = Phase.COLLECTIVE, Phase.REDUCE


Execute = Callable[[Any, Sequence[Any]], List[Any]]
"""Runs a function on arguments, and does more: reductions inside it, or an average of its parts."""


class CallInputs:
    """Takes the rows of a call, again and again.

    Attributes:
        scattered: the arrays of which rows are taken, and how.
        broadcast: arrays that are taken whole.
        copies: whether rows are copied: by an index, or for a copy to the device.
        brought: by argument, whether it lies on the device when the function gets it.
    """

    def __init__(self, here: Workplace, call: Call, loaded: LoadedFunction, function: Any) -> None:
        arrays = here.arrays
        self._here, self._buffers = here, loaded.buffers
        self._rows = call.rows or Rows(bounds=())
        self._index = None if self._rows.index is None else arrays.get(self._rows.index)
        self.scattered = [(arrays.get(item.array), item) for item in call.scattered]
        self.broadcast = [arrays.get(ref) for ref in call.broadcast]
        # Whether `ndarray.take` needs no second buffer for its rows.
        self._takes = [
            array.flags.c_contiguous and array.flags.aligned and not item.axis
            for array, item in self.scattered
        ]
        self.brought: List[bool] = getattr(machine_of(function), "brought", None) or [
            is_device_type(item.variable.type) for item in function.maker.inputs
        ]
        self.brings = any(self.brought)
        self.copies = self._index is not None
        for i, array in enumerate(self.arrays):
            is_scattered = i < len(self.scattered)
            # Rows by an index go through a buffer anyway.
            if self.brought[i] and not (is_scattered and self._index is not None):
                if not here.device.lock(array) and is_scattered:
                    self.copies = True

    @property
    def arrays(self) -> List[np.ndarray]:
        """All arrays, in the order of the arguments."""
        return [array for array, _ in self.scattered] + self.broadcast

    def take(self, origin: int, start: int, stop: int, turn: int = 0) -> List[np.ndarray]:
        """Return the arguments for rows ``start:stop`` of the selection: views, or copies in
        buffers of this `turn` that are reused from call to call; `origin` is its lowest row."""
        arguments = []
        for position, (array, item) in enumerate(self.scattered):
            every = np.moveaxis(array, item.axis, 0) if item.axis else array
            if item.selected:
                rows = every[start:stop]
            elif self._index is not None:
                rows, index = self._buffer(position, every, stop - start, turn), self._index
                if rows.nbytes < PIECE and self._takes[position]:
                    # To clip spares NumPy a second buffer.
                    array.take(index[start:stop], 0, rows, "clip")
                else:
                    self._here.arrays.take(every, index[start:stop], rows)
            else:
                span = self._rows.span(start, stop, origin, origin if item.minibatch else 0)
                rows = every[span]
                if self.copies and self.brought[position]:
                    buffer = self._buffer(position, every, stop - start, turn)
                    np.copyto(buffer, rows)
                    rows = buffer
            arguments.append(np.moveaxis(rows, 0, item.axis) if item.axis else rows)
        return arguments + self.broadcast

    def _buffer(self, position: int, like: np.ndarray, length: int, turn: int) -> np.ndarray:
        """Return memory for `length` rows of the input at `position`."""
        held, row = self._buffers.get((position, turn)), like.shape[1:]
        if held is None or len(held) < length or held.shape[1:] != row or held.dtype != like.dtype:
            held = self._here.device.buffer((length, *row), like.dtype)
            self._buffers[position, turn] = held
        return held[:length]

    def bring(self, arguments: Sequence[Any]) -> List[Any]:
        """Return arguments where the function gets them; `Device.settle` follows."""
        bring = self._here.device.argument
        return [bring(a) if b else a for a, b in zip(arguments, self.brought)]

    def close(self) -> None:
        """Drop references to shared memory."""
        self.scattered, self.broadcast = [], []
        self._index = None


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
        comm, loaded = here.comm, here.functions[call.function_id]
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
        self._bounds, self._counts = call.shares(comm.size)
        rows = self._counts[comm.rank]
        recipe = loaded.recipe
        wanted = range(len(recipe.output_ops)) if call.outputs is None else call.outputs
        self._ops = [recipe.output_ops[position] for position in wanted]
        # None: there is one execution, of rows that lie together.
        self._slices: Optional[Slices] = None
        is_whole = call.num_slices == 1 and not call.form.accumulate and call.form.select is None
        if not is_whole or recipe.row_shares or recipe.sliceable or not rows:
            self._slices = Slices(here, call, loaded, self._inputs, self._ops, self._run)
        # Whether all ranks just run the function: else some need results of earlier acts at once.
        self._joins = self._slices is None and all(self._counts) and self._reductions is None
        # A slice computes only a part of a number.
        self.sends_early = self._slices is None and (
            comm.size == 1 or here.device.takes_collectives
        )
        self._origin: Optional[int] = None
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
        self._average = None
        # All ranks see this alike.
        if averages is not None and averages[0] == self._call.function_id and self._joins:
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
        here, counts, flight = self._here, self._counts, self._here.flight
        if not self._joins or here.check[0] is not None:
            here.device.flush()
        if self._changed:
            here.journal.keep(self._changed)
        if self._average is not None:
            self._average.begin(self._counts)
        if self._launcher is not None:
            self._launcher.sends_early = self.sends_early
        slices = self._slices
        if slices is not None:
            counts = slices.select()
        begin = perf_counter()
        if self._reductions is not None:
            self._reductions.begin(counts, self._call.num_slices)
        values: Optional[List[Any]]
        if slices is None:
            values = self._compute_whole(origin)
        else:
            values = slices.compute(self._careful, origin, self._changed)
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
            later, results, master = {}, [], here.master
            for i, op in enumerate(ops):
                value = None if values is None else values[i]
                if type(value) is not ndarray or op not in REDUCE_OPS or comm.size == 1:
                    value = collect(comm, master, op, value, weight)
                elif op == "avg":
                    value = comm.reduce(value, op, master, weight=weight)
                else:
                    value = comm.reduce(value, op, master)
                results.append(np.asarray(value) if isinstance(value, generic) else value)
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
        if self._slices is not None or uploads is None or here.check[0] is not None:
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

    def _run(
        self, function: Any, arguments: Sequence[np.ndarray], begin: int, piece: int = 0
    ) -> List[Any]:
        """Run the function on rows of the selection, from row `begin`: of a slice, from 1."""
        check, execute = self._here.check[0], self._strategy
        try:
            if check is None:
                return self._launch(function, piece, arguments, execute)
            launch = partial(self._launch, function, piece)
            about = self._loaded, self._call, begin, piece, self._reductions, launch, arguments
            return check(Execution(*about))
        except Exception as error:
            if self._call.scattered and not isinstance(error, SynkError):
                rows = arguments[0].shape[self._call.scattered[0].axis]
                end, total = begin + rows - 1, sum(self._counts)
                self._here.doing = f"{self.doing}, rows {begin} to {end} of the call's {total}"
            raise

    def _launch(
        self,
        function: Any,
        piece: int,
        arguments: Sequence[np.ndarray],
        execute: Optional[Execute],
    ) -> List[Any]:
        try:
            if self._inputs.brings:
                self._here.flight.enter(_COPY)
                arguments = self._inputs.bring(arguments)
            self._here.flight.enter(in_slice(_SLICE, piece) if piece else _COMPUTE)
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
        if self._slices is not None:
            self._slices.close()
        self._arguments = []
        self._ahead = None


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
