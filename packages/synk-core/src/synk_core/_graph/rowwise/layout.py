"""The relation of the entries along an axis to rows, and along axes made from it (see `ROW`)."""

from __future__ import annotations

from typing import Any, List, Sequence

from .walk import ROW, Value, layout_kind, unknown


def merge_layouts(node: Any, layouts: Sequence[Any]) -> Any:
    """Return the layout of rows that are combined entry by entry, or an unknown value."""
    first = layouts[0]
    for layout in layouts[1:]:
        kinds = {layout_kind(first), layout_kind(layout)}
        if layout == first or layout_kind(layout) == "any":
            continue
        if layout_kind(first) == "any" or (kinds <= {"", "block"} and layout == ROW):
            # In order and of equal length, so both have the same number of entries per row.
            first = layout
        elif kinds <= {"", "block"}:
            continue
        elif "reversed" in kinds and kinds <= {"", "block", "reversed"}:
            return unknown(node, "combines rows with rows in reverse order")
        else:
            return unknown(node, "combines rows of different layouts")
    return first


def length_layout(layout: Any) -> Any:
    """Return the layout of the length of an axis with this layout."""
    if layout is None or isinstance(layout, str):
        return layout
    if layout[0] == "any":
        return layout[1]
    if layout[0] == "outer" and isinstance(layout[1], tuple):
        return ("times", *layout[1:])
    if layout[0] == "block" and isinstance(layout[1], tuple):
        return layout[1]
    return layout


def multiplied(values: Sequence[Value]) -> Any:
    """Return the layout of a product of lengths; None if one of them is not identified."""
    dims: List[Any] = []
    base: Any = None
    for value in values:
        layout = value.layout
        if value.literal == 1:
            continue
        if layout is None or (value.degree == 1 and base is not None):
            return None
        if value.degree == 1:
            base = layout
            if layout[0] == "times":
                dims.extend(layout[1])
                base = layout[2]
        else:
            dims.extend(layout[1])
    product = tuple(sorted(dims))
    if base is None:
        return ("dims", product)
    return ("times", product, base) if product else base
