"""A result as one picture: every metric a line, and on it everybody's ratio to one peer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .contenders import OURS
from .results import Result, Row, ratio
from .targets import judge

OUR_COLOUR = "#1b6ca8"
WORSE_COLOUR = "#c8553d"
# Shape and colour, so that it can be read in grey, too.
MARKS = {
    "SharedMemory": ("o", "#444444"),
    "SharedArray": ("s", "#d98c00"),
    "RawArray": ("^", "#7a9e3f"),
    "joblib": ("D", "#8a5aa8"),
    "NumPy": ("x", "#999999"),
}
NARROWEST, WIDEST = 0.1, 20.0


@dataclass(frozen=True)
class Line:
    """One metric of the picture; every number is a ratio to `peer`, less is better.

    Attributes:
        ours: as in the table.
        others: by contender.
        limits: where the targets are.
    """

    row: Row
    peer: str
    ours: float
    others: dict[str, float]
    limits: list[float]


def draw(result: Result, path: Path) -> None:
    """Write the picture.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawn = lines(result)
    figure, axes = plt.subplots(figsize=(10, 2 + 0.27 * max(1, len(drawn))))
    try:
        for place, line in enumerate(drawn):
            _draw_line(axes, place, line)
        _decorate(axes, drawn, result)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130, bbox_inches="tight")
    finally:
        plt.close(figure)


def lines(result: Result) -> list[Line]:
    """The rows that have a ratio, each to the first peer that the table compares it with."""
    found: dict[str, Line] = {}
    verdicts = [verdict for verdict in judge(result) if verdict.ours == OURS]
    for verdict in verdicts:
        row, peer = verdict.row, verdict.peer
        if row.key in found or verdict.ratio is None or not verdict.ratio.value:
            continue
        ratios = {name: ratio(row, name, peer) for name in result.contenders if name != OURS}
        others = {name: one.value for name, one in ratios.items() if one and one.value}
        found[row.key] = Line(
            row,
            peer,
            _turned(verdict.ratio.value, row),
            {name: _turned(value, row) for name, value in others.items()},
            [
                _turned(other.limit * others[other.peer], row)
                for other in verdicts
                if other.row is row and other.limit is not None and other.peer in others
            ],
        )
    return list(found.values())


def _turned(value: float, row: Row) -> float:
    return 1 / value if row.more_is_better else value


def _draw_line(axes: Any, place: int, line: Line) -> None:
    colour = OUR_COLOUR if line.ours <= 1 else WORSE_COLOUR
    axes.barh(place, _clipped(line.ours) - 1, left=1, height=0.62, color=colour, zorder=2)
    axes.annotate(
        f"{line.ours:.2f}" if line.ours >= 0.01 else f"1/{round(1 / line.ours)}",
        (1.05, place),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="center",
        fontsize=8.5,
        color=colour,
    )
    for name, value in line.others.items():
        mark, paint = MARKS.get(name, ("*", "#000000"))
        axes.plot(_clipped(value), place, mark, color=paint, markersize=5.5, zorder=4)
    for limit in line.limits:
        x = _clipped(limit)
        axes.plot([x, x], [place - 0.42, place + 0.42], color="black", linewidth=1.8, zorder=5)


def _decorate(axes: Any, drawn: list[Line], result: Result) -> None:
    axes.set_xscale("log")
    axes.set_xlim(NARROWEST * 0.85, WIDEST * 1.15)
    ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20]
    axes.set_xticks(ticks, ["<= 0.1", "0.2", "0.5", "1", "2", "5", "10", ">= 20"])
    axes.minorticks_off()
    labels = [f"{line.row.label}  (to {line.peer})" for line in drawn]
    axes.set_yticks(range(len(drawn)), labels, fontsize=8.5)
    axes.set_ylim(len(drawn) - 0.4, -0.6)
    axes.axvline(1, color="black", linewidth=0.8, zorder=3)
    axes.grid(axis="x", color="#dddddd", zorder=0)
    for place, (line, following) in enumerate(zip(drawn, drawn[1:])):
        if line.row.group != following.row.group:
            axes.axhline(place + 0.5, color="#bbbbbb", linewidth=0.6, zorder=1)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("ratio to the peer in brackets, log scale; left is better")
    title = ", ".join(
        filter(None, (result.machine.get(name) for name in ("processor", "kernel", "date")))
    )
    axes.set_title(f"{OURS} beside its peers\n{title}", loc="left", fontsize=9, pad=44)
    axes.legend(
        handles=_legend(result),
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=5,
        fontsize=8,
        frameon=False,
    )


def _legend(result: Result) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[Any] = [
        Patch(color=OUR_COLOUR, label=f"{OURS}, better"),
        Patch(color=WORSE_COLOUR, label=f"{OURS}, worse"),
        Line2D([], [], marker="|", color="black", linestyle="", markersize=10, label="target"),
    ]
    for name in result.contenders:
        if name != OURS:
            mark, paint = MARKS.get(name, ("*", "#000000"))
            entries.append(Line2D([], [], marker=mark, color=paint, linestyle="", label=name))
    return entries


def _clipped(value: float) -> float:
    return math.exp(min(max(math.log(value), math.log(NARROWEST)), math.log(WIDEST)))
