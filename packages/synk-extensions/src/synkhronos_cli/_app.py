"""The commands. Each is a function here that imports what does the work, so that starting is quick.

A further command is one more function with ``@_app.command()``.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

_app = typer.Typer(
    name="synkhronos",
    help="Data-parallel Theano on all cores or GPUs of a machine.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line and exit with its status."""
    _app()


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"synkhronos {version('synkhronos')}")
        except PackageNotFoundError:
            typer.echo("synkhronos, not installed as a package (a folder on PYTHONPATH)")
        raise typer.Exit


@_app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Data-parallel Theano on all cores or GPUs of a machine."""


@_app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Look at this machine: what is there, what is missing, and how to get it.

    Exits with status 1 if something is broken that is needed for what this machine has: on a
    machine without a GPU nothing for GPUs is. Takes some seconds; the first time on a machine,
    while Theano compiles, up to a minute.
    """
    from ._doctor import examine, print_json, print_table

    report = examine()
    if json:
        print_json(report)
    else:
        print_table(report)
    raise typer.Exit(1 if report.broken else 0)
