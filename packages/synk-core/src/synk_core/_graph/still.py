"""A function's twin that draws nothing: each draw has a fixed value, the same in each entry.

Parts of the rows then combine as those of the drawing function do, and the results can be compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

import numpy as np

from synk_core.engine import Apply, Op, ancestors, clone

from .random_streams import is_draw
from .reduce_op import ops_inside
from .spec import FunctionSpec

_UNIFORM = 0.125
"""Dropout keeps entries where a draw is below its probability to keep. Of an eighth, a Box-Muller
transform makes two equal normal numbers: cosine and sine of pi / 4."""

_WITH_ONES = ("bernoulli", "binomial")
"""Draws of whole numbers among which 1 is one."""


class Fixed(Op):  # type: ignore[misc] # engines have no types
    """An array of the shape and dtype of the input, with a fixed number in each entry."""

    __props__ = ()

    def make_node(self, x: Any) -> Any:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Any, inputs: Sequence[Any], outputs: Any, _params: Any = None) -> None:  # noqa: ARG002
        x = np.asarray(inputs[0])
        outputs[0][0] = np.full_like(x, _UNIFORM if x.dtype.kind == "f" else 1)


def still(spec: FunctionSpec) -> FunctionSpec:
    """Return the spec of a function's twin; raise ValueError if a draw cannot be replaced."""
    values = spec.expressions
    fixed = {}
    for node in {v.owner for v in ancestors(values) if v.owner is not None}:
        if is_draw(node.op):
            kind = f"{type(node.op).__name__} {getattr(node.op, 'fn', '')}".lower()
            sample = node.outputs[-1]
            if not sample.dtype.startswith("float") and not any(w in kind for w in _WITH_ONES):
                raise ValueError(f"{node.op} draws whole numbers")
            fixed[sample] = Fixed()(node.clone().outputs[-1])
        elif any(map(is_draw, ops_inside(node.op))):
            raise ValueError(f"{node.op} draws inside of it")
    made = tuple(clone(values, replace=fixed))
    outputs, rest = made[: len(spec.outputs)], made[len(spec.outputs) :]
    updates = tuple((t, v, op) for (t, _, op), v in zip(spec.updates, rest))
    givens = tuple((key, v) for (key, _), v in zip(spec.givens, rest[len(updates) :]))
    new = {id(target): value for target, value, _ in updates}
    summed = tuple((t, new.get(id(t), v), op) for t, v, op in spec.accumulated)
    return replace(spec, outputs=outputs, updates=updates, givens=givens, accumulated=summed)
