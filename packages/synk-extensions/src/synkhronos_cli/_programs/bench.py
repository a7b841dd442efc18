"""``synkhronos bench``: run measurements in processes of their own, and print tables."""

from __future__ import annotations

from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from synkhronos_cli._probe import ask_module
from synkhronos_cli._terminal import console, fail, print_json

from .plot import require_plots

NAMES = ("call", "scatter", "allreduce", "scaling")
TIMEOUT_S = 600.0
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def run_benchmarks(
    name: str | None, processes: int | None, devices: str | None, *, json: bool, plot: str | None
) -> int:
    """Measure, and print tables or JSON; return the exit status."""
    if name is not None and name not in NAMES:
        fail(f"no benchmark {name!r}; there are {', '.join(NAMES)}")
    if plot is not None:
        if name not in (None, "scaling"):
            fail(f"--plot needs the scaling: synkhronos bench scaling --plot {plot}")
        require_plots(plot)
    wanted = NAMES if name is None else (name,)
    results, status = [], 0
    for one in wanted:
        arguments = ["synkhronos._benchmarks", one]
        if processes is not None:
            arguments += ["--processes", str(processes)]
        if devices is not None:
            arguments += ["--devices", devices]
        if plot is not None and one == "scaling":
            arguments += ["--plot", plot]
        with console(stderr=True).status(f"measuring: {one}"):
            answer = ask_module(arguments, TIMEOUT_S)
        if answer.problem:
            status = 1
            text = f"synkhronos: bench {one}: {answer.problem}"
            click.echo(f"{text} (synkhronos doctor shows what is missing)", err=True)
        elif json:
            results.append(answer.values)
        else:
            _print_table(answer.values)
    if json:
        print_json(results)
    elif plot is not None and not status:
        click.echo(f"{plot}: written", err=True)
    return status


def _print_table(result: dict[str, Any]) -> None:
    n = result["processes"]
    title = f"{result['title']} ({n} process{'es' if n > 1 else ''})"
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("synkhronos", justify="right")
    peers = list(dict.fromkeys(peer for row in result["rows"] for peer in row["peers"]))
    for peer in peers:
        table.add_column(escape(peer), justify="right")
    for row in result["rows"]:
        cells = [_beside(row["seconds"], row["peers"].get(peer)) for peer in peers]
        table.add_row(escape(row["what"]), in_time(row["seconds"]), *cells)
    out = console()
    out.print(f"[italic]{escape(title)}[/]")
    out.print(table)
    out.print("[dim](in brackets: how many times as long synkhronos takes)[/]\n")


def _beside(seconds: float, peer: float | None) -> str:
    if peer is None:
        return ""
    ratio = seconds / peer
    return f"{in_time(peer)} ({ratio:.0f} x)" if ratio >= 10 else f"{in_time(peer)} ({ratio:.2g} x)"


def in_time(seconds: float) -> str:
    """Return a time with its unit, for people."""
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.2g} us"
