"""Draw the figure of `plot_training`."""

from __future__ import annotations

import math
from typing import Any, List, Sequence, Tuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from . import _figure as look
from ._training_log import TrainingLog

STYLES = {"train": (look.INDIGO, "-", "o"), "valid": (look.ROSE, "-", "s")}
OTHERS = ((look.TEAL, "-", "^"), (look.SAND, "-", "D"), (look.PURPLE, "-", "v"))
RATE_COLOUR = "#6B6B2A"
FEW = 40
"""Number of points up to which they have marks."""

WIDE_RANGE = 10
"""Factor of variation beyond which a loss or rate above 0 has a logarithmic axis."""


def draw(log: TrainingLog, title: str) -> look.Picture:
    """Draw a panel for each quantity, the loss first, one below the other."""
    panels = log.panels
    names = sorted(panels, key=lambda name: name != "loss")
    figure = look.new_figure(8.0, 2.6 * len(names) + 1.2, title)
    grid = figure.subplots(
        len(names), 1, sharex=True, squeeze=False, height_ratios=[1.4] + [1.0] * (len(names) - 1)
    )
    epochs = log.columns["epoch"]
    for axes, name in zip(grid[:, 0], names):
        last = name == names[-1]
        look.plain(axes, "epoch" if last else "", look.literal(name))
        handles = _draw_curves(axes, epochs, panels[name])
        if axes is grid[0, 0]:
            handles += _draw_rate(axes, epochs, log)
        look.key(axes, handles, loc="upper left", bbox_to_anchor=(0.0, 1.12), ncol=len(handles))
    grid[-1, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _draw_curves(
    axes: Axes, epochs: Sequence[float], curves: Sequence[Tuple[str, Sequence[float]]]
) -> List[Any]:
    handles: List[Any] = []
    others = iter(OTHERS)
    for name, values in curves:
        first = name.partition("_")[0]
        colour, line, mark = STYLES.get(first) or next(others, OTHERS[0])
        handles += axes.plot(
            epochs,
            values,
            color=colour,
            linestyle=line,
            marker=mark if len(epochs) <= FEW else "",
            markersize=4,
            linewidth=1.6,
            label=look.literal(name),
        )
        if name == "valid_loss":
            handles.append(_mark_best(axes, epochs, values))
    is_loss = any("loss" in name for name, _ in curves)
    _choose_scale(axes, [values for _, values in curves], may_be_log=is_loss)
    return handles


def _mark_best(axes: Axes, epochs: Sequence[float], values: Sequence[float]) -> Any:
    best = min(
        (i for i in range(len(values)) if not math.isnan(values[i])), key=lambda i: values[i]
    )
    (handle,) = axes.plot(
        [epochs[best]],
        [values[best]],
        linestyle="",
        marker="o",
        markersize=11,
        markerfacecolor="none",
        markeredgecolor=look.WINE,
        markeredgewidth=1.6,
        label=f"lowest: {values[best]:.4g} (epoch {epochs[best]:g})",
    )
    return handle


def _draw_rate(axes: Axes, epochs: Sequence[float], log: TrainingLog) -> List[Any]:
    """Draw the learning rate on the axis at the right."""
    rates = log.columns.get("learning_rate")
    if rates is None or all(math.isnan(rate) for rate in rates):
        return []
    right = axes.twinx()
    handles: List[Any] = right.plot(
        epochs,
        rates,
        color=RATE_COLOUR,
        linestyle=":",
        drawstyle="steps-mid",
        linewidth=1.6,
        label="learning_rate",
    )
    right.set_ylabel("learning rate", fontsize=look.NORMAL, color=RATE_COLOUR)
    right.tick_params(labelsize=look.NORMAL - 1, colors=RATE_COLOUR)
    right.spines["top"].set_visible(False)
    _choose_scale(right, [rates], may_be_log=True)
    return handles


def _choose_scale(axes: Axes, curves: Sequence[Sequence[float]], may_be_log: bool) -> None:
    values = [value for curve in curves for value in curve if math.isfinite(value)]
    if may_be_log and values and min(values) > 0 and max(values) > WIDE_RANGE * min(values):
        axes.set_yscale("log")
    elif values and min(values) >= 0:
        # An axis from 0 shows the size of differences.
        axes.set_ylim(0, max(values) * 1.08 or 1.0)
