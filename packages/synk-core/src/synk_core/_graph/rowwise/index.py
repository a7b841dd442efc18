"""Rules for indexing: selecting within each row keeps rows separate, selecting rows does not."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from synk_core.engine import NoneTypeT, get_idx_list, indices_of

from .layout import length_layout
from .reduced import union
from .walk import (
    FIXED,
    NOISE,
    Value,
    has_shape,
    is_accumulated,
    layout_kind,
    mixed,
    obstacle,
    plain,
    rows,
    rule,
    several,
    unknown,
    unruled,
)

_CURE = "return the rows with 'gather' and select after the call"


@rule("Subtensor", takes="all")
def subtensor(node: Any, values: List[Value]) -> Value:
    """Select slices and single entries."""
    value = values[0]
    entries = get_idx_list(node.inputs, node.op.idx_list)
    lookup = dict(zip(node.inputs[1:], values[1:]))
    if value.items is not None:
        return _of_items(node, value.items, entries[0] if entries else slice(None), lookup)
    numbers = [plain(number) for number in values[1:]]
    if value.kind == "noise":
        return NOISE
    spoiled = obstacle(node, [value, *numbers])
    if spoiled is not None:
        return spoiled
    if value.axis is not None and value.axis < len(entries):
        return _select_rows(node, value, entries, lookup)
    if not all(number.steady for number in numbers):
        return unknown(node, "selects by a value that depends on the rows")
    if value.axis is None:
        return value
    return value._replace(axis=value.axis - _dropped(entries, value.axis))


def _dropped(entries: Sequence[Any], axis: int) -> int:
    return sum(not isinstance(entry, slice) for entry in entries[:axis])


def _literal(bound: Any, lookup: Any) -> Tuple[Optional[float], Value]:
    """Return a bound's number, if it is known, and its value."""
    if bound is None or isinstance(bound, int):
        return bound, FIXED
    value = plain(lookup[bound])
    return value.literal, value


def _of_items(node: Any, items: Sequence[Value], entry: Any, lookup: Any) -> Value:
    if not isinstance(entry, slice):
        place = _literal(entry, lookup)[0]
        if place is None or not -len(items) <= place < len(items):
            return union(node, items)
        return items[int(place)]
    bounds = []
    for bound in (entry.start, entry.stop, entry.step):
        number = _literal(bound, lookup)[0]
        if bound is not None and number is None:
            return unknown(node, "takes an unknown part of a shape")
        bounds.append(None if number is None else int(number))
    return FIXED._replace(items=tuple(items[slice(*bounds)]))


def _select_rows(node: Any, value: Value, entries: Sequence[Any], lookup: Any) -> Value:
    axis = value.axis or 0
    for place, entry in enumerate(entries):
        parts = (entry.start, entry.stop, entry.step) if isinstance(entry, slice) else (entry,)
        if place != axis and not all(_literal(part, lookup)[1].steady for part in parts):
            return unknown(node, "selects by a value that depends on the rows")
    entry = entries[axis]
    moved = value._replace(axis=axis - _dropped(entries, axis))
    ordered = layout_kind(value.layout) not in ("joined", "any")
    if not isinstance(entry, slice):
        if not ordered or is_accumulated(value) or not _literal(entry, lookup)[1].steady:
            return unknown(node, "selects one row in a way that this check cannot follow")
        text = "selects one row by its position, which each rank counts from 0"
        result = mixed(node, text, _CURE)
        return result if has_shape(value) else several(result)
    start, _ = _literal(entry.start, lookup)
    stop, last = _literal(entry.stop, lookup)
    step, _ = _literal(entry.step, lookup)
    whole_stop = entry.stop is None or (
        last.degree == 1 and last.layout == length_layout(value.layout)
    )
    # An unknown bound may be any number; one that was left out is None.
    from_first, one_by_one = entry.start is None or start == 0, entry.step is None or step == 1
    if from_first and one_by_one and whole_stop:
        return moved
    if (entry.start, entry.stop) == (None, None) and step == -1 and value.kind == "rows":
        if layout_kind(value.layout) == "reversed":
            return moved._replace(layout=value.layout[1])
        same = layout_kind(value.layout) == "any"
        return moved if same else moved._replace(layout=("reversed", value.layout))
    missing = any(
        bound is not None and number is None
        for bound, number in ((entry.start, start), (entry.stop, stop), (entry.step, step))
    )
    if missing or not ordered or is_accumulated(value):
        return unknown(node, "selects rows by bounds that this check cannot follow")
    text = "selects rows by their positions, which each rank counts from 0"
    # This axis has some of the rows, not all of them.
    return several(mixed(node, text, _CURE, moved.axis))


