"""Rules for shapes, which may have the number of rows, and for reshaping."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from .layout import length_layout, multiplied
from .reduced import union
from .walk import (
    FIXED,
    NOISE,
    ROW,
    Value,
    Walk,
    has_shape,
    layout_kind,
    obstacle,
    plain,
    rows,
    rule,
    unknown,
)


def shape_items(node: Any, variable: Any, value: Value) -> Optional[List[Value]]:
    """Return the lengths of a variable's axes; None if it is no tensor."""
    ndim = getattr(variable, "ndim", None)
    if ndim is None:
        return None
    items = []
    for axis, broadcast in enumerate(variable.broadcastable):
        if broadcast:
            items.append(FIXED._replace(literal=1.0))
        elif not has_shape(value):
            items.append(unknown(node, "is the shape of an unknown value"))
        elif axis == value.axis:
            items.append(Value("fixed", 1.0, layout=length_layout(value.layout)))
        else:
            items.append(FIXED._replace(layout=("dims", ((id(variable), axis),))))
    return items


@rule("Shape", takes="all")
def shape(node: Any, values: List[Value]) -> Value:
    """Return all lengths."""
    items = shape_items(node, node.inputs[0], values[0])
    return unknown(node) if items is None else FIXED._replace(items=tuple(items))


@rule("Shape_i", takes="all")
def shape_i(node: Any, values: List[Value]) -> Value:
    """Return one length."""
    items = shape_items(node, node.inputs[0], values[0])
    return unknown(node) if items is None else items[node.op.i]


@rule("MakeVector", takes="all")
def make_vector(node: Any, values: List[Value]) -> Value:
    """Make a vector of scalars: a shape, or results."""
    if all(value.kind in ("fixed", "unknown") for value in values):
        return FIXED._replace(items=tuple(plain(value) for value in values))
    return union(node, values)


@rule("Reshape", "Flatten", takes="all", with_walk=True)
def reshape(node: Any, values: List[Value], walk: Walk) -> Value:
    """Reshape: rows stay separate if the first axis keeps whole rows together."""
    value = plain(values[0])
    spoiled = obstacle(node, [value])
    if spoiled is not None:
        return spoiled
    ndim = node.outputs[0].ndim
    if type(node.op).__name__ == "Flatten":
        items: Sequence[Value] = [Value("fixed", 1.0)] + [FIXED] * (ndim - 1)
    else:
        items = values[1].items or ()
    if value.kind == "noise":
        return drawn(items)
    if value.axis is not None:
        result = _reshape_rows(node, value, items, ndim, node.inputs[0].broadcastable)
        return _undone(node, value, walk) or result if result.kind == "unknown" else result
    if ndim == 0 or (items and all(item.steady for item in items)):
        return value
    if value.steady and not items and plain(values[1]).steady:
        return value
    return unknown(node, "gives a value an unknown shape")


def _reshape_rows(
    node: Any, value: Value, items: Sequence[Value], ndim: int, pattern: Sequence[bool]
) -> Value:
    """Return rows in a new shape, of so many dimensions.

    Args:
        pattern: for each axis before, whether it is known to be of one entry.
    """
    alone = all(one for axis, one in enumerate(pattern) if axis != value.axis)
    if ndim == 1 and not (items and items[0].steady and items[0].literal != -1):
        return value._replace(axis=0) if alone else _flattened(node, value, items)
    if len(items) != ndim or not all(item.kind == "fixed" for item in items):
        return unknown(node, "gives rows an unknown shape")
    counted = [axis for axis, item in enumerate(items) if item.degree == 1 and not item.zero]
    inferred = [axis for axis, item in enumerate(items) if item.literal == -1]
    steady = sum(item.steady for item in items)
    if not counted and len(inferred) == 1 and steady == ndim:
        counted = inferred
    elif len(counted) != 1 or steady != ndim - 1:
        text = "gives rows a shape with a fixed number of rows; use x.shape[0] or -1 in its place"
        return unknown(node, text)
    axis, length = counted[0], items[counted[0]].layout
    if alone and all(item.literal == 1 for place, item in enumerate(items) if place != axis):
        return value._replace(axis=axis)
    if value.axis == len(pattern) - 1 and axis == ndim - 1 and length is not None:
        # Rows are the last axis before and after.
        if length == length_layout(value.layout):
            return value._replace(axis=axis)
    if value.axis == 0 and axis == 0:
        return _in_front(node, value, length)
    if axis == 0 and isinstance(length, tuple) and length[0] == "times":
        if length[1:] == (_dims_before(node.inputs[0], value.axis or 0), value.layout):
            return value._replace(axis=0, layout=("outer", *length[1:]))
    if value.axis == 0 and length is not None and layout_kind(value.layout) == "outer":
        dims = multiplied(items[:axis])
        if value.layout[1:] == (dims[1] if dims else None, length):
            return value._replace(axis=axis, layout=length)
    return unknown(node, "moves rows to another axis by reshaping")


