"""Plots of scaling, of timelines, and of trainings.

Each function returns a matplotlib `Figure`, and writes it if it gets a path, in the format of the
path's suffix (png, svg, pdf ...). The functions open no window and do not use pyplot or its
backend; in a notebook, a figure is displayed as the last line of a cell. They need matplotlib:
``pip install 'synkhronos[plot]'``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, Tuple, Union

from synk_core.files import whole_file

from ._chrome_trace import read_trace
from ._scaling_results import ScalingResults
from ._training_log import read_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PathLike = Union[str, "os.PathLike[str]"]

__all__ = ["plot_scaling", "plot_timeline", "plot_training"]


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
    measured = ScalingResults(results)
    _require_matplotlib()
    from ._scaling_figure import draw

    return _written(draw(measured, title), path)


def plot_timeline(
    trace_path: PathLike,
    path: Optional[PathLike] = None,
    *,
    window_ms: Optional[Tuple[float, float]] = None,
    title: Optional[str] = None,
) -> Figure:
    """Plot the activity of each rank over time, from a trace of `synkhronos.timeline`.

    Each rank has a lane, time runs to the right, and nested spans are drawn below their parent.
    Spans with enough room show their name and duration. The legend shows the time of each
    category, as a mean over the ranks; spans within another one of their category do not add.

    Args:
        trace_path: a Chrome trace in JSON.
        path: file for the figure.
        window_ms: the first and the last millisecond to show, since the beginning of the trace.
            Default: all.
        title: heading. Default: number of ranks and shown time.

    Raises:
        InputValueError: the file is not a trace, or it or the window is empty.
        OSError: a file cannot be read or written.
        ImportError: matplotlib is not installed.
    """
    trace = read_trace(trace_path, window_ms)
    _require_matplotlib()
    from ._timeline_figure import draw

    return _written(draw(trace, title), path)


def plot_training(
    log_path: PathLike,
    path: Optional[PathLike] = None,
    *,
    title: str = "Training",
) -> Figure:
    """Plot losses and learning rate by epoch, with a panel for each further output.

    Columns ``train_x`` and ``valid_x`` share a panel. The epoch with the lowest validation loss is
    marked. A missing value leaves a gap.

    Args:
        log_path: a log of the Trainer: CSV with a header, or JSON lines. Columns are ``epoch``,
            ``train_loss`` and others; ``step`` and ``seconds`` are not drawn, and
            ``learning_rate`` has its own axis.
        path: file for the figure.
        title: heading.

    Raises:
        InputValueError: the file is not such a log, or has no epoch.
        OSError: a file cannot be read or written.
        ImportError: matplotlib is not installed.
    """
    log = read_log(log_path)
    _require_matplotlib()
    from ._training_figure import draw

    return _written(draw(log, title), path)


def _require_matplotlib() -> None:
    try:
        import matplotlib.figure  # noqa: F401 - only to test for it
    except ImportError as error:
        raise ImportError(
            f"plots need matplotlib, which cannot be imported ({error}); "
            f"install it with pip install 'synkhronos[plot]'"
        ) from error


def _written(figure: Figure, path: Optional[PathLike]) -> Figure:
    if path is not None:
        path = Path(path) if Path(path).suffix else Path(f"{os.fspath(path)}.png")
        with whole_file(path) as file:
            figure.savefig(file, format=path.suffix[1:])
    return figure