@rule("IncSubtensor", takes="mixed")
def inc_subtensor(node: Any, values: List[Value]) -> Value:
    """Set, or add to, slices and single entries."""
    whole, part = values[:2]
    entries = get_idx_list(node.inputs[1:], node.op.idx_list)
    if not all(value.steady for value in values[2:]):
        return unknown(node, "changes entries at places that depend on the rows")
    if whole.axis is None:
        if part.axis is not None:
            return unknown(node, "puts rows into a value without rows")
        return _changed(node, whole, part)
    axis = whole.axis
    if axis < len(entries) and entries[axis] != slice(None):
        return unknown(node, "changes rows by their positions")
    # The part is aligned with the selection from the last axis backwards.
    here = axis - _dropped(entries, axis)
    selected = node.inputs[0].ndim - sum(not isinstance(entry, slice) for entry in entries)
    return _put(node, whole, part, here - (selected - node.inputs[1].ndim), whole.layout)


def _changed(node: Any, whole: Value, part: Value) -> Value:
    """Return a value in which a part was set, or added to what was there."""
    result = union(node, [whole, part])
    if node.op.set_instead_of_inc:
        return result
    if result.kind in ("max", "min", "prod"):
        return unknown(node, "adds to a maximum, minimum or product over rows")
    return result if result.zero else result._replace(literal=None)


def _put(node: Any, whole: Value, part: Value, there: int, layout: Any) -> Value:
    """Return rows in which a part was changed.

    Args:
        there: the axis of rows in the part.
        layout: layout of the entries that were changed.
    """
    if part.axis is None:
        if there >= 0 and not node.inputs[1].broadcastable[there]:
            return unknown(node, "puts a fixed number of rows into rows")
        if part.kind != "fixed" or whole.kind != "rows":
            return unknown(node, "puts a reduction over rows into rows")
        part = part._replace(kind="rows", axis=there, layout=layout)
    if part.axis != there:
        return unknown(node, "puts rows into rows along another axis")
    return _changed(node, whole, part._replace(axis=whole.axis))


# ---- advanced indexing -----------------------------------------------------------------------


class _Indices(NamedTuple):
    """Indices of a node, by the axes that they are for.

    Attributes:
        slices: axes of slices, and whether the slice takes all entries.
        tensors: axes of tensors, each with its tensor and the value of that.
        others: values of what bounds slices.
    """

    slices: Dict[int, bool]
    tensors: Dict[int, Tuple[Any, Value]]
    others: List[Value]

    @property
    def wide(self) -> int:
        """Number of axes that all tensors become."""
        return max(place.ndim for place, _ in self.tensors.values())

    def moved(self, axis: int) -> int:
        """Return the place in the result of an axis that no tensor is for."""
        rank = axis - sum(number < axis for number in self.tensors)
        return rank if rank < self.start else rank + self.wide

    @property
    def start(self) -> int:
        """First axis of the tensors in the result."""
        numbers = sorted(self.tensors)
        adjacent = numbers[-1] - numbers[0] == len(numbers) - 1
        return numbers[0] if adjacent else 0


def _indices(node: Any, values: Sequence[Value], first: int) -> Optional[_Indices]:
    """Return the indices of an operation; None if the check does not follow them.

    Args:
        first: place of the first index among the inputs.
    """
    lookup = dict(zip(node.inputs[first:], values[first:]))
    found = _Indices({}, {}, [])
    for axis, entry in enumerate(indices_of(node.op, node.inputs[first:])):
        if isinstance(entry, slice):
            found.slices[axis] = entry == slice(None)
            bounds = (entry.start, entry.stop, entry.step)
            found.others.extend(lookup[bound] for bound in bounds if bound in lookup)
        elif isinstance(entry.type, NoneTypeT) or entry.dtype == "bool":
            return None
        else:
            found.tensors[axis] = entry, lookup[entry]
    return found if found.tensors else None


