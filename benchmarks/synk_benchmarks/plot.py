"""Draw a result: every row as ratios to one peer, or times over sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Tuple

from .results import Result, Row, compare
from .targets import Verdict
from .text import amount, number, size_name

OUR_COLOUR, WORSE_COLOUR, OTHER = "#1b6ca8", "#c8553d", ("#000000", "*")
NARROWEST, WIDEST = 0.1, 20.0
"""Ratios beyond are drawn there."""
ACROSS = 4
"""Panels beside each other."""
LEGEND_INCHES = 0.3
"""Height of the line between the heading and the panels."""
Styles = Mapping[str, Tuple[str, str]]
"""By contender: colour and mark, so that it can be read in grey, too."""


class Line(NamedTuple):
    """One row of the picture of ratios; every number is a ratio to `peer`, less is better."""

    row: Row
    peer: str
    ours: float
    others: dict[str, float]
    limits: list[float]
    """Where the targets are."""


def draw_ratios(
    result: Result, lines: Sequence[Line], styles: Styles, ours: str, path: Path
) -> None:
    """Write the picture: a bar for ours, a mark for each other.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: nothing has a ratio.
    """
    if not lines:
        raise ValueError("nothing that was measured has a ratio")
    with _figure(path, (10, 2 + 0.27 * len(lines)), 1, 1) as (figure, (axes,)):
        for place, line in enumerate(lines):
            _draw_line(axes, place, line, styles)
        axes.set_xscale("log")
        axes.set_xlim(NARROWEST * 0.85, WIDEST * 1.15)
        ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20]
        axes.set_xticks(ticks, ["<= 0.1", "0.2", "0.5", "1", "2", "5", "10", ">= 20"])
        axes.minorticks_off()
        labels = [f"{line.row.label}  (to {line.peer})" for line in lines]
        axes.set_yticks(range(len(lines)), labels, fontsize=8.5)
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.axvline(1, color="black", linewidth=0.8, zorder=3)
        axes.grid(axis="x", color="#dddddd", zorder=0)
        for place, (line, following) in enumerate(zip(lines, lines[1:])):
            if line.row.group != following.row.group:
                axes.axhline(place + 0.5, color="#bbbbbb", linewidth=0.6, zorder=1)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("ratio to the peer in brackets, log scale; left is better")
        _heading(figure, f"{ours} beside its peers", result)
        marks = {name: styles.get(name, OTHER) for name in result.columns(list(styles))}
        more = {"target": ("#000000", "|"), f"{ours}, better": (OUR_COLOUR, "s")}
        _legend(figure, {**more, f"{ours}, worse": (WORSE_COLOUR, "s"), **marks}, "")


def lines_of(
    result: Result, verdicts: Sequence[Verdict], ours: str, columns: Sequence[str]
) -> list[Line]:
    """Return the rows that have a ratio, each to the first peer that it is compared with."""
    found: dict[str, Line] = {}
    for row, peer, limits in _compared(result, verdicts, columns):
        ratios = {name: compare(row, name, peer) for name in row.cells}
        known = {name: one.value for name, one in ratios.items() if one and one.value}
        if row.key in found or ours not in known:
            continue

        def turned(value: float, row: Row = row) -> float:
            return 1 / value if row.more_is_better else value

        found[row.key] = Line(
            row,
            peer,
            turned(known[ours]),
            {name: turned(value) for name, value in known.items() if name != ours},
            [turned(limit * known[to]) for to, limit in limits if to in known],
        )
    return list(found.values())


def _compared(
    result: Result, verdicts: Sequence[Verdict], columns: Sequence[str]
) -> Iterator[tuple[Row, str, list[tuple[str, float]]]]:
    for row in result.rows:
        own = [verdict for verdict in verdicts if verdict.row is row]
        limits = [(verdict.to, verdict.limit) for verdict in own if verdict.to]
        peers = [to for to, _ in limits] or [row.best(columns)]
        yield row, peers[0], limits


def _draw_line(axes: Any, place: int, line: Line, styles: Styles) -> None:
    colour = OUR_COLOUR if line.ours <= 1 else WORSE_COLOUR
    axes.barh(place, _clipped(line.ours) - 1, left=1, height=0.62, color=colour, zorder=2)
    axes.annotate(
        number(line.ours),
        (1.05, place),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="center",
        fontsize=8.5,
        color=colour,
    )
    for name, value in line.others.items():
        paint, mark = styles.get(name, OTHER)
        axes.plot(_clipped(value), place, mark, color=paint, markersize=5.5, zorder=4)
    for limit in line.limits:
        x = _clipped(limit)
        axes.plot([x, x], [place - 0.42, place + 0.42], color="black", linewidth=1.8, zorder=5)


def _clipped(value: float) -> float:
    return math.exp(min(max(math.log(value), math.log(NARROWEST)), math.log(WIDEST)))


def draw_times(result: Result, styles: Styles, ours: str, path: Path) -> None:
    """Write the picture: for each group and number of ranks the time over the size.

    Bands are the middle half of the rounds.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is nothing that has sizes.
    """
    panels: dict[tuple[int, str], list[Row]] = {}
    for row in sorted(result.rows, key=lambda row: row.ranks):
        if row.nbytes:
            panels.setdefault((row.ranks, row.group), []).append(row)
    if not panels:
        raise ValueError("nothing that was measured has sizes")
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    with _figure(path, (4 * across, 3 * down + 1), down, across) as (figure, grid):
        for axes, ((ranks, group), rows) in zip(grid, panels.items()):
            _draw_panel(axes, rows, styles)
            axes.set_title(f"{group}, {ranks} ranks", fontsize=10)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        _heading(figure, f"{ours} beside its peers: time of one call over size", result)
        _legend(figure, styles, "-")


def _draw_panel(axes: Any, rows: list[Row], styles: Styles) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for name, (colour, mark) in styles.items():
        spreads = [(row.nbytes, row.cells[name].spread) for row in rows if row.value(name)]
        points = [(nbytes, spread) for nbytes, spread in spreads if spread]
        sizes = [nbytes for nbytes, _ in points]
        middle = [spread.value for _, spread in points]
        axes.plot(sizes, middle, color=colour, marker=mark, markersize=4, linewidth=1.3)
        low, high = [spread.low for _, spread in points], [spread.high for _, spread in points]
        axes.fill_between(sizes, low, high, color=colour, alpha=0.2, linewidth=0)
    ticks = [row.nbytes for row in rows][:: 3 if len(rows) > 6 else 1]
    axes.set_xticks(ticks, [size_name(nbytes) for nbytes in ticks], fontsize=8)
    axes.yaxis.set_major_formatter(lambda value, _place: amount(value))
    axes.minorticks_off()
    axes.tick_params(axis="both", labelsize=8, labelbottom=True)
    axes.grid(color="#e5e5e5")


@contextmanager
def _figure(
    path: Path, size: tuple[float, float], down: int, across: int
) -> Iterator[tuple[Any, list[Any]]]:
    """Yield a figure and its panels, and write it at the end."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(down, across, figsize=size, squeeze=False, sharex=True)
    try:
        for axes in grid.flat:
            axes.spines[["top", "right"]].set_visible(False)
        yield figure, list(grid.flat)
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, bbox_inches="tight")
    finally:
        plt.close(figure)


def _heading(figure: Any, title: str, result: Result) -> None:
    facts = (result.runs[0].machine.get(name, "") for name in ("processor", "kernel", "date"))
    text = f"{title}\n{', '.join(filter(None, facts))}"
    above = 1 + LEGEND_INCHES / figure.get_figheight()
    figure.text(0.01, above, text, ha="left", va="bottom", fontsize=10)


def _legend(figure: Any, styles: Styles, line: str) -> None:
    from matplotlib.lines import Line2D

    entries = [
        Line2D([], [], color=colour, marker=mark, linestyle=line, markersize=5, label=name)
        for name, (colour, mark) in styles.items()
    ]
    places = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0)}
    figure.legend(handles=entries, ncols=len(entries), fontsize=8, frameon=False, **places)
