"""``synkhronos doctor``: everything is looked at, each in a room of its own, and told at the end.

::

    _software.py   Python, NumPy, Theano, compiler, BLAS, Lasagne
    _gpu.py        driver, GPUs, CUDA's libraries, pygpu, cuDNN, NCCL
    _machine.py    shared memory, limits, cores
    _probe.py      asks in another process, with a limit of time
"""

from __future__ import annotations

import json
from typing import Callable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ._gpu import look_at_gpus
from ._items import GOOD, MISSING, WARNING, Item, Report
from ._machine import look_at_machine
from ._probe import ask_module
from ._software import look_at_software

THEANO_TIMEOUT_S = 180.0
CUDA_TIMEOUT_S = 60.0

_SIGNS = {GOOD: "[green]good[/]", WARNING: "[yellow]warning[/]", MISSING: "[red]missing[/]"}


def examine() -> Report:
    """Look at everything and return the report. Raises nothing, whatever the machine is like."""
    report = Report()
    compat = ask_module(["synk_theano_compat", "--json", "--activate"], THEANO_TIMEOUT_S)
    cuda = ask_module(["synk_theano_compat", "--cuda"], CUDA_TIMEOUT_S)
    has_gpu = bool(cuda.get("hardware") or cuda.get("devices"))
    _fill(report, "Software", lambda: look_at_software(compat))
    _fill(report, "GPUs", lambda: look_at_gpus(cuda, has_gpu))
    _fill(report, "Machine", lambda: look_at_machine(has_gpu))
    report.flags = compat.get("flags") or {}
    return report


def _fill(report: Report, name: str, look: Callable[[], list[Item]]) -> None:
    try:
        report.sections[name] = look()
    except Exception as error:  # noqa: BLE001 - the other sections are worth telling all the same
        report.sections[name] = [
            Item(name, WARNING, f"could not be looked at: {type(error).__name__}: {error}")
        ]


def print_json(report: Report) -> None:
    """Print the report as one JSON object."""
    Console(soft_wrap=True, highlight=False).print(
        json.dumps(report.as_json(), indent=2), markup=False
    )


def print_table(report: Report) -> None:
    """Print the report for people: a table per section, the flags, what to do."""
    console = Console(highlight=False)
    for name, items in report.sections.items():
        table = Table(title=name, title_justify="left", box=None, pad_edge=False, expand=False)
        for column in ("", "", "found"):
            table.add_column(column, overflow="fold")
        for item in items:
            found = escape(item.found)
            if item.cure:
                found += f"\n[cyan]-> {escape(item.cure)}[/]"
            table.add_row(_SIGNS[item.state], escape(item.name), found)
        console.print(table)
        console.print()
    if report.flags:
        table = Table(title="Theano's flags", title_justify="left", box=None, pad_edge=False)
        for column in ("flag", "value", "set by"):
            table.add_column(column, overflow="fold")
        for name, flag in report.flags.items():
            table.add_row(escape(name), escape(flag["value"]), escape(flag["set_by"]))
        console.print(table)
        console.print()
    broken = [item.name for item in report.broken]
    if broken:
        console.print(f"[red]Needed, and missing or broken: {escape(', '.join(broken))}[/]")
    else:
        console.print("[green]Everything that this machine needs is there.[/]")
