"""Plots of scaling and of trainings. A timeline is displayed by ui.perfetto.dev.

Each function returns a matplotlib `Figure`, and writes it if it gets a path, in the format of the
path's suffix (png, svg, pdf ...). The functions open no window and do not use pyplot or its
backend; in a notebook, a figure is displayed as the last line of a cell. They need matplotlib:
``pip install 'synkhronos[plot]'``.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from synk_core.files import whole_file
from synkhronos.exceptions import InputTypeError, InputValueError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PathLike = Union[str, "os.PathLike[str]"]

__all__ = ["plot_scaling", "plot_training"]

# Of Paul Tol's scheme "muted" (technical note SRON/EPS/TN/09-002), safe for the colour-blind.
_INDIGO, _TEAL, _ROSE, _WINE = "#332288", "#44AA99", "#CC6677", "#882255"
_GREY, _RATE = "#777777", "#6B6B2A"

_STYLE = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#E6E6E6",
    "legend.frameon": False,
    "legend.loc": "upper left",
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "font.size": 9,
}
_LINEAR = {"color": _GREY, "linestyle": "--", "label": "linear"}
_CURVES = {"train": (_INDIGO, "o"), "valid": (_ROSE, "s")}
_OTHER = (_TEAL, "^")
_MARKS = 40
"""Marks on a curve, at most about."""
_WIDE_RANGE = 10
"""Factor of variation beyond which a loss or rate above 0 has a logarithmic axis."""

_CURE = (
    "give plot_scaling a list such as [{'n': 1, 'seconds': 0.8, 'rows': 4096}, "
    "{'n': 2, 'seconds': 0.42, 'rows': 4096}]"
)
_LOG = (
    "expected a log of the Trainer: CSV with the header "
    "epoch,step,seconds,train_loss,valid_loss,...,learning_rate; "
    "give the path of the Trainer's argument log=, after at least one epoch"
)


def plot_scaling(
    results: Sequence[Mapping[str, Any]],
    path: Optional[PathLike] = None,
    *,
    title: str = "Scaling",
) -> Figure:
    """Plot rows per second over the number of processes, with a linear increase, and efficiency.

    Efficiency is ``rate(n) / rate(n0) * n0 / n`` with the smallest number of processes ``n0``: 1
    if twice the processes do twice the rows in the same time. With the same rows in each entry
    this is strong scaling, with the same rows per process weak scaling.

    Args:
        results: for each measurement a mapping with "n" (number of processes), "seconds" (of one
            call) and "rows" (of one call). Several with the same ``n`` are drawn as their median,
            with a bar for the others.
        path: file for the figure.
        title: heading.

    Raises:
        InputValueError: no measurement, a missing key, or a number that is not above 0.
        ImportError: matplotlib is not installed.
    """
    if isinstance(results, (str, bytes, Mapping)) or not isinstance(results, Sequence):
        kind = type(results).__name__
        raise InputTypeError(f"results: got {kind}, expected a list of measurements; {_CURE}")
    if not results:
        raise InputValueError(f"results: got no measurement, expected at least one; {_CURE}")
    by_number: Dict[int, List[float]] = {}
    for place, result in enumerate(results):
        number, rows, seconds = (_number(result, place, name) for name in ("n", "rows", "seconds"))
        if number != int(number):
            raise InputValueError(f"results[{place}]['n']: got {number}, expected a whole number")
        by_number.setdefault(int(number), []).append(rows / seconds)
    n = sorted(by_number)
    rates, slowest, fastest = (
        [choose(by_number[number]) for number in n] for choose in (statistics.median, min, max)
    )
    linear = [rates[0] / n[0] * number for number in n]
    efficiency = [rate / expected for rate, expected in zip(rates, linear)]
    with _figure(9.0, 3.8, title, path) as figure:
        left, right = figure.subplots(1, 2)
        left.set(xlabel="number of processes", ylabel="rows per second")
        left.plot([0, *n], [0, *linear], **_LINEAR)
        left.plot(n, rates, color=_INDIGO, marker="o", label="measured")
        if fastest != slowest:
            left.vlines(n, slowest, fastest, color=_INDIGO)
        _label(left, n, rates, [f"{rate / rates[0]:.2f} x" for rate in rates], "left")
        left.set_ylim(0, max(*linear, *fastest) * 1.12)
        left.legend()
        right.set(xlabel="number of processes", ylabel="efficiency (measured / linear)")
        right.axhline(1.0, **_LINEAR)
        right.plot(n, efficiency, color=_TEAL, marker="s")
        _label(right, n, efficiency, [f"{value:.0%}" for value in efficiency], "right")
        right.set_ylim(0, max(1.0, *efficiency) * 1.15)
        right.yaxis.set_major_formatter("{x:.0%}")
    return figure


def _number(result: Any, place: int, name: str) -> float:
    """Return a finite number above 0."""
    if not isinstance(result, Mapping) or name not in result:
        raise InputValueError(f"results[{place}]: got {result!r}, expected a key {name!r}; {_CURE}")
    with contextlib.suppress(TypeError, ValueError):
        if 0 < float(result[name]) < math.inf:
            return float(result[name])
    raise InputValueError(
        f"results[{place}][{name!r}]: got {result[name]!r}, expected a number above 0; {_CURE}"
    )


def _label(axes: Any, n: List[int], y: List[float], texts: List[str], side: str) -> None:
    """Write below the points, beside the line, and mark their places, where there is room."""
    shown: List[int] = []
    for number in reversed(n):
        if not shown or shown[-1] - number >= n[-1] / 14:
            shown.append(number)
    for number, value, text in zip(n, y, texts):
        if number in shown:
            how = {"textcoords": "offset points", "va": "top", "ha": side}
            axes.annotate(text, (number, value), xytext=(4 if side == "left" else -4, -6), **how)
    axes.set_xlim(0, n[-1] * 1.15)
    axes.set_xticks(shown[::-1])


def plot_training(
    log_path: PathLike, path: Optional[PathLike] = None, *, title: str = "Training"
) -> Figure:
    """Plot losses and learning rate by epoch, with a panel for each further output.

    Columns ``train_x`` and ``valid_x`` share a panel. The epoch with the lowest validation loss is
    marked. A missing value leaves a gap.

    Args:
        log_path: a log of the Trainer: CSV with a header. Columns are ``epoch``, ``train_loss`` and
            others; ``step`` and ``seconds`` are not drawn, and ``learning_rate`` has its own axis.
        path: file for the figure.
        title: heading.

    Raises:
        InputValueError: the file is not such a log, or has no epoch.
        OSError: a file cannot be read or written.
        ImportError: matplotlib is not installed.
    """
    columns = _columns(log_path)
    epochs = columns["epoch"]
    panels: Dict[str, List[str]] = {}
    for name in _drawn(columns):
        first, _, rest = name.partition("_")
        quantity = rest if first in _CURVES and rest else name
        panels.setdefault(quantity, []).append(name)
    order = sorted(panels, key=lambda quantity: quantity != "loss")
    heights = [1.4] + [1.0] * (len(order) - 1)
    with _figure(8.0, 2.6 * len(order) + 1.2, title, path) as figure:
        grid = figure.subplots(len(order), 1, sharex=True, squeeze=False, height_ratios=heights)
        for axes, quantity in zip(grid[:, 0], order):
            axes.set_ylabel(_literal(quantity))
            for name in panels[quantity]:
                colour, mark = _CURVES.get(name.partition("_")[0], _OTHER)
                how = {"color": colour, "marker": mark, "label": _literal(name)}
                axes.plot(epochs, columns[name], markevery=len(epochs) // _MARKS + 1, **how)
                if name == "valid_loss":
                    _mark_lowest(axes, epochs, columns[name])
            _choose_scale(axes, [columns[name] for name in panels[quantity]], "loss" in quantity)
            if axes is grid[0, 0]:
                _draw_rate(axes, epochs, columns.get("learning_rate", []))
            axes.legend(bbox_to_anchor=(0.0, 1.12), ncol=len(axes.get_lines()))
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
    return figure


def _mark_lowest(axes: Any, epochs: Sequence[float], losses: Sequence[float]) -> None:
    loss, epoch = min((loss, epoch) for loss, epoch in zip(losses, epochs) if not math.isnan(loss))
    ring = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "markeredgewidth": 1.6}
    label = f"lowest: {loss:.4g} (epoch {epoch:g})"
    axes.plot([epoch], [loss], linestyle="", markeredgecolor=_WINE, label=label, **ring)


def _draw_rate(axes: Any, epochs: Sequence[float], rates: Sequence[float]) -> None:
    """Draw the learning rate on an axis at the right."""
    if all(math.isnan(rate) for rate in rates):
        return
    right = axes.twinx()
    right.grid(visible=False)
    how = {"linestyle": ":", "drawstyle": "steps-mid", "color": _RATE, "label": "learning_rate"}
    right.plot(epochs, rates, **how)
    axes.plot([], [], **how)  # one legend for both axes
    right.set_ylabel("learning rate", color=_RATE)
    right.tick_params(colors=_RATE)
    _choose_scale(right, [rates], may_be_log=True)


def _choose_scale(axes: Any, curves: Sequence[Sequence[float]], may_be_log: bool) -> None:
    values = [value for curve in curves for value in curve if math.isfinite(value)]
    if may_be_log and values and min(values) > 0 and max(values) > _WIDE_RANGE * min(values):
        axes.set_yscale("log")
    elif values and min(values) >= 0:
        # An axis from 0 shows the size of differences.
        axes.set_ylim(0, max(values) * 1.08 or 1.0)


def _drawn(columns: Mapping[str, Sequence[float]]) -> List[str]:
    hidden = ("epoch", "step", "seconds", "learning_rate")
    return [n for n in columns if n not in hidden and not all(map(math.isnan, columns[n]))]


def _columns(path: PathLike) -> Dict[str, List[float]]:
    """Read a log: columns of numbers, one entry for each epoch, NaN where a value is missing."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        rows = list(csv.DictReader(text.splitlines()))
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = {name: [float(row.get(name) or "nan") for row in rows] for name in names}
    except (TypeError, ValueError, csv.Error) as error:
        raise InputValueError(f"{path}: got no log ({error}), {_LOG}") from None
    if "epoch" not in columns or any(map(math.isnan, columns["epoch"])):
        raise InputValueError(f"{path}: got columns {names} without an epoch, {_LOG}")
    if not _drawn(columns):
        raise InputValueError(f"{path}: got columns {names} with nothing to draw, {_LOG}")
    return columns


def _literal(text: str) -> str:
    """Escape a foreign name, so that matplotlib reads no part of it as a formula."""
    return text.replace("$", r"\$")


@contextlib.contextmanager
def _figure(width: float, height: float, title: str, path: Optional[PathLike]) -> Iterator[Figure]:
    """Yield an empty figure of this size in inches, to draw in; write it if there is a path."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"plots need matplotlib, which cannot be imported ({error}); "
            f"install it with pip install 'synkhronos[plot]'"
        ) from error

    class Picture(Figure):
        """A figure without a backend, which notebooks can show without pyplot."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    with mpl.rc_context(_STYLE):
        size = (width, height)
        figure = Picture(figsize=size, dpi=130, facecolor="white", layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        yield figure
    if path is not None:
        path = Path(path) if Path(path).suffix else Path(f"{os.fspath(path)}.png")
        with whole_file(path) as file:
            figure.savefig(file, format=path.suffix[1:])
