"""Rules for shapes, axes, reductions, joining, and indexing that leaves rows in their order."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, Union

from synk_core.engine import NoneTypeT, get_idx_list, indices_of

from .scalars import union
from .walk import FIXED, NOISE, Value, merged, plain, refuse, rows, rule, unknown


@rule("DimShuffle", takes=["items", "position"])
def dimshuffle(node: Any, values: List[Value]) -> Value:
    """Permute, add or drop axes."""
    order = list(node.op.new_order)
    if values[0].items is not None and order == [0]:
        return values[0]
    value = plain(values[0])
    if value.axis is None:
        return value
    refuse(value.axis not in order, "drops the axis of the rows")
    return value._replace(axis=order.index(value.axis))


@rule("Alloc", "AllocEmpty")
def alloc(node: Any, values: List[Value]) -> Value:
    """Fill a shape by repeating a value."""
    # All entries of an empty one are written before they are read, so any value will do.
    empty = type(node.op).__name__ == "AllocEmpty"
    value, items = (FIXED._replace(literal=0.0), values) if empty else (values[0], values[1:])
    if value.axis is None and all(item.steady for item in items):
        return value
    pattern = [] if empty else node.inputs[0].broadcastable
    axis = _axis_of_rows(items)
    place = -1 if axis is None else axis + len(pattern) - len(items)
    fills = value.kind == "fixed" and (place < 0 or pattern[place])
    refuse(axis is None or not (fills or place == value.axis), "has a shape that depends on rows")
    of_rows = rows(axis or 0, items[axis or 0].layout or node, value.degree)
    return of_rows._replace(literal=value.literal)


def _axis_of_rows(items: Sequence[Value]) -> Optional[int]:
    """Return the only axis of a shape that is as long as the rows, or several times so long."""
    counted = [axis for axis, item in enumerate(items) if item.kind == "fixed" and not item.steady]
    return counted[0] if len(counted) == 1 and items[counted[0]].degree == 1 else None


@rule("ARange")
def arange(_node: Any, values: List[Value]) -> Value:
    """Return the positions of rows, if it counts them."""
    start, stop, step = values
    if all(value.steady for value in values):
        return FIXED
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


@rule("Reshape", takes=["items", "noise", "position"])
def reshape(node: Any, values: List[Value]) -> Value:
    """Reshape: rows stay separate if they are the first axis before and after."""
    value, items = plain(values[0]), values[1].items or ()
    if value.kind == "noise":
        return drawn(node, items)
    if value.axis is None and not node.outputs[0].ndim:
        return value
    return _reshaped(node, value, items, node.inputs[0].broadcastable)


def _reshaped(node: Any, value: Value, items: Sequence[Value], pattern: Sequence[bool]) -> Value:
    """Return a value in a new shape; `pattern` has the axes before that are of one entry."""
    steady = all(item.steady for item in items)
    if value.axis is None:
        refuse(not items or not steady, "gives a value an unknown shape")
        return value
    axis = _axis_of_rows(items)
    inferred = [place for place, item in enumerate(items) if item.literal == -1]
    if axis is None and inferred and steady:
        axis = inferred[0]
    text = "gives rows a shape with a fixed number of rows; use x.shape[0] or -1 in its place"
    refuse(axis is None, text)
    place = axis or 0
    first = all(pattern[: value.axis]) and all(item.literal == 1 for item in items[:place])
    refuse(not first, "moves rows to another axis by reshaping")
    rest = all(pattern[value.axis + 1 :]) and all(item.literal == 1 for item in items[place + 1 :])
    layout = items[place].layout or (value.layout if rest else node)
    return value._replace(axis=place, layout=layout)


@rule("JoinDims")
def join_dims(node: Any, values: List[Value]) -> Value:
    """Make one axis of adjacent ones; of none, an axis of one entry."""
    value, start, count = values[0], node.op.start_axis, node.op.n_axes
    if value.axis is None or value.axis < start:
        return value
    if value.axis >= start + count:
        return value._replace(axis=value.axis - count + 1)
    pattern = node.inputs[0].broadcastable
    refuse(not all(pattern[start : value.axis]), "joins another axis in front of the rows")
    alone = all(pattern[value.axis + 1 : start + count])
    return value._replace(axis=start, layout=value.layout if alone else node)


@rule("SplitDims", takes=["items"])
def split_dims(node: Any, values: List[Value]) -> Value:
    """Make several axes of one."""
    value, items, start = plain(values[0]), values[1].items or (), node.op.axis
    if value.axis == start:
        result = _reshaped(node, value._replace(axis=0), items, [False])
        return result._replace(axis=(result.axis or 0) + start)
    refuse(not plain(values[1]).steady, "gives a value an unknown shape")
    if value.axis is None or value.axis < start:
        return value
    return value._replace(axis=value.axis + node.outputs[0].ndim - node.inputs[0].ndim)


def drawn(node: Any, items: Optional[Sequence[Value]]) -> Value:
    """Return draws of a shape: some for each row if one length is the number of rows."""
    axis = _axis_of_rows(items or ())
    if items and axis is not None:
        return rows(axis, items[axis].layout or node)
    return FIXED if items and all(item.steady for item in items) else NOISE


_REDUCTIONS = {
    "Add": "sum", "Mul": "prod", "Maximum": "max", "Minimum": "min", "AND": "min", "OR": "max",
}  # fmt: skip


@rule("CAReduce", "Mean", takes=["items"])
def reduction(node: Any, values: List[Value]) -> Value:
    """Reduce by a sum, product, maximum, minimum, any or all."""
    source, value = node.inputs[0], values[0]
    axes = range(source.ndim) if node.op.axis is None else node.op.axis
    axes = {axis % source.ndim for axis in axes} if source.ndim else set()
    name = type(node.op).__name__
    name = name if name in ("ProdWithoutZeros", "Mean") else type(node.op.scalar_op).__name__
    if value.items is not None and name == "Mul" and axes:
        lengths = [item for item in value.items if item.literal != 1]
        known = all(item.literal is not None for item in value.items)
        literal = math.prod(item.literal or 0 for item in value.items) if known else None
        layout = lengths[0].layout if len(lengths) == 1 else None
        return Value("fixed", sum(item.degree for item in lengths), None, layout, literal)
    return reduce_axes(node, name, plain(value), axes)


def reduce_axes(node: Any, name: str, value: Value, axes: Set[int]) -> Value:
    """Return the value of a reduction over some axes of a tensor."""
    if name in ("AND", "OR") and node.inputs[0].dtype != "bool":
        name = ""
    kind = "sum" if name == "Mean" else _REDUCTIONS.get(name)
    zero = 0.0 if value.zero and kind == "sum" else None
    if value.axis is not None and value.axis in axes:
        if kind == "sum":
            # Of equal entries it is their number, times what does not depend on rows.
            of_equal = "sum" if value.literal is None else "fixed"
            return Value(of_equal, value.degree + (name != "Mean"), literal=zero)
        text = "reduces rows in a way that this check cannot follow"
        refuse(kind is None or value.degree != 0, text)
        return Value(kind or "")
    scaled = value.degree != 0 and not value.zero
    refuse(scaled and kind not in ("sum", "max", "min"), "multiplies what was scaled by rows")
    if value.axis is not None:
        axis = value.axis - sum(reduced < value.axis for reduced in axes)
        return value._replace(axis=axis, literal=zero)
    one_each = all(node.inputs[0].broadcastable[axis] for axis in axes)
    text = "reduces a reduction over rows in another way"
    refuse(not one_each and value.kind not in ("fixed", kind), text)
    return value._replace(literal=zero, layout=None)


@rule("MaxAndArgmax", "Argmax")
def max_and_argmax(node: Any, values: List[Value]) -> Union[Value, Sequence[Value]]:
    """Return the largest entry, and its position."""
    source, value, axes = node.inputs[0], values[0], node.op.axis
    axes = set(range(source.ndim)) if axes is None else {int(axis) % source.ndim for axis in axes}
    largest = reduce_axes(node, "Maximum", value, axes)
    where = largest._replace(degree=0.0)
    if largest.axis is None and not value.steady:
        where = unknown(node, "is the position of a row")
    return where if len(node.outputs) == 1 else [largest, where]


def _axis_among(node: Any, values: List[Value], place: int) -> Tuple[Optional[int], List[Value]]:
    """Return the axis that an operation works along, if it is known, and the other inputs.

    PyTensor's operations have their axis; of Theano's it is the input at this place.
    """
    others = list(values)
    own = "axis" in node.op.__props__
    axis = node.op.axis if own else plain(others.pop(place)).literal
    return None if axis is None else int(axis) % node.inputs[place - 1].ndim, others


@rule("Join", takes=["items"])
def join(node: Any, values: List[Value]) -> Value:
    """Join tensors, or shapes."""
    axis, parts = _axis_among(node, values, 0)
    if all(part.items is not None for part in parts):
        return FIXED._replace(items=tuple(item for part in parts for item in part.items or ()))
    parts = [plain(part) for part in parts]
    along = any(part.axis is not None and axis in (None, part.axis) for part in parts)
    refuse(along, "joins rows behind rows")
    return union(parts)


@rule("Split")
def split(node: Any, values: List[Value]) -> Value:
    """Split a tensor."""
    axis, (value, lengths) = _axis_among(node, values, 1)
    of_rows = value.axis is not None and axis in (None, value.axis)
    refuse(of_rows or not lengths.steady, "splits the rows")
    return value


def _bounds(entry: Any) -> Sequence[Any]:
    return (entry.start, entry.stop, entry.step) if isinstance(entry, slice) else (entry,)


def _dropped(entries: Sequence[Any], axis: Optional[int] = None) -> int:
    return sum(not isinstance(entry, slice) for entry in entries[:axis])


@rule("Subtensor", takes=["items"])
def subtensor(node: Any, values: List[Value]) -> Value:
    """Select slices and single entries."""
    value, axis = values[0], values[0].axis
    entries = get_idx_list(node.inputs, node.op.idx_list)
    lookup = {v: plain(number) for v, number in zip(node.inputs[1:], values[1:])}
    if value.items is not None:
        bounds = [lookup[b].literal if b in lookup else b for b in _bounds(entries[0])]
        missing = any(b is not None and n is None for b, n in zip(_bounds(entries[0]), bounds))
        refuse(missing, "takes an unknown part of a shape")
        places = [None if number is None else int(number) for number in bounds]
        if isinstance(entries[0], slice):
            return FIXED._replace(items=value.items[slice(*places)])
        return value.items[places[0] or 0]
    for place, entry in enumerate(entries):
        if place != axis:
            steady = all(lookup[b].steady for b in _bounds(entry) if b in lookup)
            refuse(not steady, "selects by a value that depends on the rows")
    if axis is None:
        return value
    if axis < len(entries) and entries[axis] != slice(None):
        # All rows, or p[:n] of n rows.
        start, stop, step = (*_bounds(entries[axis]), 0, 0)[:3]
        number = lookup.get(stop, FIXED)
        by_rows = number.degree == 1 and number.layout is not None
        whole = stop is None or (by_rows and number.layout == value.layout)
        from_first = start is None or lookup.get(start, FIXED._replace(literal=start)).zero
        text = "selects rows by their positions, which each rank counts from 0"
        refuse(not (whole and from_first and step is None), text)
    return value._replace(axis=axis - _dropped(entries, axis))


@rule("IncSubtensor")
def inc_subtensor(node: Any, values: List[Value]) -> Value:
    """Set, or add to, slices and single entries."""
    whole, part = values[:2]
    entries = get_idx_list(node.inputs[1:], node.op.idx_list)
    steady = all(value.steady for value in values[2:])
    refuse(not steady, "changes entries at places that depend on the rows")
    axis = whole.axis
    if axis is None:
        return _changed(node, whole, part)
    whole_axis = axis >= len(entries) or entries[axis] == slice(None)
    refuse(not whole_axis, "changes rows by their positions")
    # The part is aligned with the selection from the last axis backwards.
    selected = node.inputs[0].ndim - _dropped(entries)
    return _put(node, whole, part, axis - _dropped(entries, axis) - selected)


def _changed(node: Any, whole: Value, part: Value) -> Value:
    """Return a value in which a part was set, or added to what was there."""
    result = union([whole, part])
    adds = not node.op.set_instead_of_inc and result.kind in ("max", "min", "prod")
    refuse(adds, "adds to a maximum, minimum or product over rows")
    return result if result.zero else result._replace(literal=None)


def _put(node: Any, whole: Value, part: Value, from_end: int) -> Value:
    """Return rows in which a part was changed, whose axis of rows is counted from the end."""
    there = from_end + node.inputs[1].ndim
    fills = part.kind == "fixed" and (there < 0 or node.inputs[1].broadcastable[there])
    plainly = "position" not in (whole.kind, part.kind) and (fills or part.axis == there)
    refuse(not plainly, "puts something other than its rows into rows")
    return _changed(node, whole, part._replace(kind="rows", axis=whole.axis, layout=whole.layout))


def _picked(node: Any, whole: Value, values: Sequence[Value], first: int) -> Tuple[Value, int]:
    """Return the value of indexing by tensors, which are the inputs from `first` on, and its number
    of axes."""
    lookup = dict(zip(node.inputs[first:], values[first:]))
    tensors: Dict[int, Tuple[Any, Value]] = {}
    for axis, entry in enumerate(indices_of(node.op, node.inputs[first:])):
        if isinstance(entry, slice):
            steady = all(lookup[b].steady for b in _bounds(entry) if b in lookup)
            part = axis == whole.axis and entry != slice(None)
            refuse(part or not steady, "selects rows, or by a value that depends on the rows")
        else:
            plainly = not isinstance(entry.type, NoneTypeT) and entry.dtype != "bool"
            refuse(not plainly, "indexes in a way that this check does not follow")
            tensors[axis] = entry, lookup[entry]
    numbers, wide = sorted(tensors), max(entry.ndim for entry, _ in tensors.values())
    ndim = node.inputs[0].ndim - len(numbers) + wide
    # The axes that all tensors become are in the place of the first, or in front.
    start = numbers[0] if numbers[-1] - numbers[0] == len(numbers) - 1 else 0
    by = [value for _, value in tensors.values()]
    if all(value.steady for value in by):
        if whole.axis is None:
            return whole, ndim
        refuse(whole.axis in tensors, "selects rows by their positions")
        rank = whole.axis - sum(number < whole.axis for number in numbers)
        axis = rank if rank < start else rank + wide
        return whole._replace(axis=axis, literal=None), ndim
    spread = {wide - t.ndim + v.axis for t, v in tensors.values() if v.axis is not None}
    of_rows = all(value.axis is not None or value.steady for value in by)
    refuse(len(spread) != 1 or not of_rows or any(v.degree for v in by), "indexes by no rows")
    (inside,) = spread
    for entry, value in tensors.values():
        own = inside - wide + entry.ndim
        several = value.axis is None and own >= 0 and not entry.broadcastable[own]
        refuse(several, "indexes by a fixed number of rows")
    positions = [axis for axis, value in zip(tensors, by) if value.kind == "position"]
    if whole.axis is None:
        refuse(bool(positions) or not whole.steady, "selects by position")
        return rows(start + inside, merged(by)), ndim
    # Each row by its own number: p[arange(n), y].
    own_rows = positions == [whole.axis] and tensors[whole.axis][1].layout == whole.layout
    refuse(not own_rows, "combines rows with other rows by an index")
    return whole._replace(axis=start + inside, literal=None), ndim


@rule("AdvancedSubtensor1", "AdvancedSubtensor", takes=["position"])
def advanced_subtensor(node: Any, values: List[Value]) -> Value:
    """Select entries by tensors of indices."""
    return _picked(node, values[0], values, 1)[0]


@rule("AdvancedIncSubtensor1", "AdvancedIncSubtensor", takes=["position"])
def advanced_inc_subtensor(node: Any, values: List[Value]) -> Value:
    """Set, or add to, entries by tensors of indices; adding for each row is a sum over rows."""
    whole, part = values[:2]
    chosen, ndim = _picked(node, whole, values, 2)
    if chosen.axis is None:
        return _changed(node, whole, part)
    if whole.axis is not None:
        return _put(node, whole, part, chosen.axis - ndim)
    sets = node.op.set_instead_of_inc or getattr(node.op, "ignore_duplicates", False)
    refuse(sets, "lets rows overwrite each other")
    of_rows = _put(node, chosen._replace(degree=part.degree), part, chosen.axis - ndim)
    return _changed(node, whole, Value("sum", of_rows.degree + 1))
