"""Common parts of the plots: a figure without pyplot, colours, sizes. Imports matplotlib."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

DOTS_PER_INCH = 130

# Paul Tol's scheme "muted" (technical note SRON/EPS/TN/09-002), safe for the colour-blind.
INDIGO, CYAN, TEAL, GREEN, OLIVE = "#332288", "#88CCEE", "#44AA99", "#117733", "#999933"
SAND, ROSE, WINE, PURPLE, PALE = "#DDCC77", "#CC6677", "#882255", "#AA4499", "#DDDDDD"
GREY = "#777777"

SMALL, NORMAL, LARGE = 8.5, 10.0, 12.0


class Picture(Figure):
    """A figure without a backend, which notebooks can show without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def new_figure(width: float, height: float, title: str) -> Picture:
    """Return an empty figure of this size in inches, with a heading at the left."""
    figure = Picture(
        figsize=(width, height), dpi=DOTS_PER_INCH, facecolor="white", layout="constrained"
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=LARGE)
    return figure


def plain(axes: Axes, x: str, y: str) -> None:
    """Set labels and a faint grid, and remove the frame at sides without numbers."""
    axes.set_xlabel(x, fontsize=NORMAL)
    axes.set_ylabel(y, fontsize=NORMAL)
    axes.tick_params(labelsize=NORMAL - 1)
    axes.grid(visible=True, color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def key(place: Any, handles: Any, **settings: Any) -> Any:
    """Add a legend without a frame."""
    return place.legend(handles=handles, fontsize=NORMAL - 1, frameon=False, **settings)


def literal(text: str) -> str:
    """Escape a foreign name, so that matplotlib reads no part of it as a formula."""
    return text.replace("$", r"\$")
