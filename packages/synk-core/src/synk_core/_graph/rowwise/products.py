"""Rules for products of matrices and vectors: contracting the rows' axis sums over rows."""

from __future__ import annotations

from typing import Any, List

from .elemwise import coupled
from .layout import merge_layouts
from .walk import (
    ROW,
    ZERO,
    Value,
    first_mixed,
    has_shape,
    mixed,
    pairs_of_rows,
    rows,
    rule,
    unknown,
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


@rule("Blockwise", takes="mixed")
def blockwise(node: Any, values: List[Value]) -> Any:
    """Apply an operation to each item of a batch: followed for products of two matrices (`@`)."""
    if type(node.op.core_op).__name__ == "Dot" and all(v.ndim == 2 for v in node.inputs):
        return dot(node, values)
    return unknown(node)


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
