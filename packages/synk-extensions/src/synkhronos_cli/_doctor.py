"""``synkhronos doctor``: everything is looked at, each in a room of its own, and told at the end.

::

    _software.py   Python, NumPy, Theano, compiler, BLAS, Lasagne, pyzmq, posix_ipc
    _gpu.py        driver, GPUs, CUDA's libraries, pygpu, cuDNN, NCCL
    _machine.py    shared memory, limits, cores
    _fix.py        does what can be done without root
    _probe.py      asks in another process, with a limit of time
"""

from __future__ import annotations

from typing import Any, Callable

from rich.markup import escape
from rich.table import Table

from . import _leftovers as leftovers
from ._gpu import look_at_gpus
from ._items import GOOD, MISSING, WARNING, Item, Report
from ._machine import look_at_machine
from ._probe import Answer, ask_module
from ._software import look_at_software
from ._terminal import console

THEANO_TIMEOUT_S = 180.0
CUDA_TIMEOUT_S = 60.0

_SIGNS = {GOOD: "[green]good[/]", WARNING: "[yellow]warning[/]", MISSING: "[red]missing[/]"}


def examine() -> Report:
    """Look at everything and return the report. Raises nothing, whatever the machine is like."""
    report = Report()
    # First: a stale lock is what Theano would wait for.
    _fill(report, "Left behind", look_at_leftovers)
    compat = ask_module(["synk_theano_compat", "--json", "--activate"], THEANO_TIMEOUT_S)
    cuda = ask_module(["synk_theano_compat", "--cuda"], CUDA_TIMEOUT_S)
    has_gpu = bool(cuda.get("hardware") or cuda.get("devices"))
    _fill(report, "Software", lambda: look_at_software(compat))
    _fill(report, "GPUs", lambda: look_at_gpus(cuda, has_gpu))
    _fill(report, "Machine", lambda: look_at_machine(has_gpu))
    report.flags = _flags(compat)
    report.sections["Left behind"] = report.sections.pop("Left behind")
    return report


def _fill(report: Report, name: str, look: Callable[[], list[Item]]) -> None:
    try:
        report.sections[name] = look()
    except Exception as error:  # noqa: BLE001 - the other sections are worth telling all the same
        found = f"could not be looked at: {type(error).__name__}: {error}"
        report.sections[name] = [Item(name, MISSING, found, needed=True)]


def _flags(compat: Answer) -> dict[str, dict[str, str]]:
    """Theano's flags, if the answer is of the form that is expected."""
    flags: Any = compat.get("flags")
    if not isinstance(flags, dict):
        return {}
    return {
        str(name): {"value": str(flag.get("value")), "set_by": str(flag.get("set_by"))}
        for name, flag in flags.items()
        if isinstance(flag, dict)
    }


def look_at_leftovers() -> list[Item]:
    """Return what dead processes left behind, if anything."""
    segments, _ = leftovers.find_segments()
    stale = [*segments, *leftovers.find_socket_folders(), *leftovers.find_locks()]
    items = []
    for kind in (leftovers.SEGMENT, leftovers.SOCKETS, leftovers.LOCK):
        of_kind = [one for one in stale if one.kind == kind and one.removable]
        if of_kind:
            found = f"{len(of_kind)}: {', '.join(one.name for one in of_kind[:3])}"
            more = " ..." if len(of_kind) > 3 else ""
            items.append(Item(f"{kind}s", WARNING, found + more, "synkhronos clean"))
    for one in stale:
        if not one.removable:
            cure = f"rm -r {one.name}"
            items.append(Item(one.kind, WARNING, f"{one.name}: {one.why}", cure))
    return items or [Item("stale files", GOOD, "none")]


def print_table(report: Report) -> None:
    """Print the report for people: a table per section, the flags, what to do."""
    out = console()
    for name, items in report.sections.items():
        table = Table(title=name, title_justify="left", box=None, pad_edge=False, expand=False)
        for column in ("", "", "found"):
            table.add_column(column, overflow="fold")
        for item in items:
            found = escape(item.found)
            if item.cure:
                found += f"\n[cyan]-> {escape(item.cure)}[/]"
            table.add_row(_SIGNS[item.state], escape(item.name), found)
        out.print(table)
        out.print()
    if report.flags:
        table = Table(title="Theano's flags", title_justify="left", box=None, pad_edge=False)
        for column in ("flag", "value", "set by"):
            table.add_column(column, overflow="fold")
        for name, flag in report.flags.items():
            table.add_row(escape(name), escape(flag["value"]), escape(flag["set_by"]))
        out.print(table)
        out.print()
    broken = [item.name for item in report.broken]
    if broken:
        out.print(f"[red]Needed, and missing or broken: {escape(', '.join(broken))}[/]")
    else:
        out.print("[green]Everything that this machine needs is there.[/]")
    if any(item.fix for item in report.items):
        out.print("synkhronos doctor --fix does what can be done without root.")
