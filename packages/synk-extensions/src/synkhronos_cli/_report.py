"""The findings of the doctor: printed, and those fixed that need no root."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

import click
from rich.markup import escape
from rich.table import Column, Table

from ._probe import run_to_end
from ._terminal import console

GOOD, WARNING, MISSING = "good", "warning", "missing"
_SIGNS = {GOOD: "[green]good[/]", WARNING: "[yellow]warning[/]", MISSING: "[red]missing[/]"}

# The beginnings of cures that need neither root nor an answer, as this Python runs them.
_FIXES = {
    "pip install ": ["-m", "pip"],
    "python -m synk_theano_compat --install": [],
    "synkhronos clean": ["-m", "synkhronos_cli"],
}


@dataclass(frozen=True)
class Item:
    """A finding: in words what there is, and a cure if it is not good.

    It is ``missing`` if this machine needs it and it does not work; a ``warning`` could be better.
    """

    name: str
    state: str
    found: str
    cure: str = ""

    @property
    def fix(self) -> list[str]:
        """The cure as a command line with this Python; empty if a person has to do it."""
        for beginning, words in _FIXES.items() if self.state != GOOD else ():
            if self.cure.startswith(beginning):
                return [sys.executable, *words, *shlex.split(self.cure)[1:]]
        return []


def checked(name: str, found: str, problem: str, cure: str, state: str = MISSING) -> Item:
    """Return a good item; if there is a problem, one of this state that shows it, and a cure."""
    return Item(name, state, problem, cure) if problem else Item(name, GOOD, found)


@dataclass
class DoctorReport:
    """Sections of items, in the order in which they are printed, and Theano's flags."""

    sections: dict[str, list[Item]] = field(default_factory=dict)
    flags: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def broken(self) -> list[str]:
        """The names of what is needed and missing."""
        every = (one for items in self.sections.values() for one in items)
        return [one.name for one in every if one.state == MISSING]

    @property
    def fixes(self) -> dict[str, list[str]]:
        """The commands that need no root, by the cures that are printed."""
        return {one.cure: one.fix for items in self.sections.values() for one in items if one.fix}

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
        flags = [
            Item(name, GOOD, f"{flag['value']}, set by {flag['set_by']}")
            for name, flag in self.flags.items()
        ]
        for title, items in [*self.sections.items(), *([("Theano's flags", flags)] * bool(flags))]:
            columns = [Column(name, overflow="fold") for name in ("", "", "found")]
            table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
            for item in items:
                cure = f"\n[cyan]-> {escape(item.cure)}[/]" if item.cure else ""
                table.add_row(_SIGNS[item.state], escape(item.name), escape(item.found) + cure)
            out.print(table, "")
        if self.broken:
            out.print(f"[red]Needed, and missing or broken: {escape(', '.join(self.broken))}[/]")
        else:
            out.print("[green]This machine has everything that it needs.[/]")
        if self.fixes:
            out.print("synkhronos doctor --fix fixes what it can without root.")


def run_fixes(commands: dict[str, list[str]], *, yes: bool) -> bool:
    """List the `fixes` of a report, ask unless `yes`, run them; return False if none was run.

    All messages, and the commands' output, go to standard error: standard output is for the report.
    """
    if not commands:
        click.echo("There is nothing to fix without root.", err=True)
        return False
    click.echo("\n  ".join(["Fixes that need no root:", *commands]), err=True)
    try:
        if not yes and not click.confirm("Apply them?", err=True):
            return False
    except click.Abort:
        click.echo("\nNothing was done: no answer. --yes does not ask.", err=True)
        return False
    for shown, command in commands.items():
        click.echo(f"$ {shown}", err=True)
        env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        if status := run_to_end(command, stdout=2, env=env):  # 2: standard error
            click.echo(f"  failed: status {status} ({shlex.join(command)})", err=True)
    return True
