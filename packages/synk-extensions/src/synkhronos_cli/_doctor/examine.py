"""Examine the machine section by section, and print the report.

::

    software.py   Python, NumPy, Theano or PyTensor, compiler, BLAS, Lasagne, pyzmq, posix_ipc
    gpu.py        driver, GPUs, CUDA's libraries, pygpu, cuDNN, NCCL
    machine.py    shared memory, limits, cores
    mpi.py        mpi4py, its MPI, mpiexec and srun
"""

from __future__ import annotations

from typing import Any, Callable

from rich.markup import escape
from rich.table import Table

from synkhronos_cli._clean import leftovers
from synkhronos_cli._probe import Answer, ask_module
from synkhronos_cli._terminal import console

from .gpu import examine_gpus
from .items import GOOD, MISSING, WARNING, DoctorReport, Item
from .machine import examine_machine
from .mpi import examine_mpi
from .software import OF_THEANO, examine_software

THEANO_TIMEOUT_S = 180.0
CUDA_TIMEOUT_S = 60.0

_SIGNS = {GOOD: "[green]good[/]", WARNING: "[yellow]warning[/]", MISSING: "[red]missing[/]"}


def examine() -> DoctorReport:
    """Examine everything and return the report. Raises nothing, whatever is broken."""
    report = DoctorReport()
    # First, because Theano would wait for a stale lock.
    _fill(report, "Left behind", examine_leftovers)
    compat = cuda = Answer()
    if OF_THEANO:
        compat = ask_module(["synk_theano_compat", "--json", "--activate"], THEANO_TIMEOUT_S)
        cuda = ask_module(["synk_theano_compat", "--cuda"], CUDA_TIMEOUT_S)
    has_gpu = bool(cuda.get("hardware") or cuda.get("devices"))
    _fill(report, "Software", lambda: examine_software(compat))
    _fill(report, "GPUs", lambda: examine_gpus(cuda, has_gpu))
    _fill(report, "Machine", lambda: examine_machine(has_gpu))
    _fill(report, "Several hosts", examine_mpi)
    report.flags = _flags(compat)
    report.sections["Left behind"] = report.sections.pop("Left behind")
    return report


def _fill(report: DoctorReport, name: str, section: Callable[[], list[Item]]) -> None:
    try:
        report.sections[name] = section()
    except Exception as error:  # noqa: BLE001 - the other sections are still worth reporting
        found = f"could not be examined: {type(error).__name__}: {error}"
        report.sections[name] = [Item(name, MISSING, found)]


def _flags(compat: Answer) -> dict[str, dict[str, str]]:
    """Return Theano's flags, if the answer has the expected form."""
    flags: Any = compat.get("flags")
    if not isinstance(flags, dict):
        return {}
    return {
        str(name): {"value": str(flag.get("value")), "set_by": str(flag.get("set_by"))}
        for name, flag in flags.items()
        if isinstance(flag, dict)
    }


def examine_leftovers() -> list[Item]:
    """Return what dead processes left behind; one good item if nothing."""
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


def print_table(report: DoctorReport) -> None:
    """Print the report for people: a table for each section, the flags, the verdict."""
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
        out.print("[green]This machine has everything that it needs.[/]")
    if any(item.fix for item in report.items):
        out.print("synkhronos doctor --fix fixes what it can without root.")
