"""``synkhronos doctor --fix``: run the cures that are commands and need no root."""

from __future__ import annotations

import os
import shlex

import click

from synkhronos_cli._probe import run_to_end

from .items import DoctorReport


def commands_of(report: DoctorReport) -> dict[str, list[str]]:
    """Return the commands to run, each once, by the cure that is printed."""
    return {item.cure: item.fix for item in report.items if item.fix}


def run_fixes(commands: dict[str, list[str]], *, yes: bool) -> bool:
    """List the commands, ask, and run them in order; return False if none was run.

    All messages, and the commands' output, go to standard error: standard output is for the report.

    Args:
        commands: The result of `commands_of`.
        yes: Do not ask.
    """
    if not commands:
        click.echo("There is nothing to fix without root.", err=True)
        return False
    click.echo("Fixes that need no root:", err=True)
    for shown in commands:
        click.echo(f"  {shown}", err=True)
    if not yes:
        try:
            if not click.confirm("Apply them?", err=True):
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