def _select(node: Any, whole: Value, indices: Optional[_Indices]) -> Value:
    """Return the value of indexing by tensors."""
    if indices is None:
        return unknown(node, "indexes in a way that this check does not follow")
    by, axis = [value for _, value in indices.tensors.values()], whole.axis
    if not all(value.steady for value in indices.others):
        return unknown(node, "selects by a value that depends on the rows")
    if not indices.slices.get(-1 if axis is None else axis, True):
        return unknown(node, "selects rows in a way that this check cannot follow")
    if not all(value.steady for value in by):
        return _select_by_rows(node, whole, indices)
    if axis is None:
        return whole
    if axis not in indices.tensors:
        return whole._replace(axis=indices.moved(axis), literal=None)
    if layout_kind(whole.layout) == "any":
        return unknown(node, "selects among rows that are equal, or drawn")
    return mixed(node, "selects rows by their positions, which each rank counts from 0", _CURE)


def _select_by_rows(node: Any, whole: Value, indices: _Indices) -> Value:
    """Return the value of indexing by tensors, some of which have rows."""
    axis, wide, tensors = whole.axis, indices.wide, list(indices.tensors.values())
    if any(v.kind not in ("rows", "position") and not v.steady for _, v in tensors):
        return unknown(node, "indexes by a reduction over rows")
    spread = [(place, value) for place, value in tensors if value.axis is not None]
    there = {(value.axis or 0) + wide - place.ndim for place, value in spread}
    layouts = {value.layout for _, value in spread if value.kind == "rows"}
    if len(there) != 1 or len(layouts) > 1 or any(value.degree for _, value in spread):
        return unknown(node, "indexes by rows of different axes or layouts")
    inside = there.pop()
    for place, value in tensors:
        own = inside - (wide - place.ndim)
        if value.axis is None and own >= 0 and not place.broadcastable[own]:
            return unknown(node, "indexes by a fixed number of rows")
    out = indices.start + inside
    if axis is None:
        if whole.steady and all(value.kind != "position" for _, value in tensors):
            return rows(out, layouts.pop())
        return unknown(node, "selects by position")
    free = layout_kind(whole.layout) == "any" and len(layouts) == 1
    if axis not in indices.tensors or not (free or layouts <= {whole.layout}):
        return unknown(node, "combines rows with other rows by an index")
    for number, (_, value) in indices.tensors.items():
        own_row = value.kind == "position" and value.layout == length_layout(whole.layout)
        if own_row != (number == axis):
            return unknown(node, "selects rows by an index that this check cannot follow")
    return whole._replace(axis=out, layout=layouts.pop() if free else whole.layout, literal=None)


@rule("AdvancedSubtensor1", "AdvancedSubtensor")
def advanced_subtensor(node: Any, values: List[Value]) -> Value:
    """Select entries by tensors of indices."""
    if any(value.kind == "noise" for value in values):
        return unruled(node, values)
    return _select(node, values[0], _indices(node, values, 1))


@rule("AdvancedIncSubtensor1", "AdvancedIncSubtensor")
def advanced_inc_subtensor(node: Any, values: List[Value]) -> Value:
    """Set, or add to, entries by tensors of indices; adding for each row is a sum over rows."""
    if any(value.kind == "noise" for value in values):
        return unruled(node, values)
    whole, part = values[:2]
    indices = _indices(node, values, 2)
    chosen = _select(node, whole, indices)
    if indices is None or chosen.kind in ("unknown", "mixed"):
        return unknown(node, "changes entries in a way that this check cannot follow")
    if chosen.axis is None:
        if part.axis is not None:
            return unknown(node, "puts rows into a value without rows")
        return _changed(node, whole, part)
    # The selection has the axes of the indices, and the remaining ones of the source.
    selected = node.inputs[0].ndim - len(indices.tensors) + indices.wide
    there = chosen.axis - (selected - node.inputs[1].ndim)
    if whole.axis is not None:
        return _put(node, whole, part, there, chosen.layout)
    if node.op.set_instead_of_inc or getattr(node.op, "ignore_duplicates", False):
        return unknown(node, "lets rows overwrite each other")
    if part.axis is None:
        fits = there < 0 or node.inputs[1].broadcastable[there]
        if part.kind != "fixed" or not fits:
            return unknown(node, "adds a fixed number of rows")
    elif part.axis != there or part.kind != "rows":
        return unknown(node, "adds rows along another axis, or values that are no rows")
    return _changed(node, whole, Value("sum", part.degree + 1))
