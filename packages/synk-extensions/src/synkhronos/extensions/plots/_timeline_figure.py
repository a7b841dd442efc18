"""Draw the figure of `plot_timeline`: rectangles, thousands of them if necessary."""

from __future__ import annotations

from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath

from . import _figure as look
from ._chrome_trace import Trace, TraceSpan

COLOURS = {
    "call": look.PALE,
    "scatter": look.SAND,
    "compute": look.INDIGO,
    "slice": look.CYAN,
    "wait": look.ROSE,
    "reduce": look.GREEN,
    "collective": look.TEAL,
    "copy": look.OLIVE,
    "compile": look.WINE,
    "distribute": look.PURPLE,
}
"""Colour of each category; others are grey."""

WIDTH = 11.0
ROW_HEIGHT = 0.26
"""Inches, both, without the legend."""

LANES_WIDTH = 0.74
"""Approximate fraction of the width for lanes, to decide which texts have room."""

GAP = 0.45
"""Rows between two ranks."""

EDGE, THICK = 0.04, 0.92
"""Rows above a box, and its height in rows."""

SHORTEST = 8
"""Letters of a shortened name, at least."""

BINS = 600
"""Parts of the window; spans shorter than one are merged, since a dot has room for several."""

MANY = 5000
"""Boxes beyond which SVG and PDF contain dots, since they would be large and slow otherwise."""

Row = Tuple[int, int, int]
"""Rank, thread and depth."""
Box = Tuple[float, float, float, float]
"""Left and right in microseconds, top and bottom in rows."""


def draw(trace: Trace, title: Optional[str]) -> look.Picture:
    """Draw one lane for each rank, the first at the top."""
    rows, lanes = _rows(trace)
    begin, end = trace.window
    unit, size = _unit(end - begin)
    height = max(bottom for _, bottom in lanes.values())
    figure = look.new_figure(
        WIDTH, max(height * ROW_HEIGHT + 1.3, 2.9), _title(trace) if title is None else title
    )
    axes = figure.subplots()
    look.plain(axes, f"time since the beginning of the trace ({unit})", "")
    axes.grid(visible=False, axis="y")
    axes.set_xlim(begin / size, end / size)
    axes.set_ylim(height + GAP / 2, -GAP / 2)
    axes.set_yticks([(top + bottom) / 2 for top, bottom in lanes.values()])
    axes.set_yticklabels([look.literal(trace.names[rank]) for rank in lanes])
    axes.tick_params(axis="y", length=0)
    for top, _ in list(lanes.values())[1:]:
        axes.axhline(top - GAP / 2, color="#BBBBBB", linewidth=0.8)

    present = {span.category for span in trace.spans}
    order = [*(name for name in COLOURS if name in present), *sorted(present - set(COLOURS))]
    narrow, wide = _split(trace.spans, (end - begin) / BINS)
    boxes = _shares(narrow, rows, order, trace.window)
    for span in wide:
        top = rows[_row(span)] + EDGE
        boxes[span.category].append((span.start, span.end, top, top + THICK))
    many = sum(len(group) for group in boxes.values()) > MANY
    for category in order:
        axes.add_collection(
            _collection(category, np.array(boxes[category]), size, (end - begin) / 250, many),
            autolim=False,
        )
    if narrow:
        axes.set_xlabel(
            f"{axes.get_xlabel()}; what is too short to be seen is stacked by its share"
        )
    _write_names(axes, trace, rows, size)
    _legend(figure, trace, order)
    return figure


def _rows(trace: Trace) -> Tuple[Dict[Row, float], Dict[int, Tuple[float, float]]]:
    """Return the top of each row (rank, thread, depth), and top and bottom of each lane."""
    used: Dict[int, set[Row]] = {rank: set() for rank in trace.names}
    for span in trace.spans:
        used[span.rank].add(_row(span))
    rows: Dict[Row, float] = {}
    lanes: Dict[int, Tuple[float, float]] = {}
    top = 0.0
    for rank, keys in used.items():
        start = top
        for key in sorted(keys):
            rows[key] = top
            top += 1
        # A rank without activity has a lane, too.
        lanes[rank] = (start, max(top, start + 1))
        top = lanes[rank][1] + GAP
    return rows, lanes


def _split(spans: Sequence[TraceSpan], shortest: float) -> Tuple[List[TraceSpan], List[TraceSpan]]:
    """Return the spans shorter than this, and the others."""
    narrow: List[TraceSpan] = []
    wide: List[TraceSpan] = []
    for span in spans:
        (narrow if span.end - span.start < shortest else wide).append(span)
    return narrow, wide


