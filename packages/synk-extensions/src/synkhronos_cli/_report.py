"""What the doctor finds: items with a state and a cure, printed, and fixed without root."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from ._probe import run_to_end
from ._terminal import console

GOOD, WARNING, MISSING = "good", "warning", "missing"
_SIGNS = {GOOD: "[green]good[/]", WARNING: "[yellow]warning[/]", MISSING: "[red]missing[/]"}

# Cures that need neither root nor an answer: a whole command, and nothing after it.
_COMMAND = re.compile(r"(pip install|python -m synk_theano_compat --install|synkhronos clean)\b")
_MODULES = {"pip": ["-m", "pip"], "synkhronos": ["-m", "synkhronos_cli"], "python": []}


@dataclass(frozen=True)
class Item:
    """One thing that was examined.

    Args:
        name: Such as ``cuDNN``.
        state: ``good``; ``warning`` if it works but could be better; ``missing`` if this machine
            needs it, and it is absent or does not work.
        found: What was found, in words.
        cure: The command to type, or what else to do, if it is not good.
    """

    name: str
    state: str
    found: str
    cure: str = ""

    @property
    def fix(self) -> list[str]:
        """The cure as a command line with this Python; empty if a person has to do it."""
        if self.state == GOOD or not _COMMAND.match(self.cure):
            return []
        program, *rest = shlex.split(self.cure)
        return [sys.executable, *_MODULES[program], *rest]


def needed(name: str, problem: str, cure: str, found: str) -> Item:
    """Return the item of something that this machine needs: missing if there is a problem."""
    return Item(name, MISSING, problem, cure) if problem else Item(name, GOOD, found)


@dataclass
class DoctorReport:
    """Sections of items, in the order in which they are printed, and Theano's flags."""

    sections: dict[str, list[Item]] = field(default_factory=dict)
    flags: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def broken(self) -> list[str]:
        """The names of what is needed and missing."""
        return [item.name for item in self._items if item.state == MISSING]

    @property
    def fixes(self) -> dict[str, list[str]]:
        """The commands that need no root, by the cures that are printed."""
        return {item.cure: item.fix for item in self._items if item.fix}

    @property
    def _items(self) -> list[Item]:
        return [item for items in self.sections.values() for item in items]

    def as_json(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        sections = {
            name: [{**asdict(item), "needed": item.state == MISSING} for item in items]
            for name, items in self.sections.items()
        }
        return {"ok": not self.broken, "sections": sections, "flags": self.flags}

    def print_table(self) -> None:
        """Print the report for people: a table for each section, the flags, the verdict."""
        out = console()
        for name, items in self.sections.items():
            table = _table(name, "", "", "found")
            for item in items:
                cure = f"\n[cyan]-> {escape(item.cure)}[/]" if item.cure else ""
                table.add_row(_SIGNS[item.state], escape(item.name), escape(item.found) + cure)
            out.print(table, "")
        if self.flags:
            table = _table("Theano's flags", "flag", "value", "set by")
            for name, flag in self.flags.items():
                table.add_row(escape(name), escape(flag["value"]), escape(flag["set_by"]))
            out.print(table, "")
        if self.broken:
            out.print(f"[red]Needed, and missing or broken: {escape(', '.join(self.broken))}[/]")
        else:
            out.print("[green]This machine has everything that it needs.[/]")
        if self.fixes:
            out.print("synkhronos doctor --fix fixes what it can without root.")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def run_fixes(commands: dict[str, list[str]], *, yes: bool) -> bool:
    """List the commands, ask, and run them in order; return False if none was run.

    All messages, and the commands' output, go to standard error: standard output is for the report.

    Args:
        commands: The `fixes` of a report.
        yes: Do not ask.
    """
    if not commands:
        click.echo("There is nothing to fix without root.", err=True)
        return False
    click.echo("Fixes that need no root:", err=True)
    for shown in commands:
        click.echo(f"  {shown}", err=True)
    try:
        if not yes and not click.confirm("Apply them?", err=True):
            return False
    except click.Abort:
        click.echo("\nNothing was done: no answer. --yes does not ask.", err=True)
        return False
    for shown, command in commands.items():
        click.echo(f"$ {shown}", err=True)
        failure = _run(command)
        if failure:
            click.echo(f"  failed: {failure} ({shlex.join(command)})", err=True)
    return True


def _run(command: list[str]) -> str:
    try:
        # Descriptor 2: its output goes to standard error, like the messages above.
        env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        status = run_to_end(command, stdout=2, env=env)
    except OSError as error:
        return str(error)
    return f"status {status}" if status else ""
