"""``synkhronos check`` and ``synkhronos trace``: run a user's script, and report."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NoReturn, Sequence

import click

from synkhronos_cli._probe import ask
from synkhronos_cli._terminal import fail

from .launch import replace, run_child, script_path
from .plot import require_plots

PLOT_TIMEOUT_S = 300.0
VIEWER = "https://ui.perfetto.dev"
_PLOT = """
from synkhronos.extensions.plots import plot_timeline
plot_timeline({trace!r}, {path!r})
answer(done=True)
"""


def run_check(script: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by one that runs a script and reports; see ``synkhronos/_checking``."""
    replace(["-m", "synkhronos._checking", script_path(script), *arguments], {})


def run_trace(script: str, arguments: Sequence[str], output: str, plot: str | None) -> int:
    """Run a script and record its timeline; return the exit status.

    This is the script's own; 1 if it succeeded, but nothing was recorded or plotted.
    """
    program = script_path(script)
    path = Path(output)
    if not path.absolute().parent.is_dir() or (os.path.lexists(path) and not path.is_file()):
        fail(f"--output {output}: expected a file in a folder that exists")
    if path.is_symlink():
        fail(f"--output {output} is a link; expected a file, such as {os.path.realpath(path)}")
    if plot is not None:
        require_plots(plot)
    path.unlink(missing_ok=True)  # so that an earlier run's is not taken for this one's
    status = run_child([program, *arguments], {"SYNKHRONOS_TIMELINE": os.path.abspath(output)})
    if not path.is_file():
        text = "no timeline: the script did not call synk.fork(), or was killed"
        click.echo(f"synkhronos: {text}", err=True)
        return status or 1
    click.echo(f"{output}: {_summary(path)}", err=True)
    click.echo(f"To view it: {VIEWER}, Open trace file (it stays in your browser)", err=True)
    if plot is not None:
        problem = ask(_PLOT.format(trace=str(path), path=plot), PLOT_TIMEOUT_S).problem
        if problem:
            click.echo(f"synkhronos: {plot} was not written: {problem}", err=True)
            return status or 1
        click.echo(f"{plot}: written", err=True)
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
