"""Where the commands speak: consoles that any terminal, pipe and locale can take."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

USAGE = 2
"""The exit status of a mistake on the command line."""

_IN_A_FILE = 1000
"""Columns of what is no terminal, and says nothing: paths stay in one piece there."""


def prepare_streams() -> None:
    """Let nothing that is printed raise: not a closed stream, nor a letter it cannot encode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started this
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for good
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def console(*, stderr: bool = False) -> Console:
    """Return a console of rich on standard output, or on standard error."""
    from rich.console import Console

    on_screen = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, highlight=False, width=None if on_screen else _IN_A_FILE)


def print_json(value: Any) -> None:
    """Print a value as JSON, in lines that nothing wraps."""
    import json

    typer.echo(json.dumps(value, indent=2))


def fail(text: str, status: int = USAGE) -> NoReturn:
    """Say in one line what is wrong, and exit."""
    typer.echo(f"synkhronos: {text}", err=True)
    raise typer.Exit(status)
