"""Rows from one number to another, ``x[start:stop]``.

JAX compiles a program for each length. This form of a slice makes that the length of the result
only: a program is not compiled again for other rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.op import Op
from pytensor.tensor.basic import cast, tensor_from_scalar
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type import lscalar


class SliceLength(Op):
    """The number of rows between two, of which there are so many, as Python counts them."""

    __props__ = ()

    def make_node(self, start: Any, stop: Any, length: Any) -> Any:
        return Apply(self, [start, stop, length], [lscalar()])

    def perform(self, _node: Any, inputs: Any, places: Any) -> None:
        start, stop, length = map(int, inputs)
        places[0][0] = np.array(len(range(*slice(start, stop).indices(length))))


class RowsFrom(Op):
    """Rows from a number on, as many as `SliceLength` says."""

    __props__ = ()

    def make_node(self, x: Any, start: Any, count: Any) -> Any:
        return Apply(self, [x, start, count], [x.type.clone(shape=(None, *x.type.shape[1:]))()])

    def perform(self, _node: Any, inputs: Any, places: Any) -> None:
        x, start, count = inputs
        places[0][0] = x[int(start) :][: int(count)]


def use_rows(graph: Any) -> None:
    """Put `RowsFrom` in place of all slices of a graph with limits that are no constants."""
    for node in graph.toposort():
        if not isinstance(node.op, Subtensor) or node.op.idx_list != (slice(0, 1, None),):
            continue
        x, *limits = node.inputs
        if x.owner is None and not any(isinstance(limit, Constant) for limit in limits):
            start, stop = (cast(tensor_from_scalar(limit), "int64") for limit in limits)
            rows = RowsFrom()(x, start, SliceLength()(start, stop, x.shape[0]))
            result = node.outputs[0]
            if result.type.is_super(rows.type):
                graph.replace(result, rows, reason="rows")
