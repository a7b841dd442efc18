"""Outputs without axes, such as a loss, that are copied to host memory before the rest is computed.

A training function computes its loss first: the host can order the next step before this one ends.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional

from synk_core.adapting import FlatFunction, bare, flatten, rebuild
from synk_theano._linking import linked_by_kind

from .parts import PartOp
from .rewriting import Rewriting


class Scalars:
    """The outputs without axes of a function that computes more than these; `places` of results.

    The first `n_outputs` results are outputs, the others new values of variables.
    """

    def __init__(self, flat: FlatFunction, n_outputs: int) -> None:
        types = flat.variable_types()
        outputs = enumerate(flat.outputs[:n_outputs])
        scalars = [place for place, number in outputs if types[number].ndim == 0]
        self.places = scalars if len(scalars) < len(flat.outputs) else []
        self._ready: Optional[Callable[[List[Any]], object]] = None
        self._values: Dict[int, Any] = {}

    @contextmanager
    def reported(self, ready: Callable[[List[Any]], object]) -> Iterator[None]:
        """For the duration of the block, call `ready` with them as soon as all are computed."""
        self._ready = ready
        try:
            yield
        finally:
            self._ready, self._values = None, {}

    def take(self, place: int, value: Any) -> None:
        """Take one of them while the function runs."""
        if self._ready is not None:
            self._values[place] = value
            if len(self._values) == len(self.places):
                self._ready([self._values[place] for place in range(len(self.places))])

    def reporting(self, flat: FlatFunction) -> FlatFunction:
        """Return the function with operations that report them."""
        types, outputs, new = flat.variable_types(), list(flat.outputs), Rewriting(flat)
        for node, (_, _, made) in enumerate(flat.numbered_nodes()):
            new.keep(node, made)
        for order, place in enumerate(self.places):
            number = outputs[place]
            outputs[place] = new.add(PartOp(self, order), [number], types[number])
        return new.result(outputs)


def reporting_scalars(
    function: Any, ready: Callable[[List[Any]], object]
) -> Optional[Callable[..., List[Any]]]:
    """Return a callable that computes a function without a graph, and calls `ready` with its
    scalars as soon as these are enqueued; None if it has none, or nothing else."""
    flat = flatten(function)
    scalars = Scalars(flat, len(flat.borrowed_outputs))
    if not scalars.places:
        return None
    with linked_by_kind():
        reporting = rebuild(scalars.reporting(flat))
    run = bare(reporting)

    def call(*arguments: Any) -> List[Any]:
        try:
            with scalars.reported(ready):
                return run(*arguments)
        except BaseException:
            # Or it would keep them alive.
            for container in reporting.input_storage[: len(arguments)]:
                container.storage[0] = None
            raise

    return call
