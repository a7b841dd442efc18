"""Draw the figure of `plot_scaling`."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FixedLocator, NullLocator, PercentFormatter

from ._figure import GREY, INDIGO, NORMAL, TEAL, Picture, key, new_figure, plain
from ._scaling_results import ScalingResults


def draw(measured: ScalingResults, title: str) -> Picture:
    """Draw rates at the left, efficiency at the right."""
    figure = new_figure(9.0, 3.8, title)
    left, right = figure.subplots(1, 2)
    _draw_rates(left, measured)
    _draw_efficiency(right, measured)
    for axes in (left, right):
        axes.set_xlim(0, measured.processes[-1] * 1.15)
        axes.xaxis.set_major_locator(FixedLocator(_apart(measured.processes)))
        axes.xaxis.set_minor_locator(NullLocator())
    return figure


def _draw_rates(axes: Axes, measured: ScalingResults) -> None:
    n, rates = measured.processes, measured.rates
    plain(axes, "number of processes", "rows per second")
    (linear,) = axes.plot(
        [0, *n], [0, *measured.linear], color=GREY, linestyle="--", linewidth=1.3, label="linear"
    )
    (line,) = axes.plot(n, rates, color=INDIGO, marker="o", linewidth=1.8, label="measured")
    if measured.fastest != measured.slowest:
        axes.vlines(n, measured.slowest, measured.fastest, color=INDIGO, linewidth=1.2)
    _label(axes, n, rates, [f"{rate / rates[0]:.2f} x" for rate in rates], INDIGO, (4, -6))
    axes.set_ylim(0, max(*measured.linear, *measured.fastest) * 1.12)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    key(axes, [line, linear], loc="upper left")


def _draw_efficiency(axes: Axes, measured: ScalingResults) -> None:
    n, efficiency = measured.processes, measured.efficiency
    plain(axes, "number of processes", "efficiency (measured / linear)")
    axes.axhline(1.0, color=GREY, linestyle="--", linewidth=1.3)
    axes.plot(n, efficiency, color=TEAL, marker="s", linewidth=1.8)
    _label(axes, n, efficiency, [f"{value:.0%}" for value in efficiency], "#1D6E63", (0, -8))
    axes.set_ylim(0, max(1.0, *efficiency) * 1.15)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _label(
    axes: Axes, x: list[int], y: list[float], texts: list[str], colour: str, offset: tuple[int, int]
) -> None:
    """Write below the points; to the right if the line rises, to avoid crossing it."""
    shown = set(_apart(x))
    for place, value, text in zip(x, y, texts):
        if place in shown:
            axes.annotate(
                text,
                (place, value),
                xytext=offset,
                textcoords="offset points",
                ha="left" if offset[0] else "center",
                va="top",
                fontsize=NORMAL - 1,
                color=colour,
            )


def _apart(processes: list[int]) -> list[int]:
    """Return the numbers with room for a label: none nearer than a fourteenth of the axis."""
    kept: list[int] = []
    for n in reversed(processes):
        if not kept or kept[-1] - n >= processes[-1] / 14:
            kept.append(n)
    return kept[::-1]
