"""The output of the commands, for any terminal, pipe and locale."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from rich.console import Console

_IN_A_FILE = 1000
"""Columns of output that does not go to a terminal: paths stay in one piece there."""

_UNITS = (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10))


def prepare_streams() -> None:
    """Make printing safe: to a closed stream, and of characters it cannot encode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the process that started this one
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for good
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def console() -> Console:
    """Return a console of rich for standard output."""
    from rich.console import Console

    on_screen = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if on_screen else _IN_A_FILE)


def print_json(value: Any) -> None:
    """Print a value as JSON, without wrapping lines."""
    import json

    click.echo(json.dumps(value, indent=2))


def fail(text: str, status: int = 2) -> NoReturn:
    """Print one line about what is wrong, and exit; 2 is a mistake on the command line."""
    click.echo(f"synkhronos: {text}", err=True)
    raise click.exceptions.Exit(status)


def in_units(size: float) -> str:
    """Return a number of bytes with its unit, for people."""
    for unit, bits in _UNITS:
        number = size / (1 << bits)
        if number >= 1:  # up to 1023, which three digits would round
            return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
    return f"{size:.0f} bytes"
