"""Functions that are recorded as CUDA graphs in their second call, and replayed from the fourth on.

A replay costs the host one launch. A graph has arrays of its own: inputs are copied to them, and
results to new arrays. The third call computes both ways: a function is replayed only if the results
agree and that is quicker. The first graph ends with the outputs without axes (see `scalars`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from functools import partial
from itertools import islice, zip_longest
from typing import Any, Callable, List, NamedTuple, Optional, Sequence

import numpy as np

from synk_core.adapting import (
    SHIELD,
    bare,
    empty_like,
    is_on_device,
    rebuild,
    wholes_among,
)
from synk_core.device import REPLAYED, is_of_the_group
from synk_theano._linking import linked_by_kind

from .capturable import NotCapturableError, Pure, pure_form
from .packing import CommonInputs, PackedResults, Packing, vectors_of
from .parts import Aim, Cuts, Parts
from .scalars import Scalars, reporting_scalars

_logger = logging.getLogger(__name__)

MOST_SHAPES = 4
"""Graphs of one function, for inputs of different shapes; the least recently used one goes."""

MOST_UNUSED = 16
"""Shapes without a replay, after which a function is recorded no more."""

LARGEST_PACKED = 1 << 20
"""Bytes of the largest result that is copied together with others."""

SLOWEST = 1.02
"""Longest replay, as a multiple of a plain run: this time does not show that the host is free."""

_RECORDED, _COMPARED = 2, 3
"""Numbers of calls with inputs of one shape."""


class _StaleGraphError(Exception):
    """The recording was interrupted, or a variable has got another shape since."""


class CapturedFunction:
    """A `Launcher` that records a function of the default device, and replays it if it can."""

    def __init__(
        self, function: Any, graphs: Any, name: str, parts: Optional[Parts] = None
    ) -> None:
        self._function = function
        self._plain: Callable[..., List[Any]] = function
        self._graphs = graphs
        self._name = name
        self._parts = parts or Parts(lambda *_: None, ())
        self._shapes: OrderedDict[Any, _Shape] = OrderedDict()
        self.sends_early = True
        self._unused = 0
        self._replays = 0
        self._why = ""
        self._machines: Optional[_Machines] = None
        self._places = [container.storage for container in function.input_storage]
        self._pure: Optional[Pure] = None
        try:
            self._pure = pure_form(function)
            self._plain = bare(function)
            graphs.functions.add(self)
        except NotCapturableError as reason:
            self._why = str(reason)

    @property
    def state(self) -> str:
        return self._why or (REPLAYED if self._replays else "not called often enough")

    @property
    def is_possible(self) -> bool:
        return self._pure is not None

    @property
    def is_recorded(self) -> bool:
        """Return whether it uses the memory of graphs."""
        return bool(self._shapes)

    def __call__(self, *arguments: Any) -> List[Any]:
        if self._pure is None:
            return self._plain(*arguments)
        try:
            return self._computed(self._pure, arguments)
        except BaseException as error:
            # What was allocated may be freed only when the error is: outside of graphs' memory.
            with SHIELD:  # half of a graph gives wrong results, and half of a list loses memory
                self._graphs.reset()
            if not isinstance(error, Exception) or is_of_the_group(error):
                raise
            why = f"{type(error).__name__}: {error}"
            if self._parts.aim is not None and self._parts.aim.started:
                # Other ranks have begun to reduce parts: it cannot be computed again.
                self._give_up(why, logging.WARNING)
                raise
        # If this fails, too, the error is the function's own.
        results = self._plain(*arguments)
        self._give_up(why, logging.WARNING)
        return results

    def _computed(self, pure: Pure, arguments: Sequence[Any]) -> List[Any]:
        if self._machines is None:
            self._machines = _machines_of(pure)
        values = [*arguments, *(place[0] for place in self._places[len(arguments) :])]
        hosted = self._machines.hosted(*values)
        n_crossing = len(hosted) - len(pure.on_host)
        values += hosted[:n_crossing]
        aim = self._parts.aim
        if aim is None and self._parts.pieces:
            # An exception: usually the parts go to an aim.
            return self._plain(*arguments)
        key = aim is None, *(value.shape for value in arguments)
        try:
            shape = self._shape(key, self._machines)
            results = shape.compute(values, aim)
        except _StaleGraphError:
            with SHIELD:
                self._shapes.pop(key).close()
            shape = self._shape(key, self._machines)
            results = shape.compute(values, aim)
        if shape.replays:
            self._replays += 1
        elif shape.problem:
            self._give_up(shape.problem, logging.INFO)
            self._plain = reporting_scalars(self._function, self._send) or self._plain
        for place, result in zip(pure.on_host, hosted[n_crossing:]):
            results.insert(place, result)
        n_outputs = len(results) - len(pure.updated)
        for number, value in zip(pure.updated, results[n_outputs:]):
            self._places[number][0] = value
        return results[:n_outputs]

    def _shape(self, key: Any, machines: _Machines) -> _Shape:
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = _Shape(machines, self._graphs, self._parts, self._send)
            if len(self._shapes) > MOST_SHAPES:
                with SHIELD:
                    oldest = self._shapes.popitem(last=False)[1]
                    self._unused += not oldest.replays
                    oldest.close()
            if self._unused > MOST_UNUSED:
                shape.problem = "its inputs have other shapes in most calls"
        self._shapes.move_to_end(key)
        return shape

    def _send(self, values: Sequence[Any]) -> None:
        if self.sends_early:
            self._graphs.send(values)

    def _give_up(self, why: str, level: int) -> None:
        self._why, self._pure = why, None
        _logger.log(level, "%s is not replayed: %s", self._name, why)
        self.close()

    def close(self) -> None:
        """Drop all graphs for good; return their memory if no other function has graphs."""
        with SHIELD:
            self.drop()
            self._graphs.leave(self)

    def drop(self) -> None:
        """Drop all graphs, and what they work on; later calls make new ones."""
        for shape in self._shapes.values():
            shape.close()
        self._shapes.clear()
        with self._graphs.own_memory():
            self._machines = None


class _Machines(NamedTuple):
    """Callables of the parts of a pure form, and the scalars of `whole`.

    Attributes:
        targets: for each result of `whole`, the input whose new value it is; None for an output.
    """

    targets: List[Optional[int]]
    scalars: Scalars
    whole: Callable[..., List[Any]]
    hosted: Callable[..., List[Any]]
    crossing: Callable[..., List[Any]]


def _machines_of(pure: Pure) -> _Machines:
    """Build the callables, without compiling anything."""
    scalars = Scalars(pure.whole, pure.targets.count(None))
    parts = (scalars.reporting(pure.whole), pure.hosted, pure.crossing)
    with linked_by_kind():
        machines: List[Any] = [
            bare(rebuild(part)) if part is not None else lambda *_: [] for part in parts
        ]
    return _Machines(pure.targets, scalars, *machines)


class _Shape:
    """A function for inputs of one shape.

    Attributes:
        problem: why it is not replayed; "" if it is, or may be.
    """

    def __init__(
        self,
        machines: _Machines,
        graphs: Any,
        parts: Parts,
        send: Callable[[Sequence[Any]], object],
    ) -> None:
        self.problem = ""
        self._machines = machines
        self._graphs = graphs
        self._parts = parts
        self._send = send
        self._calls = 0
        self._recorded: List[int] = []
        # The vector of parts, and those of its pieces that are ready after each graph.
        self._vector: Any = None
        self._pieces: List[List[Any]] = []
        # The scalars, and the number of the graph that ends with them.
        self._early: Optional[PackedResults] = None
        self._early_after = -1
        # The arrays that the graphs read: groups that lie in one vector each, and others, alone.
        self._inputs: List[Any] = []
        self._groups: List[CommonInputs] = []
        self._alone: List[int] = []
        self._crossing: List[Any] = []
        # The arrays that the graphs write: by place among the results, or packed.
        self._results: List[Any] = []
        self._packings: List[PackedResults] = []

    @property
    def replays(self) -> bool:
        return bool(self._recorded) and self._calls >= _COMPARED and not self.problem

    def compute(self, values: Sequence[Any], aim: Optional[Aim]) -> List[Any]:
        """Return outputs and new values, all in new arrays; only a replay uses the aim.

        Raises:
            _StaleGraphError: the recording cannot be used.
        """
        self._calls += 1
        if self._calls > _RECORDED and not self._recorded:
            raise _StaleGraphError
        if self._calls > _COMPARED:
            return self._replay(values, aim)
        if self._calls == _COMPARED:
            return self._compare(values)
        copies = self._copies(values)
        results = self._taken(self._run(copies), copies)
        if self._calls == _RECORDED:
            self._record(values, results, aim)
        return results

    def close(self) -> None:
        """Drop the graph, and what it works on."""
        recorded, self._recorded = self._recorded, []
        with self._graphs.own_memory():
            for graph in recorded:
                self._graphs.forget(graph)
            self._vector, self._pieces = None, []
            self._inputs, self._groups, self._crossing = [], [], []
            self._results, self._packings, self._early = [], [], None

    # -- without a graph ------------------------------------------------------------------

    def _copies(self, values: Sequence[Any]) -> List[Any]:
        """Return copies of the values, and the crossing ones, in the memory of graphs."""
        with self._graphs.own_memory():
            copies = [v.copy() if is_on_device(v) else v for v in values]
            return copies + self._machines.crossing(*values)

    def _run(self, inputs: List[Any]) -> List[Any]:
        """Return results in the memory of graphs."""
        with self._graphs.own_memory(), self._parts.aimed(None):
            return self._machines.whole(*inputs)

    def _taken(self, results: List[Any], inputs: List[Any]) -> List[Any]:
        """Return results of `_run` in new arrays, and empty the lists."""
        copies = [result.copy() for result in results]
        with self._graphs.own_memory():
            results.clear()
            inputs.clear()
        return copies

    # -- with a graph ---------------------------------------------------------------------

    def _record(self, values: Sequence[Any], results: Sequence[Any], aim: Optional[Aim]) -> None:
        graphs, scalars, targets = self._graphs, self._machines.scalars, self._machines.targets
        # Not in the memory of graphs: other graphs may use that in between.
        self._crossing = self._machines.crossing(*values)
        small = [i for i, r in enumerate(results) if r.size * r.itemsize <= LARGEST_PACKED]
        outputs = [i for i in small if targets[i] is None and i not in scalars.places]
        updates = [i for i in small if targets[i] is not None]
        with graphs.own_memory():
            if scalars.places:
                self._early = PackedResults(scalars.places, results)
            self._packings = [
                PackedResults(places, results) for places in (outputs, updates) if places
            ]
            self._lay_out(values, [t for i in updates if (t := targets[i]) is not None])
            self._load(values)
            graphs.wait()
            found: List[Any] = []
            if aim is not None:
                self._vector = empty_like(aim.vector, aim.vector.shape, aim.vector.dtype)

            def run(cut: Callable[[], None]) -> None:
                cuts = Cuts(self._vector, cut)

                def take_early(values: List[Any]) -> None:
                    if self._early is not None:
                        self._early.take(values, graphs)
                        self._early_after = len(cuts.counts)
                        cuts.ready(())

                with self._parts.aimed(cuts if aim else None), scalars.reported(take_early):
                    found[:] = self._machines.whole(*self._inputs, *self._crossing)
                if aim is not None:
                    pieces = iter([self._vector[p.begin : p.end] for p in self._parts.pieces])
                    self._pieces = [list(islice(pieces, count)) for count in cuts.counts]
                for packing in self._packings:
                    packing.take([found[place] for place in packing.places], graphs)
                for place in small:
                    found[place] = None

            self._recorded = graphs.record(run)
            self._results = found

    def _lay_out(self, values: Sequence[Any], updated: Sequence[int]) -> None:
        """Make the arrays that the graphs read; new values of `updated` are packed together."""
        self._inputs = list(values)
        if updated:
            packed = self._packings[-1]
            self._groups.append(CommonInputs(updated, packed.packing, values, packed.newest))
        taken = set(updated)
        for places in wholes_among(values):
            if taken.isdisjoint(places):
                packing = Packing([values[place] for place in places], alignment=1)
                find = partial(vectors_of, tuple(values[place].shape for place in places))
                self._groups.append(CommonInputs(places, packing, values, find))
                taken.update(places)
        for group in self._groups:
            for place, part in zip(group.places, group.parts):
                self._inputs[place] = part
        for place, value in enumerate(values):
            if is_on_device(value) and place not in taken:
                self._alone.append(place)
                self._inputs[place] = empty_like(value, value.shape, value.dtype)

    def _load(self, values: Sequence[Any]) -> None:
        """Copy values to the arrays that the graphs read."""
        inputs, copy = self._inputs, self._graphs.copy
        with self._graphs.entered():
            for group in self._groups:
                wholes = group.find([values[place] for place in group.places])
                if wholes is not None:
                    for target, source in zip(group.vectors, wholes):
                        copy(target, source)
                    continue
                for place in group.places:
                    self._load_one(values[place], inputs[place])
            for place in self._alone:
                self._load_one(values[place], inputs[place])

    def _load_one(self, value: Any, target: Any) -> None:
        if value.shape != target.shape:
            raise _StaleGraphError
        self._graphs.copy(target, value)

    def _replay(self, values: Sequence[Any], aim: Optional[Aim] = None) -> List[Any]:
        self._load(values)
        graphs = self._graphs
        with graphs.entered():
            results = list(self._results)
            for number, (graph, pieces) in enumerate(zip_longest(self._recorded, self._pieces)):
                graphs.launch(graph)
                if number == self._early_after and self._early is not None:
                    self._send(self._early.give(results, graphs))
                if aim is not None and pieces:
                    aim.ready(pieces)
            for place, result in enumerate(self._results):
                if aim is not None and result is self._vector:
                    results[place] = aim.vector
                elif result is not None:
                    results[place] = empty_like(result, result.shape, result.dtype)
                    graphs.copy(results[place], result)
            for packing in self._packings:
                packing.give(results, graphs)
        return results

    def _compare(self, values: Sequence[Any]) -> List[Any]:
        """Compute with and without graphs; return the plain results."""
        graphs, plain, times = self._graphs, [], []
        for _ in range(2):
            self._load(values)
            inputs = [*self._inputs, *self._crossing]
            results: List[Any] = []
            times.append(graphs.seconds(lambda into=results, of=inputs: into.extend(self._run(of))))
            # Not within the time: a plain function needs no copies.
            plain.append(self._taken(results, inputs))
        replayed = self._replay(values)
        again = min(graphs.seconds(lambda: self._replay(values)) for _ in range(2))
        for arrays in zip(plain[0], plain[1], replayed):
            apart = difference(*map(np.asarray, arrays))
            if apart:
                self.problem = f"a replay gives {apart}"
        if again > SLOWEST * min(times) and not self.problem and not graphs.always:
            self.problem = f"it takes {1000 * min(times):.3g} ms, and a replay {1000 * again:.3g}"
        return plain[0]


def difference(plain: np.ndarray, again: np.ndarray, replayed: np.ndarray) -> str:
    """Return how a replay's result differs from two plain ones'; "" for nothing that counts.

    Plain results may differ, too: some of cuDNN's algorithms add up in any order.
    """
    if plain.dtype.kind not in "fc":
        steady = np.array_equal(plain, again)
        return "" if not steady or np.array_equal(plain, replayed) else "other whole numbers"
    finite = np.isfinite(plain)
    if not np.array_equal(finite, np.isfinite(replayed)):
        steady = np.array_equal(finite, np.isfinite(again))
        return "other values that are not finite" if steady else ""
    finite &= np.isfinite(again)
    exact = plain[finite].astype(np.float64 if plain.dtype.kind == "f" else np.complex128)
    if not exact.size:
        return ""
    largest = float(np.abs(exact).max())
    noise, apart = (float(np.abs(exact - a[finite]).max()) for a in (again, replayed))
    if apart <= max(10 * noise, 100 * float(np.finfo(plain.dtype).eps) * largest):
        return ""
    return (
        f"other results: by {apart / largest:.1g} of the largest value, where two plain runs "
        f"differ by {noise / largest:.1g}"
    )
