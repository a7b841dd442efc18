"""A result as one picture: for each collective, time over size, on logarithmic axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .metrics import COLUMNS, METRICS, OURS, REFERENCE, size_name
from .results import Result, Row
from .tables import seconds

# Colour and mark, so that it can be read in grey, too.
STYLES = {
    OURS: ("#1b6ca8", "o"),
    "MPICH": ("#d98c00", "s"),
    "gloo": ("#7a9e3f", "^"),
    REFERENCE: ("#999999", "x"),
}
ACROSS = 4


def draw(result: Result, path: Path) -> None:
    """Write the picture; bands are the middle half of the rounds.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is nothing that has sizes.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = _panels(result)
    if not panels:
        raise ValueError("nothing that was measured has sizes")
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    figure, grid = plt.subplots(
        down, across, figsize=(4 * across, 3 * down + 1), squeeze=False, sharex=True
    )
    try:
        axes = list(grid.flat)
        for place, ((metric, ranks), rows) in zip(axes, panels.items()):
            _draw_panel(place, rows)
            place.set_title(f"{metric}, {ranks} ranks", fontsize=10)
        for place in axes[len(panels) :]:
            place.set_visible(False)
        figure.legend(handles=_legend(), loc="upper right", ncols=4, fontsize=9, frameon=False)
        machine = result.runs[0].machine
        facts = (machine.get(name, "") for name in ("processor", "kernel", "date"))
        heading = f"{OURS} beside its peers: time of one call over size\n"
        figure.suptitle(heading + ", ".join(filter(None, facts)), x=0.01, ha="left", fontsize=10)
        figure.tight_layout(rect=(0, 0, 1, 0.97))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    finally:
        plt.close(figure)


def _panels(result: Result) -> dict[tuple[str, int], list[Row]]:
    panels: dict[tuple[str, int], list[Row]] = {}
    for row in result.rows:
        if METRICS[row.metric].sized:
            panels.setdefault((row.metric, row.ranks), []).append(row)
    return dict(sorted(panels.items(), key=lambda item: item[0][1]))


def _draw_panel(axes: Any, rows: list[Row]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for name in COLUMNS:
        points = [(row.nbytes, row.cells[name].saved()) for row in rows if row.value(name)]
        if not points:
            continue
        colour, mark = STYLES[name]
        sizes = [nbytes for nbytes, _ in points]
        middle = [saved["median"] for _, saved in points]
        axes.plot(sizes, middle, color=colour, marker=mark, markersize=4, linewidth=1.3)
        low, high = ([saved[end] for _, saved in points] for end in ("low", "high"))
        axes.fill_between(sizes, low, high, color=colour, alpha=0.2, linewidth=0)
    ticks = [row.nbytes for row in rows][:: 3 if len(rows) > 6 else 1]
    axes.set_xticks(ticks, [size_name(nbytes) for nbytes in ticks], fontsize=8)
    axes.yaxis.set_major_formatter(lambda value, _place: seconds(value))
    axes.minorticks_off()
    axes.tick_params(axis="both", labelsize=8, labelbottom=True)
    axes.grid(color="#e5e5e5")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D

    names = {REFERENCE: "np.copyto by all ranks"}
    return [
        Line2D([], [], color=colour, marker=mark, markersize=5, label=names.get(name, name))
        for name, (colour, mark) in STYLES.items()
    ]
