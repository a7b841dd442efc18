"""``synkhronos doctor --fix``: the cures that are commands, need no root and touch nothing else."""

from __future__ import annotations

import os
import shlex
import subprocess

import typer

from ._items import Report


def commands_of(report: Report) -> dict[str, list[str]]:
    """Return the commands that would be run, each once, by the cure that people are shown."""
    return {item.cure: item.fix for item in report.items if item.fix}


def run_fixes(commands: dict[str, list[str]], *, yes: bool) -> bool:
    """List the commands, ask, and run them one after the other; False if nothing was done.

    All that is said goes to standard error, and so does what the commands say: standard output
    belongs to the report.

    Args:
        commands: What `commands_of` returned.
        yes: Do not ask.
    """
    if not commands:
        typer.echo("There is nothing that could be done without root.", err=True)
        return False
    typer.echo("What can be done without root:", err=True)
    for shown in commands:
        typer.echo(f"  {shown}", err=True)
    if not yes:
        try:
            if not typer.confirm("Do it?", err=True):
                return False
        except typer.Abort:
            typer.echo("\nNothing was done: no answer. With --yes it does not ask.", err=True)
            return False
    for shown, command in commands.items():
        typer.echo(f"$ {shown}", err=True)
        failure = _run(command)
        if failure:
            typer.echo(f"  failed: {failure} ({shlex.join(command)})", err=True)
    return True


def _run(command: list[str]) -> str:
    try:
        # Its words go where this command's words go: descriptor 2 is standard error.
        status = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            check=False,
        ).returncode
    except OSError as error:
        return str(error)
    return f"status {status}" if status else ""
