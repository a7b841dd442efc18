"""Rules for shapes, axes, reductions, joining, and indexing that leaves rows in their order.

Of tensors of indices, those are followed that take the place of the first axes.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Set, Tuple

from synk_core.engine import get_idx_list

from .scalars import union
from .walk import FIXED, Unfollowed, Value, merged, plain, refuse, rows, rule, unknown


@rule("DimShuffle", takes=["position"])
def dimshuffle(node: Any, values: List[Value]) -> Value:
    order, value = list(node.op.new_order), values[0]
    if value.axis is None:
        return value
    refuse(value.axis not in order, "drops the axis of the rows")
    return value._replace(axis=order.index(value.axis))


@rule("Alloc")
def alloc(node: Any, values: List[Value]) -> Value:
    """Fill a shape by repeating a value."""
    value, items, pattern = values[0], values[1:], node.inputs[0].broadcastable
    if value.axis is None and all(item.steady for item in items):
        return value
    filled = of_shape(node, items)
    place = (filled.axis or 0) + len(pattern) - len(items)
    fills = value.kind == "fixed" and (place < 0 or pattern[place])
    refuse(not fills and place != value.axis, "has a shape that depends on rows")
    return filled._replace(degree=value.degree, literal=value.literal)


def of_shape(node: Any, items: Optional[Sequence[Value]]) -> Value:
    """Return entries of a shape, of which one length is the number of rows: some for each row."""
    axis = _axis_of_rows(items or ())
    if items is None or axis is None:
        raise Unfollowed("has an unknown shape, or one that depends on rows")
    return rows(axis, items[axis].layout or node)


def _axis_of_rows(items: Sequence[Value]) -> Optional[int]:
    """Return the only axis of a shape that is as long as the rows, or several times so long."""
    counted = [axis for axis, item in enumerate(items) if not item.steady]
    are_rows = [(items[axis].kind, items[axis].degree) for axis in counted] == [("fixed", 1)]
    return counted[0] if are_rows else None


@rule("ARange")
def arange(_node: Any, values: List[Value]) -> Value:
    """Return the positions of rows, if it counts them."""
    start, stop, step = values
    counts = start.zero and step.literal == 1 and stop.degree == 1 and stop.layout is not None
    refuse(not counts, "counts something other than rows")
    return Value("position", axis=0, layout=stop.layout)


@rule("Shape", "Shape_i")
def shape(node: Any, values: List[Value]) -> Value:
    """Return all lengths, or one."""
    items = [FIXED._replace(literal=1.0 if one else None) for one in node.inputs[0].broadcastable]
    if values[0].axis is not None:
        items[values[0].axis] = Value("fixed", 1.0, layout=values[0].layout)
    return items[node.op.i] if hasattr(node.op, "i") else FIXED._replace(items=tuple(items))


@rule("MakeVector")
def make_vector(_node: Any, values: List[Value]) -> Value:
    """Make a vector of scalars: a shape, or results."""
    fixed = all(value.kind == "fixed" for value in values)
    return FIXED._replace(items=tuple(values)) if fixed else union(values)


@rule("Reshape", takes=["items", "position"])
def reshape(node: Any, values: List[Value]) -> Value:
    """Reshape: rows stay separate if they are the first axis before and after."""
    value, items = plain(values[0]), values[1].items or ()
    steady = all(item.steady for item in items)
    if value.axis is None:
        is_known = (items and steady) or not node.outputs[0].ndim
        refuse(not is_known, "gives a value an unknown shape")
        return value
    axis = _axis_of_rows(items)
    inferred = [place for place, item in enumerate(items) if item.literal == -1]
    if axis is None and inferred and steady:
        axis = inferred[0]
    refuse(axis is None, "gives rows a fixed number; use x.shape[0] or -1 in its place")
    refuse(value.axis != 0 or axis != 0, "moves rows to another axis by reshaping")
    rest = all(node.inputs[0].broadcastable[1:]) and all(item.literal == 1 for item in items[1:])
    return value._replace(layout=items[0].layout or (value.layout if rest else node))


_REDUCTIONS = {
    "Add": "sum", "Mul": "prod", "Maximum": "max", "Minimum": "min", "AND": "min", "OR": "max",
}  # fmt: skip


@rule("CAReduce", takes=["items"])
def reduction(node: Any, values: List[Value]) -> Value:
    """Reduce by a sum, product, maximum, minimum, any or all."""
    refuse(type(node.op).__name__ == "Mean")  # of `mean(op=True)`: its scalar function is Add
    value, axes, name = values[0], _axes(node), type(node.op.scalar_op).__name__
    if value.items is not None and name == "Mul" and axes:
        lengths = [item for item in value.items if item.literal != 1]
        layout = lengths[0].layout if len(lengths) == 1 else None
        return Value("fixed", sum(item.degree for item in lengths), layout=layout)
    return _reduced(node, name, plain(value), axes)


def _axes(node: Any) -> Set[int]:
    ndim, axes = node.inputs[0].ndim, node.op.axis
    return {int(axis) % ndim for axis in (range(ndim) if axes is None or not ndim else axes)}


def _reduced(node: Any, name: str, value: Value, axes: Set[int]) -> Value:
    """Return the value of a reduction over some axes of a tensor."""
    if name in ("AND", "OR") and node.inputs[0].dtype != "bool":
        name = ""
    kind = _REDUCTIONS.get(name)
    zero = 0.0 if value.zero and kind == "sum" else None
    if value.axis is not None and value.axis in axes:
        if kind == "sum":
            # The sum of equal entries is their number times a value that does not depend on rows.
            of_equal = "sum" if value.literal is None else "fixed"
            return Value(of_equal, value.degree + 1, literal=zero)
        refuse(kind is None or value.degree != 0)
        return Value(kind or "")
    scaled = value.degree != 0 and not value.zero
    refuse(scaled and kind not in ("sum", "max", "min"), "multiplies what was scaled by rows")
    if value.axis is not None:
        axis = value.axis - sum(reduced < value.axis for reduced in axes)
        return value._replace(axis=axis, literal=zero)
    one_each = all(node.inputs[0].broadcastable[axis] for axis in axes)
    refuse(not one_each and value.kind not in ("fixed", kind))
    return value._replace(literal=zero, layout=None)


@rule("MaxAndArgmax", "Argmax")
def max_and_argmax(node: Any, values: List[Value]) -> Sequence[Value]:
    largest = _reduced(node, "Maximum", values[0], _axes(node))
    where = largest._replace(degree=0.0)
    if largest.axis is None and not values[0].steady:
        where = unknown(node, "is the position of a row")
    return [largest, where][-len(node.outputs) :]


def _axis_among(node: Any, values: List[Value], place: int) -> Tuple[int, List[Value]]:
    """Return the axis that an operation works along, and the other inputs.

    Some engines' operations have their axis; of others' it is the input at this place.
    """
    others = list(values)
    axis: Any = node.op.axis if "axis" in node.op.__props__ else plain(others.pop(place)).literal
    return int(axis) % node.inputs[place - 1].ndim, others


@rule("Join", takes=["items"])
def join(node: Any, values: List[Value]) -> Value:
    axis, parts = _axis_among(node, values, 0)
    if all(part.items is not None for part in parts):
        return FIXED._replace(items=tuple(item for part in parts for item in part.items or ()))
    parts = [plain(part) for part in parts]
    refuse(any(part.axis == axis for part in parts), "joins rows behind rows")
    return union(parts)


@rule("Split")
def split(node: Any, values: List[Value]) -> Value:
    axis, (value, lengths) = _axis_among(node, values, 1)
    refuse(value.axis == axis or not lengths.steady, "splits the rows")
    return value


def _kept(axis: Optional[int], entries: Sequence[Any], by: Sequence[Value]) -> Optional[int]:
    """Return the axis of the rows after slices and single entries were selected by values."""
    refuse(not all(value.steady for value in by), "selects by a value that depends on the rows")
    if axis is None:
        return None
    refuse(axis < len(entries) and entries[axis] != slice(None), "selects rows by their positions")
    return axis - _dropped(entries[:axis])


def _dropped(entries: Sequence[Any]) -> int:
    return sum(not isinstance(entry, slice) for entry in entries)


@rule("Subtensor", takes=["items"])
def subtensor(node: Any, values: List[Value]) -> Value:
    """Select slices and single entries."""
    value, by = values[0], [plain(number) for number in values[1:]]
    entries = get_idx_list(node.inputs, node.op.idx_list)
    if value.items is None:
        return value._replace(axis=_kept(value.axis, entries, by))
    known: Any = {variable: number.literal for variable, number in zip(node.inputs[1:], by)}
    refuse(None in known.values(), "takes an unknown part of a shape")
    is_slice = isinstance(entries[0], slice)
    bounds = [entries[0].start, entries[0].stop, entries[0].step] if is_slice else entries[:1]
    places: List[Any] = [None if b is None else int(known.get(b, b)) for b in bounds]
    if is_slice:
        return FIXED._replace(items=value.items[slice(*places)])
    return value.items[places[0]]


@rule("IncSubtensor")
def inc_subtensor(node: Any, values: List[Value]) -> Value:
    """Add to slices and single entries of zeros, as the gradient of selecting them does."""
    entries = get_idx_list(node.inputs[1:], node.op.idx_list)
    axis = _kept(values[0].axis, entries, values[2:])
    return _put(node, values[0], values[1], axis, node.inputs[0].ndim - _dropped(entries))


def _put(node: Any, whole: Value, part: Value, axis: Optional[int], ndim: int) -> Value:
    """Return the value of zeros after an addition to a selection of them, which has so many axes,
    and its rows along one. The addend is aligned with it from the last axis backwards."""
    adds = whole.zero and not node.op.set_instead_of_inc and part.kind != "position"
    refuse(not adds, "changes entries of other things than zeros")
    if axis is None:
        refuse(part.axis is not None, "puts rows into something else")
        return part._replace(literal=None)
    there = axis - ndim + node.inputs[1].ndim
    fills = part.kind == "fixed" and (there < 0 or node.inputs[1].broadcastable[there])
    refuse(not fills and part.axis != there, "puts something other than its rows into rows")
    return rows(whole.axis or 0, whole.layout, part.degree)


def _picked(node: Any, whole: Value, values: Sequence[Value], first: int) -> Tuple[Value, int]:
    """Return the value of indexing by tensors, which are the inputs from `first` on, and its number
    of axes."""
    tensors, by = node.inputs[first:], values[first:]
    # Some engines have slices among the inputs, and all have masks and new axes there.
    others = any(isinstance(entry, slice) for entry in getattr(node.op, "idx_list", ()))
    others = others or any(getattr(tensor, "dtype", "bool") == "bool" for tensor in tensors)
    refuse(others, "indexes in another way")
    # All tensors together become axes in the place of the first.
    count, wide = len(tensors), max(tensor.ndim for tensor in tensors)
    ndim = node.inputs[0].ndim - count + wide
    if all(value.steady for value in by):
        behind = whole.axis is None or whole.axis >= count
        refuse(not behind, "selects rows by their positions")
        axis = None if whole.axis is None else whole.axis + wide - count
        return whole._replace(axis=axis), ndim
    # Counted from the last axis, because tensors are aligned there.
    spread = {v.axis - tensor.ndim for tensor, v in zip(tensors, by) if v.axis is not None}
    of_rows = all(value.axis is not None or value.steady for value in by)
    refuse(len(spread) != 1 or not of_rows or any(v.degree for v in by), "indexes by no rows")
    (inside,) = spread
    for tensor, value in zip(tensors, by):
        several = tensor.ndim >= -inside and not tensor.broadcastable[inside]
        refuse(value.axis is None and several, "indexes by a fixed number of rows")
    positions = [axis for axis, value in enumerate(by) if value.kind == "position"]
    if whole.axis is None:
        refuse(bool(positions) or not whole.steady, "selects by position")
        return rows(wide + inside, merged(by)), ndim
    # Each row by its own number: p[arange(n), y].
    own_rows = positions == [whole.axis] and by[whole.axis].layout == whole.layout
    refuse(not own_rows, "combines rows with other rows by an index")
    return whole._replace(axis=wide + inside, literal=None), ndim


@rule("AdvancedSubtensor1", "AdvancedSubtensor", takes=["position"])
def advanced_subtensor(node: Any, values: List[Value]) -> Value:
    """Select entries by tensors of indices."""
    return _picked(node, values[0], values, 1)[0]


@rule("AdvancedIncSubtensor1", "AdvancedIncSubtensor", takes=["position"])
def advanced_inc_subtensor(node: Any, values: List[Value]) -> Value:
    """Add to entries of zeros by tensors of indices; adding for each row is a sum over rows."""
    whole, part = values[:2]
    chosen, ndim = _picked(node, whole, values, 2)
    value = _put(node, whole._replace(axis=chosen.axis), part, chosen.axis, ndim)
    if chosen.axis is None or whole.axis is not None:
        return value._replace(axis=whole.axis)
    refuse(getattr(node.op, "ignore_duplicates", False), "lets rows overwrite each other")
    return Value("sum", value.degree + 1)
