"""Rules for transpositions, filling, reductions, joining and splitting."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np

from .layout import multiplied
from .reduced import describe_value, union
from .walk import (
    FIXED,
    NOISE,
    ZERO,
    Value,
    first_mixed,
    first_of,
    is_accumulated,
    mixed,
    obstacle,
    plain,
    rule,
    unknown,
    unruled,
)


@rule("DimShuffle", takes="all")
def dimshuffle(node: Any, values: List[Value]) -> Value:
    """Permute, add or drop axes."""
    if values[0].items is not None and node.op.new_order == (0,):
        return values[0]
    value = plain(values[0])
    if value.axis is None:
        return value
    order = list(node.op.new_order)
    if value.axis in order:
        return value._replace(axis=order.index(value.axis))
    return unknown(node, "drops the axis of the rows")


@rule("Alloc", "AllocEmpty", takes="mixed")
def alloc(node: Any, values: List[Value]) -> Value:
    """Fill a shape by repeating a value."""
    empty = type(node.op).__name__ == "AllocEmpty"
    # All entries are written before they are read, so any value will do.
    value, items = (ZERO, values) if empty else (values[0], values[1:])
    if not all(item.kind == "fixed" for item in items):
        return unknown(node, "has a shape that depends on data")
    counted = [axis for axis, item in enumerate(items) if not item.steady]
    if value.axis is not None:
        axis = value.axis + len(items) - node.inputs[0].ndim
        moved = value._replace(axis=axis)
        return moved if counted == [axis] else unknown(node, "repeats rows")
    if not counted:
        return value
    if len(counted) > 1 or items[counted[0]].degree != 1 or value.kind != "fixed":
        return unknown(node, "has a shape that this check cannot follow")
    source = node.inputs[0]
    from_end = len(items) - counted[0]
    if not empty and from_end <= source.ndim and not source.broadcastable[-from_end]:
        return unknown(node, "has a fixed number of rows")
    layout = ("any", items[counted[0]].layout)
    return Value("rows", value.degree, counted[0], layout, value.literal)


@rule("ARange")
def arange(node: Any, values: List[Value]) -> Value:
    """Return the positions of rows, if it counts them."""
    start, stop, step = values
    if all(value.steady for value in values):
        return FIXED
    whole = stop.kind == "fixed" and stop.degree == 1 and stop.layout is not None
    if whole and start.zero and step.literal == 1:
        return Value("position", axis=0, layout=stop.layout)
    return unknown(node, "counts something other than rows")


# ---- reductions ------------------------------------------------------------------------------

_REDUCTIONS = {
    "Add": "sum", "Mul": "prod", "Maximum": "max", "Minimum": "min", "AND": "min", "OR": "max",
}  # fmt: skip


@rule("CAReduce", "Mean", takes="all")
def reduction(node: Any, values: List[Value]) -> Value:
    """Reduce by a sum, product, maximum, minimum, any or all."""
    source = node.inputs[0]
    axes = range(source.ndim) if node.op.axis is None else node.op.axis
    axes = {axis % source.ndim for axis in axes} if source.ndim else set()
    name = type(node.op.scalar_op).__name__
    if type(node.op).__name__ in ("ProdWithoutZeros", "Mean"):
        name = type(node.op).__name__
    value = values[0]
    if value.items is not None and name in ("Add", "Mul") and axes:
        return _fold_items(node, name, value.items)
    return reduce_axes(node, name, plain(value), axes)


def _fold_items(node: Any, name: str, items: Sequence[Value]) -> Value:
    if any(item.kind != "fixed" for item in items):
        return plain(FIXED._replace(items=tuple(items)))
    if name == "Add":
        return union(node, items) if len(items) > 1 else items[0]
    literal: Optional[float] = 1.0
    for item in items:
        literal = None if literal is None or item.literal is None else literal * item.literal
    degree = sum(item.degree for item in items)
    layout = multiplied(items) if degree in (0, 1) else None
    return Value("fixed", degree, layout=layout, literal=literal)


def reduce_axes(node: Any, name: str, value: Value, axes: Any) -> Value:
    """Return the value of a reduction over some axes of a tensor."""
    spoiled = obstacle(node, [value])
    if spoiled is not None:
        return spoiled
    if name in ("AND", "OR") and node.inputs[0].dtype != "bool":
        name = ""
    kind = "sum" if name == "Mean" else _REDUCTIONS.get(name)
    if all(node.inputs[0].broadcastable[axis] for axis in axes) and value.axis not in axes:
        kind = value.kind  # of one entry each: nothing is reduced
    if value.axis is not None and value.axis in axes:
        return _over_rows(node, name, kind, value)
    if value.axis is not None:
        if value.kind == "rows" and kind == "prod" and value.degree and not value.zero:
            return unknown(node, "multiplies what was divided by the number of rows")
        axis = value.axis - sum(reduced < value.axis for reduced in axes)
        return value._replace(axis=axis, literal=0.0 if value.zero and kind == "sum" else None)
    if value.kind == "fixed":
        zero = 0.0 if value.zero and kind == "sum" else None
        if value.degree and kind not in ("sum", "max", "min", "fixed"):
            return unknown(node, "multiplies the number of rows")
        return Value("fixed", value.degree, literal=zero)
    if value.kind in ("noise", "mixed"):
        return value if value.kind == "mixed" else unknown(node, "reduces draws of unknown shape")
    if value.kind == kind:
        return value
    if kind is None:
        return unknown(node, "reduces in a way that this check cannot follow")
    text = f"reduces {describe_value(value)} in another way"
    return mixed(node, text, "return its argument as an output, and reduce it after the call")


def _over_rows(node: Any, name: str, kind: Optional[str], value: Value) -> Value:
    if value.kind == "mixed" and not (is_accumulated(value) and kind in ("max", "min")):
        return value._replace(axis=None)
    if value.kind != "rows" or kind is None:
        return unknown(node, "reduces rows in a way that this check cannot follow")
    if kind == "sum":
        degree = value.degree if name == "Mean" else value.degree + 1
        return ZERO if value.zero else Value("sum", degree)
    if value.degree and not value.zero:
        text = "reduces rows that were scaled by the number of rows"
        return mixed(node, text, "use a sum over rows in place of the mean")
    return Value(kind)


@rule("MaxAndArgmax", "Argmax", takes="all")
def max_and_argmax(node: Any, values: List[Value]) -> Union[Value, Sequence[Value]]:
    """Return the largest entry, and its position."""
    source, value = node.inputs[0], plain(values[0])
    axes = node.op.axis
    axes = set(range(source.ndim)) if axes is None else {int(axis) % source.ndim for axis in axes}
    largest = reduce_axes(node, "Maximum", value, axes)
    if value.axis in axes and value.kind != "unknown":
        text = "is the position of a row among the rows of one rank"
        where = mixed(node, text, "return the rows with 'gather' and find it after the call")
    elif value.axis is not None:
        where = largest._replace(degree=0.0)
    elif value.steady:
        where = FIXED
    else:
        where = unknown(node, "is the position of the largest of reduced values")
    return where if len(node.outputs) == 1 else [largest, where]


def axis_among(node: Any, values: Sequence[Value], place: int) -> Tuple[Value, List[Value]]:
    """Return the axis that an operation works along, and the values of its other inputs.

    PyTensor's operations have their axis; of Theano's it is the input at this place.
    """
    if "axis" in node.op.__props__:
        axis = node.op.axis
        return FIXED._replace(literal=axis), list(values)
    others = list(values)
    return plain(others.pop(place)), others


@rule("CumOp", "SortOp", "ArgSortOp", takes="mixed")
def along_axis(node: Any, values: List[Value]) -> Value:
    """Apply a function of all entries along one axis that keeps the shape."""
    source = node.inputs[0]
    along, (value, *_) = axis_among(node, values, 1)
    cumulative = type(node.op).__name__ == "CumOp"
    if value.kind == "sum" and cumulative and node.op.mode == "add":
        return value
    if value.axis is None or not along.steady:
        return unruled(node, values)
    if cumulative and source.dtype[0] in "iub" and np.dtype(source.dtype).itemsize < 8:
        return unknown(node, "adds up in wider integers than its result has")
    axis = along.literal
    if axis is not None and int(axis) % source.ndim != value.axis:
        if value.kind != "rows" or (value.degree and (not cumulative or node.op.mode != "add")):
            return value if value.kind == "mixed" else unknown(node)
        return value._replace(literal=None)
    if axis is None and source.ndim > 1:
        return unknown(node, "works on rows that were flattened")
    if cumulative:
        text = "accumulates over rows: each rank starts anew"
        cure = "return the rows with 'gather' and accumulate after the call"
        return mixed(node, text, cure, value.axis)
    text = "sorts rows: each rank sorts only its own"
    cure = "return the rows with 'gather' and sort after the call"
    return mixed(node, text, cure, value.axis)._replace(kind="shuffled")


@rule("ExtractDiag")
def diagonal(node: Any, values: List[Value]) -> Value:
    """Take the diagonal of two axes, which becomes the last one."""
    value, ndim = values[0], node.inputs[0].ndim
    taken = [node.op.axis1 % ndim, node.op.axis2 % ndim]
    if value.axis is None:
        return value
    if value.axis in taken:
        return unknown(node, "takes a diagonal of rows")
    return value._replace(axis=value.axis - sum(axis < value.axis for axis in taken))


# ---- putting together and taking apart ---------------------------------------------------------


@rule("Join", takes="all")
def join(node: Any, values: List[Value]) -> Value:
    """Join tensors, or shapes."""
    along, parts = axis_among(node, values, 0)
    axis = along.literal
    if all(part.items is not None for part in parts):
        return FIXED._replace(items=tuple(item for part in parts for item in part.items or ()))
    parts = [plain(part) for part in parts]
    spoiled = obstacle(node, parts) or first_mixed(parts)
    if spoiled is not None:
        same = spoiled.kind == "unknown" or all(p.axis == spoiled.axis for p in parts)
        return spoiled if same else unknown(node, "joins values of different kinds")
    if all(part.kind == "noise" or part.steady for part in parts) and first_of("noise", parts):
        return NOISE
    if axis is None and any(part.axis is not None for part in parts):
        return unknown(node, "joins rows along an unknown axis")
    if axis is not None and all(part.kind == "rows" for part in parts):
        axis = int(axis) % node.outputs[0].ndim
        if all(part.axis == axis for part in parts):
            if len({part.degree for part in parts if not part.zero}) > 1 or len(parts) > 14:
                return unknown(node, "joins values of different kinds")
            layout = ("joined", *(part.layout for part in parts))
            whole = next((part for part in parts if not part.zero), parts[0])
            return whole._replace(layout=layout if len(parts) > 1 else whole.layout)
    return union(node, parts)


@rule("Split", takes="mixed")
def split(node: Any, values: List[Value]) -> Value:
    """Split a tensor."""
    axis, (value, lengths) = axis_among(node, values, 1)
    if not lengths.steady or value.kind == "noise":
        return unruled(node, values)
    if value.axis is None:
        return value
    if axis.literal is not None and int(axis.literal) % node.inputs[0].ndim != value.axis:
        return value
    return unknown(node, "splits the rows")