@rule("JoinDims", takes="mixed")
def join_dims(node: Any, values: List[Value]) -> Value:
    """Make one axis of adjacent ones; of none, an axis of one entry."""
    value, start, stop = values[0], node.op.start_axis, node.op.start_axis + node.op.n_axes
    axis, shape = value.axis, node.inputs[0].broadcastable
    if axis is None or axis < start:
        return value
    if axis >= stop:
        return value._replace(axis=axis - node.op.n_axes + 1)
    moved = value._replace(axis=start)
    if all(shape[start:axis]) and all(shape[axis + 1 : stop]):
        return moved
    if all(shape[start:axis]):
        return _in_front(node, moved, None)
    dims: Any = id(node)
    if all(shape[axis + 1 : stop]):
        dims = tuple(sorted((id(node.inputs[0]), i) for i in range(start, axis) if not shape[i]))
    return moved._replace(layout=("outer", dims, value.layout))


@rule("SplitDims", takes="all")
def split_dims(node: Any, values: List[Value]) -> Value:
    """Make several axes of one."""
    value, items, start = plain(values[0]), values[1].items or (), node.op.axis
    spoiled = obstacle(node, [value])
    if spoiled is not None or value.kind == "noise":
        return spoiled or value
    count = node.outputs[0].ndim - node.inputs[0].ndim + 1
    if value.axis == start:
        result = _reshape_rows(node, value._replace(axis=0), items, count, (False,))
        return result if result.axis is None else result._replace(axis=result.axis + start)
    if not (all(item.steady for item in items) if items else plain(values[1]).steady):
        return unknown(node, "gives a value an unknown shape")
    if value.axis is None or value.axis < start:
        return value
    return value._replace(axis=value.axis + count - 1)


def _undone(node: Any, value: Value, walk: Walk) -> Optional[Value]:
    """Return rows in the shape of a variable that was reshaped to theirs: a reshape's gradient.

    Lengths other than that of the rows cannot be compared here, so a value with its rows along the
    same axis counts as having the same shape.
    """
    source = node.inputs[1].owner
    if source is None or type(source.op).__name__ != "Shape":
        return None
    shaped = source.inputs[0]
    before = walk.values[shaped]
    # Removed meanwhile, because a reshape whose shape depends on this node would come back here.
    forwards = walk.reshapes.pop(shaped, [])
    afters = [(walk.value(f.outputs[0]), f.outputs[0].ndim) for f in forwards if f is not node]
    walk.reshapes[shaped] = forwards
    for after, ndim in afters:
        if (
            after.kind == before.kind == "rows"
            and (ndim, after.axis) == (node.inputs[0].ndim, value.axis)
            and value.layout in (after.layout, ("any", length_layout(after.layout)))
        ):
            return value._replace(axis=before.axis, layout=before.layout)
    return None


def _flattened(node: Any, value: Value, items: Sequence[Value]) -> Value:
    if value.axis == 0:
        return _in_front(node, value, items[0].layout if items else None)
    return value._replace(axis=0, layout=("outer", id(node), value.layout))


def _in_front(node: Any, value: Value, length: Any) -> Value:
    """Return rows that stay along the first axis, now of this length (None: unknown)."""
    if length_layout(value.layout) == length:
        return value
    if layout_kind(value.layout) == "any":
        return value._replace(layout=("any", length))
    if layout_kind(value.layout) not in ("", "block") or layout_kind(length or ROW) not in (
        "", "block", "times",
    ):  # fmt: skip
        return unknown(node, "reshapes rows that are not in order")
    if length is None:
        return value._replace(layout=("block", id(node)))
    return value._replace(layout=("block", length) if layout_kind(length) == "times" else length)


def _dims_before(variable: Any, axis: int) -> Tuple[Any, ...]:
    """Return the identities of a variable's first lengths, in the form of `multiplied`."""
    return tuple(sorted((id(variable), i) for i in range(axis) if not variable.broadcastable[i]))


def drawn(items: Optional[Sequence[Value]]) -> Value:
    """Return draws of a shape: one for each row if one length is the number of rows."""
    if not items:
        return NOISE
    counted = [axis for axis, item in enumerate(items) if item.kind == "fixed" and item.degree == 1]
    if len(counted) == 1 and sum(item.steady for item in items) == len(items) - 1:
        return rows(counted[0], ("any", items[counted[0]].layout))
    return FIXED if all(item.steady for item in items) else NOISE
