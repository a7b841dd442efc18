"""Machines of compiled functions in ranks with a device, in place of PyTensor's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Sequence, Tuple

import numpy as np
from pytensor.link.utils import raise_with_op

from .pending import CURRENT, Pending, Step, new_key
from .translation import traceable
from .arrays import ARRAYS, is_array, real, to_host


class JaxMachine:
    """Runs a function of JAX's on the device: arguments and results are arrays there.

    Within an order its work is noted, and results are `Lazy`; else results are NumPy's.

    Args:
        alone: notes of functions outside of orders.
    """

    need_update_inputs = False
    on_device = True

    def __init__(self, function: Any, alone: Pending) -> None:
        thunk = function.vm
        self.jit_fn, self.allow_gc = thunk.jit_fn, thunk.allow_gc
        self.storage_map = thunk.storage_map
        self._graph = function.maker.fgraph
        self._inputs, self._outputs = thunk.inputs, thunk.outputs
        self._updates = [
            (thunk.inputs[target], place)
            for place, target in (self._graph.update_mapping or {}).items()
        ]
        self._alone = alone
        self._step = Step(("function", new_key(self)), traceable(function))

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
            values = [a if type(a) in ARRAYS else pending.bring(np.asarray(a)) for a in arguments]
            for place in inputs[len(arguments) :]:
                if type(place[0]) is np.ndarray:
                    place[0] = pending.bring(place[0])  # where it stays
                values.append(place[0])
            results = self._run(pending, values)
            for place, number in updates:
                place[0] = results[number]
            if pending is not self._alone:
                return results[:count]
            pending.flush()
            for place, _ in updates:
                place[0] = real(place[0])
            return list(map(to_host, results[:count]))

        return call

    def _run(self, pending: Pending, values: Sequence[Any]) -> List[Any]:
        try:
            results: List[Any] = pending.add(self._step, values)
        except Exception:
            node = next((v.owner for v in self._graph.outputs if v.owner is not None), None)
            if node is not None:
                raise_with_op(self._graph, node, self)
            raise
        return results

    def compile(self) -> None:
        """Do nothing: programs are compiled for the shapes of their arguments."""


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