def _shares(
    narrow: Sequence[TraceSpan],
    rows: Dict[Row, float],
    order: Sequence[str],
    window: Tuple[float, float],
) -> Dict[str, List[Box]]:
    """Return boxes, by category, for spans that are too short to be drawn separately.

    Time is cut into bins. In each bin of each row the categories are stacked, with heights in
    proportion to their time: the area of a category is its time, as for single spans.
    """
    begin, end = window
    bin_length = (end - begin) / BINS
    shares = {span: np.zeros((len(order), BINS + 1)) for span in {_row(span) for span in narrow}}
    places = {category: place for place, category in enumerate(order)}
    for span in narrow:
        first, last = max(span.start, begin), min(span.end, end)
        number = min(int((first - begin) / bin_length), BINS - 1)
        # A span that is shorter than a bin is in one or two of them.
        border = min(begin + (number + 1) * bin_length, last)
        share = shares[_row(span)][places[span.category]]
        share[number] += max(border - first, 0.0) / bin_length
        share[number + 1] += max(last - border, 0.0) / bin_length
    boxes: Dict[str, List[Box]] = {category: [] for category in order}
    for row, share in shares.items():
        bottoms = rows[row] + EDGE + THICK * np.cumsum(share, axis=0)
        for place, number in zip(*np.nonzero(share)):
            left, bottom = begin + number * bin_length, bottoms[place, number]
            top = bottom - THICK * share[place, number]
            boxes[order[place]].append((left, left + bin_length, top, bottom))
    return boxes


def _row(span: TraceSpan) -> Row:
    return span.rank, span.thread, span.depth


def _collection(
    category: str, boxes: np.ndarray, size: float, broad: float, rasterized: bool
) -> PolyCollection:
    """Return one collection for all boxes of a category: quick, however many there are."""
    x0, x1, y0, y1 = boxes.T
    corners = [(x0 / size, y0), (x1 / size, y0), (x1 / size, y1), (x0 / size, y1)]
    vertices = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
    # White edges keep neighbours apart; they would be all there is of the narrow ones.
    edges = np.where(x1 - x0 > broad, 0.6, 0.0)
    return PolyCollection(
        list(vertices),
        facecolors=COLOURS.get(category, look.GREY),
        edgecolors="white",
        linewidths=edges,
        label=category,
        rasterized=rasterized,
    )


def _write_names(axes: Axes, trace: Trace, rows: Dict[Row, float], size: float) -> None:
    """Name and duration in the spans that have room for both, or for the name, or its beginning."""
    begin, end = trace.window
    points = WIDTH * LANES_WIDTH * 72 / (end - begin)
    for span in trace.spans:
        room = trace.length(span) * points - look.SMALL
        if room < look.SMALL:
            continue
        text = next((text for text in _texts(span, room) if _width(text) <= room), "")
        if text.strip():
            axes.text(
                (max(span.start, begin) + min(span.end, end)) / 2 / size,
                rows[_row(span)] + 0.5,
                text,
                ha="center",
                va="center",
                fontsize=look.SMALL,
                color=_readable_on(COLOURS.get(span.category, look.GREY)),
                clip_on=True,
            )


def _texts(span: TraceSpan, room: float) -> Iterator[str]:
    """Yield possible texts for a span of this width in points, best first."""
    name = look.literal(span.name)
    yield f"{name}  {duration(span.end - span.start)}"
    yield name
    letters = int(room / look.SMALL / 0.6) - 1
    if letters >= SHORTEST:
        yield look.literal(span.name[:letters]) + "…"


def _width(text: str) -> float:
    """Return the width in points, from control points: exact extents take 100 times as long."""
    if not text.strip():
        return 0.0
    path = TextPath((0, 0), text, size=look.SMALL)
    return float(np.ptp(path.vertices[path.codes != path.CLOSEPOLY, 0]))


def _readable_on(colour: str) -> str:
    red, green, blue = to_rgb(colour)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def _legend(figure: look.Picture, trace: Trace, order: Sequence[str]) -> None:
    handles = [
        Patch(
            facecolor=COLOURS.get(category, look.GREY),
            label=f"{look.literal(category)}  {duration(trace.time_of(category))}",
        )
        for category in order
    ]
    look.key(
        figure,
        handles,
        loc="outside right upper",
        title="time, mean of ranks",
        title_fontsize=look.SMALL,
        alignment="left",
    )


def duration(microseconds: float) -> str:
    """Format a time with three digits and a suitable unit.

    >>> duration(4.2), duration(999.6), duration(12_345), duration(2.5e6)
    ('4.20 µs', '1.00 ms', '12.3 ms', '2.50 s')
    """
    for unit, size in (("µs", 1.0), ("ms", 1e3), ("s", 1e6)):
        value = microseconds / size
        if value < 999.5 or unit == "s":
            break
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def _unit(microseconds: float) -> Tuple[str, float]:
    if microseconds < 2e3:
        return "µs", 1.0
    return ("ms", 1e3) if microseconds < 2e6 else ("s", 1e6)


def _title(trace: Trace) -> str:
    begin, end = trace.window
    ranks = f"{len(trace.names)} rank{'s' if len(trace.names) > 1 else ''}"
    unit, size = _unit(end)
    return f"Timeline of {ranks}: {begin / size:.4g} to {end / size:.4g} {unit}"
