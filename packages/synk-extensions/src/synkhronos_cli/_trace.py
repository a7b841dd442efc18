"""``synkhronos trace script.py``: the script runs, and a timeline is written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Sequence

import typer

from ._launch import beside, script_path
from ._plot import require_plots
from ._probe import ask
from ._terminal import fail

PLOT_TIMEOUT_S = 300.0
VIEWER = "https://ui.perfetto.dev"
_PLOT = """
from synkhronos.extensions.plots import plot_timeline
plot_timeline({trace!r}, {path!r})
answer(done=True)
"""


def run_trace(script: str, arguments: Sequence[str], output: str, plot: str | None) -> int:
    """Run a script with its timeline recorded; return the exit status.

    That is the script's own; 1 if it ended well, but nothing was recorded or drawn.
    """
    program = script_path(script)
    path = Path(output)
    if not path.absolute().parent.is_dir() or path.is_dir():
        fail(f"--output {output}: no such folder, or not a file")
    if plot is not None:
        require_plots(plot)
    path.unlink(missing_ok=True)  # that of an earlier run is not taken for this one's
    status = beside([program, *arguments], {"SYNKHRONOS_TIMELINE": os.path.abspath(output)})
    if not path.is_file():
        text = "no timeline: the script has not called synk.fork(), or did not end by itself"
        typer.echo(f"synkhronos: {text}", err=True)
        return status or 1
    typer.echo(f"{output}: {_summary(path)}", err=True)
    typer.echo(
        "Open it: https://ui.perfetto.dev, Open trace file (it stays in your browser)", err=True
    )
    if plot is not None:
        problem = ask(_PLOT.format(trace=str(path), path=plot), PLOT_TIMEOUT_S).problem
        if problem:
            typer.echo(f"synkhronos: {plot} was not drawn: {problem}", err=True)
            return status or 1
        typer.echo(f"{plot}: drawn", err=True)
    return status


def _summary(path: Path) -> str:
    try:
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        spans = [event for event in events if event.get("ph") == "X"]
        ranks = {event["pid"] for event in spans}
        seconds = max((event["ts"] + event["dur"] for event in spans), default=0) / 1e6
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"not readable ({type(error).__name__}: {error})"
    return f"{len(spans)} spans of {len(ranks)} process(es) in {seconds:.1f} s"
