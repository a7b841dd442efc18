"""Pictures of what happened: how speed grows, where the time of a call went, how a training went.

Each function returns a matplotlib `Figure`, and writes it if it is given a path, in the format of
the path's ending (png, svg, pdf ...). No window is opened, and neither pyplot nor its backend is
touched; in a notebook a figure shows itself as the last line of a cell. Needs matplotlib, which
``pip install 'synkhronos[plot]'`` brings.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, Tuple, Union

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
    """Rows per second over the number of processes, beside a linear increase; and efficiency.

    Efficiency is ``rate(n) / rate(n0) * n0 / n`` with the smallest number of processes ``n0``: 1
    where twice the processes do twice the rows in the same time. With the same rows in each entry
    this is strong scaling, with the same rows per process weak scaling.

    Args:
        results: for each measurement a mapping with "n" (number of processes), "seconds" (of one
            call) and "rows" (of one call). Of several with one ``n`` the median counts, and
            a bar shows the others.
        path: where to write the figure.
        title: what was measured.

    Raises:
        InputValueError: nothing in it, a key is missing, or a number is not above 0.
        ImportError: there is no matplotlib.
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
    """What each rank did when: a trace of `synkhronos.timeline` as a picture.

    Each rank has a lane, time runs to the right, and what happens within a span stands below it.
    Spans with enough room have their name and duration in them. The legend gives for each kind
    its own time, which is without what is nested in it, as a mean over the ranks.

    Args:
        trace_path: a Chrome trace in JSON.
        path: where to write the figure.
        window_ms: the first and the last millisecond to be shown, since the beginning of the
            trace. Default: all.
        title: a heading. Default: ranks and time shown.

    Raises:
        InputValueError: the file is no trace, or nothing is in it or in the window.
        OSError: a file cannot be read or written.
        ImportError: there is no matplotlib.
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
    """Losses and learning rate by epoch, and a panel for each further output.

    Columns ``train_x`` and ``valid_x`` share a panel. The epoch with the lowest validation loss is
    marked. A value that is missing leaves a gap.

    Args:
        log_path: a log of the Trainer: CSV with a header, or JSON lines. Columns are ``epoch``,
            ``train_loss`` and others; ``step`` and ``seconds`` are not drawn, and
            ``learning_rate`` is on an axis of its own.
        path: where to write the figure.
        title: a heading.

    Raises:
        InputValueError: the file is no such log, or no epoch is in it.
        OSError: a file cannot be read or written.
        ImportError: there is no matplotlib.
    """
    log = read_log(log_path)
    _require_matplotlib()
    from ._training_figure import draw

    return _written(draw(log, title), path)


def _require_matplotlib() -> None:
    try:
        import matplotlib.figure  # noqa: F401 - whether it is there
    except ImportError as error:
        raise ImportError(
            f"plots need matplotlib, and it cannot be imported ({error}); "
            f"pip install 'synkhronos[plot]' brings it"
        ) from error


def _written(figure: Figure, path: Optional[PathLike]) -> Figure:
    if path is not None:
        figure.savefig(path)
    return figure
