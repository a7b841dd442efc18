"""The commands: one function each, which imports the code that does the work.

To add a command, add a function with ``@_app.command()``.
"""

from __future__ import annotations

import signal
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, List, Optional

import typer

from ._terminal import fail, prepare_streams, print_json

# Unknown options after the name of a script or a program belong to it.
_OF_PROGRAM = {"allow_extra_args": True, "ignore_unknown_options": True}
_OF_SCRIPT = {**_OF_PROGRAM, "allow_interspersed_args": False}

_Processes = Annotated[
    Optional[int],
    typer.Option(min=1, metavar="N", help="Number of processes (default: one per GPU, or core)."),
]
_Devices = Annotated[
    Optional[str],
    typer.Option(
        metavar="LIST", help="'cpu', or Theano's device names, separated by commas: cuda0,cuda1."
    ),
]

_app = typer.Typer(
    name="synkhronos",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain text looks the same on any terminal, and needs no import of rich.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line and exit with its status."""
    prepare_streams()
    # A process that inherits SIG_IGN for it gets no child's exit status.
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
    """Data-parallel Theano or PyTensor on all cores or GPUs of one or more machines.

    \b
    synkhronos doctor                 find what is missing here, and how to install it
    synkhronos demo intro             run the first program
    synkhronos run train.py           run a script on all ranks of mpiexec or srun
    synkhronos check train.py         is every function of a script exact?
    synkhronos trace train.py         where does the time go?
    synkhronos flight                 what did each rank do before the failure?
    """


@_app.command(short_help="Show what this machine has and lacks, and how to install it.")
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="List the fixes that need no root, ask, and apply them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --fix: do not ask.")] = False,
) -> None:
    """Show what this machine has and lacks, and how to install what is missing.

    Exits with status 1 if something is missing or broken that this machine needs. A machine without
    a GPU needs nothing for GPUs. Takes a few seconds; the first time on a machine, while Theano
    compiles, up to a minute.

    \b
    synkhronos doctor
    synkhronos doctor --fix           never uses sudo; examines the machine again
    synkhronos doctor --json | jq .ok
    """
    from ._doctor.examine import examine, print_table
    from ._doctor.fix import commands_of, run_fixes

    if yes and not fix:
        fail("--yes needs --fix")
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
        Optional[str],
        typer.Argument(metavar="NAME", help="The demo (default: list all)."),
    ] = None,
    processes: _Processes = None,
    devices: _Devices = None,
    source: Annotated[
        bool, typer.Option("--source", help="Print the program instead of running it.")
    ] = False,
) -> None:
    """Run one of the documented programs, or list them.

    All other arguments go to the program.

    \b
    synkhronos demo
    synkhronos demo intro --processes 2
    synkhronos demo mnist --model cnn --epochs 3
    synkhronos demo data --source > my_program.py
    """
    from ._programs.demo import list_demos, print_source, run_demo

    if name is None:
        list_demos()
    elif source:
        print_source(name)
    else:
        run_demo(name, processes, devices, context.args)


@_app.command(short_help="Measure calls and collectives against plain alternatives.")
def bench(
    name: Annotated[
        Optional[str],
        typer.Argument(metavar="NAME", help="call, scatter, allreduce or scaling (default: all)."),
    ] = None,
    processes: _Processes = None,
    devices: _Devices = None,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    plot: Annotated[
        Optional[str],
        typer.Option(metavar="FILE", help="Plot the scaling to a .png, .svg or .pdf."),
    ] = None,
) -> None:
    """Measure calls and collectives here, and compare them with plain alternatives.

    Each number is the median of several rounds, in which all columns take turns. Takes some ten
    seconds for each benchmark.

    \b
    synkhronos bench
    synkhronos bench call --processes 2
    synkhronos bench scaling --plot scaling.png
    """
    from ._programs.bench import run_benchmarks

    raise typer.Exit(run_benchmarks(name, processes, devices, json=json, plot=plot))


@_app.command(
    context_settings=_OF_SCRIPT,
    short_help="Run a script on all ranks of mpiexec or srun.",
)
def run(
    context: typer.Context,
    script: Annotated[
        Optional[str],
        typer.Argument(metavar="SCRIPT", help="The program; what follows are its arguments."),
    ] = None,
    module: Annotated[
        Optional[str],
        typer.Option("-m", metavar="MODULE", help="Run a module in place of a script."),
    ] = None,
    hosts: Annotated[
        Optional[str],
        typer.Option(
            metavar="LIST", help="Start the ranks with mpiexec or srun: a:4,b:4 (host:ranks)."
        ),
    ] = None,
) -> None:
    """Run a script with all processes that mpiexec or srun has started, on any number of hosts.

    Rank 0 runs the script; in it, fork() makes the other ranks its workers. They do not run the
    script. Without a launcher this is the same as python SCRIPT. The exit status is the script's.

    \b
    mpiexec -n 8 synkhronos run train.py --rate 0.1
    srun -n 8 synkhronos run -m project.train
    synkhronos run --hosts a:4,b:4 train.py
    """
    from ._programs.run import run_script, start_on

    program = ["-m", module] if module is not None else []
    arguments = [*([script] if script is not None else []), *context.args]
    if not program and not arguments:
        fail("no SCRIPT: synkhronos run train.py")
    if hosts is not None:
        start_on(hosts, [*program, *arguments])
    run_script([*program, *arguments])


@_app.command(
    context_settings=_OF_SCRIPT,
    short_help="Run a script, and report which of its functions are exact.",
)
def check(
    context: typer.Context,
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="The program; what follows are its arguments.")
    ],
) -> None:
    """Run a script, and report at its end whether its functions are exact on any split of rows.

    The script runs as usual. The report goes to standard error: a verdict for each output of each
    function that the script builds, and lint's findings in its calls and collectives. Exits with
    status 1 if something is wrong, or with the script's own status if the script fails.

    \b
    synkhronos check train.py --epochs 1
    """
    from ._programs.script import run_check

    run_check(script, context.args)


@_app.command(
    context_settings=_OF_PROGRAM,
    short_help="Run a script, and write a timeline of all its processes.",
)
def trace(
    context: typer.Context,
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="The program; what follows are its arguments.")
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The timeline (JSON).")
    ] = "trace.json",
    plot: Annotated[
        Optional[str], typer.Option(metavar="FILE", help="Also plot it to a .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Run a script, and write a timeline: what each of its processes did, and when.

    Options of the script that have the same names as these come after --.

    \b
    synkhronos trace train.py
    synkhronos trace train.py -o trace.json --plot trace.png --epochs 1
    synkhronos trace train.py -- -o model.npz
    """
    from ._programs.script import run_trace

    arguments: List[str] = context.args
    raise typer.Exit(run_trace(script, arguments, output, plot))


@_app.command(short_help="Show what every rank did before the last failure.")
def flight(
    file: Annotated[
        Optional[str],
        typer.Argument(
            metavar="FILE", help="A record, or its name in --list (default: the newest)."
        ),
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List all records, newest first.")
    ] = False,
    last: Annotated[
        int, typer.Option("--last", "-n", min=1, metavar="N", help="Number of orders to print.")
    ] = 10,
    json: Annotated[bool, typer.Option("--json", help="Print the whole record as JSON.")] = False,
) -> None:
    """Show what every rank did before a failure.

    A program writes a record when a call fails, or a worker dies or keeps the others waiting: the
    error, each rank's state and last acts, and its stack if that was requested. The last 50
    records are kept.

    \b
    synkhronos flight
    synkhronos flight --list
    synkhronos flight --json | jq .error
    """
    from ._flight.show import list_flights, show_flight

    if listing and file is not None:
        fail("--list takes no FILE")
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
        bool, typer.Option("--theano-cache", help="Also remove Theano's compiled modules.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Remove what dead processes left behind: segments, socket folders, compile locks.

    Never touches what a living process uses, nor other users' files.

    \b
    synkhronos clean --dry-run
    """
    from ._clean.command import run_clean

    raise typer.Exit(run_clean(dry_run=dry_run, theano_cache=theano_cache, json=json))
