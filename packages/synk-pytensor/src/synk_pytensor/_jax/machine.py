"""Machines of compiled functions in ranks with a device, in place of PyTensor's."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

from .arrays import ARRAYS, is_array, to_host, with_function
from .pending import CURRENT, Note, Pending, new_key
from .translation import Translation


class JaxMachine:
    """Runs a function of JAX's on the device: arguments and results are arrays there.

    Within an order its work is noted, and results are `Lazy`; else results are NumPy's.

    Args:
        alone: notes of functions outside of orders.

    Attributes:
        brought: for each input whether it lies on the device when the function gets it: not
            single integers, because lengths may depend on them.
    """

    need_update_inputs = False

    def __init__(self, function: Any, alone: Pending) -> None:
        thunk, self._graph = function.vm, function.maker.fgraph
        self.translation: Translation = thunk.jit_fn
        self.allow_gc, self.storage_map = thunk.allow_gc, thunk.storage_map
        types = [variable.type for variable in self._graph.inputs]
        self.brought = [hasattr(t, "ndim") and (t.ndim > 0 or t.dtype[0] == "f") for t in types]
        self._inputs, self._outputs = thunk.inputs, thunk.outputs
        self._updates = [
            (thunk.inputs[target], place)
            for place, target in (self._graph.update_mapping or {}).items()
        ]
        self._alone = alone
        self._key = new_key(self)
        self._known: Dict[Any, _TracedForm] = {}

    def __call__(self) -> List[Any]:
        results = self.bare(len(self._outputs))()
        for place, value in zip(self._outputs, results):
            place[0] = value
        return results

    def bare(self, count: int) -> Callable[..., List[Any]]:
        """Return a callable of the first inputs that returns the first `count` outputs.

        It puts neither into the function's containers.
        """
        inputs, updates = self._inputs, self._updates

        def call(*arguments: Any) -> List[Any]:
            pending = CURRENT.pending or self._alone
            shared = inputs[len(arguments) :]
            for place in shared:
                if type(place[0]) is np.ndarray:
                    place[0] = pending.bring(place[0])  # where it stays
            results = self._results(pending, [*arguments, *[place[0] for place in shared]])
            for place, number in updates:
                pending.put(place, results[number])
            if pending is not self._alone:
                return results[:count]
            pending.end(results[:count])
            return list(map(to_host, results[:count]))

        return call

    def _results(self, pending: Pending, values: Sequence[Any]) -> List[Any]:
        translation = self.translation
        keyed, states = translation.drawn(values)
        lengths = translation.lengths(keyed)
        placed = [v if type(v) in ARRAYS else with_function(v, pending.bring) for v in keyed]
        form = self._form(lengths, keyed, placed)
        if form.checks:
            pending.flush()  # what comes after a check is not computed unless it holds
        results = pending.add(form.step, placed, form.likes)
        if form.checks:
            pending.flush()
            passed = map(to_host, results[-len(form.checks) :])
            translation.require(dict(zip(form.checks, passed)))
        return [states.get(i, value) for i, value in enumerate(results)] if states else results

    def _form(self, lengths: Any, values: Sequence[Any], placed: Sequence[Any]) -> _TracedForm:
        """Return the function as a step, for arguments of these forms."""
        key = lengths, tuple([(value.shape, value.dtype) for value in placed])
        form = self._known.get(key)
        if form is None:
            lengths, (outputs, passed) = self.translation.traced(values)
            run = partial(_flat, self.translation, lengths)
            step = Note(("function", self._key, lengths), run)
            form = _TracedForm(step, [*outputs, *passed.values()], tuple(passed))
            self._known[lengths, key[1]] = form
        return form

    def compile(self) -> None:
        """Do nothing: programs are compiled for the shapes of their arguments."""


class _TracedForm(NamedTuple):
    """A function for arguments of some shapes, and lengths.

    Attributes:
        likes: the forms of its results, the conditions of checks last.
        checks: the numbers of the checks.
    """

    step: Note
    likes: Sequence[Any]
    checks: Tuple[int, ...]


def _flat(translation: Translation, lengths: Any, *values: Any) -> List[Any]:
    outputs, passed = translation(lengths, *values)
    return [*outputs, *passed.values()]


class HostMachine:
    """Runs a function on the processor whose variables may lie on the device."""

    def __init__(self, function: Any) -> None:
        self._machine = function.vm
        self._places = shared_places(function)
        if hasattr(self._machine, "bare"):
            self.bare = self._bare

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        with in_host_memory(self._places):
            return self._machine(*arguments, **settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def _bare(self, count: int) -> Callable[..., List[Any]]:
        run = self._machine.bare(count)

        def call(*arguments: Any) -> List[Any]:
            with in_host_memory(self._places):
                results: List[Any] = run(*arguments)
            return results

        return call


Places = Sequence[Tuple[List[Any], bool]]
"""Storages of shared variables, and whether a function updates them."""


def shared_places(function: Any) -> Places:
    """Return the storages of a function's shared variables."""
    ends = zip(function.maker.expanded_inputs, function.input_storage)
    return [(end.storage, item.update is not None) for item, end in ends if not end.required]


@contextmanager
def in_host_memory(places: Places) -> Iterator[None]:
    """For the duration of the block, have copies in host memory of values on the device; those
    that are updated stay there."""
    moved = []
    for place, is_updated in places:
        if is_array(place[0]):
            if not is_updated:
                moved.append((place, place[0]))
            place[0] = to_host(place[0])
    try:
        yield
    finally:
        for place, value in moved:
            place[0] = value


def fitted(function: Any) -> Any:
    """Return a compiled function with a machine that fits a device, unless it has one."""
    if not isinstance(function.vm, (JaxMachine, HostMachine)):
        function.vm = HostMachine(function)
    return function
