"""Rules for products of matrices and vectors: contracting the rows' axis sums over rows."""

from __future__ import annotations

from typing import Any, List, Sequence

from synk_core.engine import TensorType

from .elemwise import coupled
from .layout import merge_layouts
from .walk import (
    ROW,
    ZERO,
    Value,
    Walk,
    along,
    blamed,
    first_mixed,
    has_shape,
    mixed,
    pairs_of_rows,
    rows,
    rule,
    unknown,
    unruled,
)


@rule("Dot", "Dot22", takes="mixed")
def dot(node: Any, values: List[Value]) -> Value:
    """Contract the last axis of the left and the first of the right."""
    left, right = values
    contracted = node.inputs[0].ndim - 1
    # The axis of rows in the result, if they are not contracted.
    axis = None
    if left.axis is not None and left.axis != contracted:
        axis = left.axis
    elif right.axis is not None and right.axis != 0:
        axis = contracted
    inside = (left.axis == contracted) + (right.axis == 0)
    crossed = None not in (left.axis, right.axis) and not inside
    if (left.zero or right.zero) and not crossed:
        if not (has_shape(left) and has_shape(right)):
            return unknown(node, "is zero in an unknown shape")
        return ZERO if axis is None else ZERO._replace(kind="rows", axis=axis, layout=ROW)
    already = first_mixed([left, right])
    if already is not None:
        return already._replace(axis=axis)
    if left.axis is None and right.axis is None:
        return _of_reduced(node, left, right)
    if inside == 2:
        return _contracted(node, left, right)
    if inside == 1:
        return unknown(node, "multiplies rows with a fixed number of rows")
    if crossed:
        return pairs_of_rows(node)
    whole, other = (left, right) if left.axis is not None else (right, left)
    if whole.kind != "rows" or other.kind == "noise":
        return unknown(node)
    if other.kind != "fixed":
        return coupled(node, axis)
    return rows(axis or 0, whole.layout, whole.degree + other.degree)


@rule("SolveBase", "Solve", takes="mixed")
def solve(node: Any, values: List[Value]) -> Value:
    """Solve equations of a square matrix, which is linear in each column of the right-hand side."""
    matrix, right = values[:2]
    if not matrix.steady:
        return unruled(node, values)
    of_columns = right.axis == 1 and right.kind == "rows"
    if of_columns or right.kind == "mixed" or (right.axis is None and right.kind in _LINEAR_IN):
        return right._replace(literal=None)
    return unknown(node, "solves equations of all rows")


_LINEAR_IN = ("fixed", "sum")


@rule("Blockwise", takes="mixed", with_walk=True)
def blockwise(node: Any, values: List[Value], walk: Walk) -> Sequence[Value]:
    """Apply an operation to each item of a batch, whose axes come first."""
    op, count = node.op, len(node.outputs)
    batch = node.outputs[0].ndim - len(op.outputs_sig[0])
    spread = [value for value in values if value.axis is not None and value.axis < batch]
    if spread:
        return [_row_by_row(node, values, spread)] * count
    inputs = [TensorType(v.dtype, v.type.shape[batch:])() for v in node.inputs]
    core = op.core_op.make_node(*inputs)
    walk.keep(core)
    inside = [v if v.axis is None else v._replace(axis=v.axis - batch) for v in values]
    return [
        value if value.axis is None else value._replace(axis=value.axis + batch)
        for value in (blamed(node, result, values) for result in walk.apply(core, inside))
    ]


def _row_by_row(node: Any, values: Sequence[Value], spread: Sequence[Value]) -> Value:
    """Return the result for rows that are items of the batch."""
    axis = spread[0].axis
    already = first_mixed(values)
    if already is not None:
        return along(already, axis, spread[0].layout)
    if any(value.axis not in (None, axis) for value in values):
        return pairs_of_rows(node)
    if any(value.kind not in ("rows", "fixed") for value in values):
        reduced = any(value.kind in ("sum", "max", "min", "prod") for value in values)
        return coupled(node, axis) if reduced else unknown(node, "works on positions or draws")
    for variable, value in zip(node.inputs, values):
        if value.axis is None and not variable.broadcastable[axis]:
            return unknown(node, "combines rows with a fixed number of rows")
    layout = merge_layouts(node, [value.layout for value in spread])
    if isinstance(layout, Value):
        return layout._replace(axis=axis)
    is_product = type(node.op.core_op).__name__ == "Dot"
    if not is_product and any(value.degree for value in values):
        return unknown(node, "works on values that were scaled by the number of rows")
    return rows(axis or 0, layout, sum(value.degree for value in values))


def _contracted(node: Any, left: Value, right: Value) -> Value:
    layout = merge_layouts(node, [left.layout, right.layout])
    if isinstance(layout, Value):
        return layout
    if left.kind == right.kind == "rows":
        return Value("sum", left.degree + right.degree + 1)
    return mixed(node, "sums up values that depend on the positions of rows")


def _of_reduced(node: Any, left: Value, right: Value) -> Value:
    if left.kind == right.kind == "fixed":
        return Value("fixed", left.degree + right.degree)
    for whole, other in ((left, right), (right, left)):
        if whole.kind == "sum" and other.kind == "fixed":
            return Value("sum", whole.degree + other.degree)
    if "noise" in (left.kind, right.kind):
        return unknown(node)
    text = "multiplies or adds reductions over rows"
    return mixed(node, text, "return each as an output, and compute this after the call")


@rule("AbstractConv_gradWeights", takes="mixed")
def filter_gradient(node: Any, values: List[Value]) -> Value:
    """Return the gradient of a convolution's filters: a sum over the images."""
    images, above = values[:2]
    already = first_mixed(values)
    if already is not None:
        return already._replace(axis=None)
    if images.axis == above.axis == 0 and all(value.steady for value in values[2:]):
        return _contracted(node, images, above)
    return unknown(node, "works on a value whose first axis is not that of the rows")
