"""The commands. Each is a function here that imports what does the work, so that starting is quick.

A further command is one more function with ``@_app.command()``.
"""

from __future__ import annotations

import signal
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, List, Optional

import typer

from ._terminal import fail, prepare_streams, print_json

# Options after the script's or the program's name that are not known here are its own.
_OF_PROGRAM = {"allow_extra_args": True, "ignore_unknown_options": True}
_OF_SCRIPT = {**_OF_PROGRAM, "allow_interspersed_args": False}

_Processes = Annotated[
    Optional[int],
    typer.Option(min=1, metavar="N", help="How many (default: one per GPU, or core)."),
]
_Devices = Annotated[
    Optional[str],
    typer.Option(metavar="LIST", help="'cpu', or Theano's names with commas: cuda0,cuda1."),
]

_app = typer.Typer(
    name="synkhronos",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain text: it is the same on any terminal, and as quick to print.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line and exit with its status."""
    prepare_streams()
    # Whoever ignores it learns no child's exit status, and may have been started so.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _app(prog_name="synkhronos")


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
    """Data-parallel Theano on all cores or GPUs of a machine.

    \b
    synkhronos doctor                 what is missing here, and how to get it
    synkhronos demo intro             the first program
    synkhronos check train.py         is every function of a script exact?
    synkhronos trace train.py         where does the time go?
    synkhronos flight                 what did each rank do before the failure?
    """


@_app.command(short_help="What this machine has and lacks, and how to get it.")
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="List what can be done without root, ask, do it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --fix: do not ask.")] = False,
) -> None:
    """Look at this machine: what is there, what is missing, and how to get it.

    Exits with status 1 if something is broken that is needed for what this machine has: on a
    machine without a GPU nothing for GPUs is. Takes some seconds; the first time on a machine,
    while Theano compiles, up to a minute.

    \b
    synkhronos doctor
    synkhronos doctor --fix           never uses sudo; examines again afterwards
    synkhronos doctor --json | jq .ok
    """
    from ._doctor import examine, print_table
    from ._fix import commands_of, run_fixes

    if yes and not fix:
        fail("--yes goes with --fix")
    report = examine()
    if fix:
        if not json:
            print_table(report)
        if run_fixes(commands_of(report), yes=yes):
            report = examine()
        elif not json:
            raise typer.Exit(1 if report.broken else 0)
    if json:
        print_json(report.as_json())
    else:
        print_table(report)
    raise typer.Exit(1 if report.broken else 0)


@_app.command(context_settings=_OF_PROGRAM)
def demo(
    context: typer.Context,
    name: Annotated[
        Optional[str], typer.Argument(metavar="NAME", help="Which; without it they are listed.")
    ] = None,
    processes: _Processes = None,
    devices: _Devices = None,
    source: Annotated[
        bool, typer.Option("--source", help="Print the program in place of running it.")
    ] = False,
) -> None:
    """Run one of the documented programs, or list them.

    What else is said on the command line goes to the program.

    \b
    synkhronos demo
    synkhronos demo intro --processes 2
    synkhronos demo mnist --model cnn --epochs 3
    synkhronos demo data --source > my_program.py
    """
    from ._demo import list_demos, print_source, run_demo

    if name is None:
        list_demos()
    elif source:
        print_source(name)
    else:
        run_demo(name, processes, devices, context.args)


@_app.command(short_help="What calls and collectives cost here, beside the plain ways.")
def bench(
    name: Annotated[
        Optional[str],
        typer.Argument(metavar="NAME", help="call, scatter, allreduce or scaling; or all of them."),
    ] = None,
    processes: _Processes = None,
    devices: _Devices = None,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    plot: Annotated[
        Optional[str], typer.Option(metavar="FILE", help="Draw the scaling: a .png, .svg, .pdf.")
    ] = None,
) -> None:
    """Measure what this costs here, beside the plain way of doing it. Takes some seconds.

    Each number is the median of several, taken in turns with its peer's.

    \b
    synkhronos bench
    synkhronos bench call --processes 2
    synkhronos bench scaling --plot scaling.png
    """
    from ._bench import run_benchmarks

    raise typer.Exit(run_benchmarks(name, processes, devices, json=json, plot=plot))


@_app.command(
    context_settings=_OF_SCRIPT,
    short_help="Run a script; are its functions exact on any split of rows?",
)
def check(
    context: typer.Context,
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="A program; what follows are its arguments.")
    ],
) -> None:
    """Run a script, and tell at its end whether its functions are exact on any split of rows.

    The script runs as it always does. What is found is told on standard error: a verdict for each
    output of each function that it builds, and what lint finds in its calls and collectives. Exits
    with status 1 if something is wrong; with the script's own status if that fails.

    \b
    synkhronos check train.py --epochs 1
    """
    from ._check import run_check

    run_check(script, context.args)


@_app.command(
    context_settings=_OF_PROGRAM,
    short_help="Run a script, and write what each process did, and when.",
)
def trace(
    context: typer.Context,
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="A program; what follows are its arguments.")
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The timeline, JSON.")
    ] = "trace.json",
    plot: Annotated[
        Optional[str], typer.Option(metavar="FILE", help="Draw it, too: a .png, .svg, .pdf.")
    ] = None,
) -> None:
    """Run a script, and write what each of its processes did, and when.

    Options of the script that have these names come after --.

    \b
    synkhronos trace train.py
    synkhronos trace train.py -o trace.json --plot trace.png --epochs 1
    synkhronos trace train.py -- -o model.npz
    """
    from ._trace import run_trace

    arguments: List[str] = context.args
    raise typer.Exit(run_trace(script, arguments, output, plot))


@_app.command(short_help="What every rank did before the last failure.")
def flight(
    file: Annotated[
        Optional[str],
        typer.Argument(metavar="FILE", help="A record, or its name in --list; or the newest."),
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List the records that there are, newest first.")
    ] = False,
    last: Annotated[
        int, typer.Option("--last", "-n", min=1, metavar="N", help="How many orders to print.")
    ] = 10,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: all that is known.")] = False,
) -> None:
    """Print what every rank did before a failure.

    A program writes a record when a call fails, a worker dies or keeps the others waiting: the
    error, what each rank was doing, its last acts, and its stack if that was asked for. The last
    50 are kept.

    \b
    synkhronos flight
    synkhronos flight --list
    synkhronos flight --json | jq .error
    """
    from ._flight import list_flights, show_flight

    if listing and file is not None:
        fail("--list goes without a FILE")
    if listing:
        list_flights(json=json)
    else:
        show_flight(file, last, json=json)


@_app.command(short_help="Remove what dead processes left behind.")
def clean(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only list what would be removed.")
    ] = False,
    theano_cache: Annotated[
        bool, typer.Option("--theano-cache", help="Remove Theano's compiled modules, too.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Remove what dead processes left behind: segments, socket folders, compile locks.

    What a living process uses, and other users' files, are never touched.

    \b
    synkhronos clean --dry-run
    """
    from ._clean import clean as run_clean

    raise typer.Exit(run_clean(dry_run=dry_run, theano_cache=theano_cache, json=json))
