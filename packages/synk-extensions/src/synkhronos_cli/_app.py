"""The commands: one function each, which imports the code that does the work.

To add a command, add a function with ``@_app.command()``. click shows no help for arguments: the
function's docstring, which is the help of the command, has it.
"""

from __future__ import annotations

import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Sequence

import click

from ._terminal import console, fail, in_units, prepare_streams, print_json

# Unknown options after the name of a script or a program belong to it.
_OF_PROGRAM: dict[str, Any] = {"ignore_unknown_options": True}
_OF_SCRIPT = {**_OF_PROGRAM, "allow_interspersed_args": False}


def main() -> None:
    """Run the command line and exit with its status."""
    prepare_streams()
    # A process that inherits SIG_IGN for it gets no child's exit status.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # As exceptions they end what was started; a program that replaces this one has them anew.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    _app(prog_name="synkhronos")


def _own_version() -> str:
    try:
        return f"synkhronos {version('synkhronos')}"
    except PackageNotFoundError:
        return "synkhronos, not installed as a package (a folder on PYTHONPATH)"


class _InOrder(click.Group):
    """Lists the commands in the order of this file; suggests `run` for the name of a script."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0].endswith(".py"):
            fail(f"got {args[0]}, expected a command: synkhronos run {args[0]}")
        return super().resolve_command(ctx, args)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_own_version(), message="%(version)s", help="Print the version and exit.")
def _app() -> None:
    """Data-parallel Theano or PyTensor on all cores or GPUs of one or more machines.

    \b
    synkhronos doctor                 find what is missing here, and how to install it
    synkhronos demo intro             run the first program
    synkhronos run train.py           run a script on all ranks of mpiexec or srun
    synkhronos clean                  remove what dead processes left in shared memory
    """


@_app.command(short_help="Show what this machine has and lacks, and how to install it.")
@click.option("--json", is_flag=True, help="Print the report as JSON.")
@click.option("--fix", is_flag=True, help="List the fixes that need no root, ask, and apply them.")
@click.option("--yes", "-y", is_flag=True, help="With --fix: do not ask.")
def doctor(json: bool, fix: bool, yes: bool) -> None:
    """Show what this machine has and lacks, and how to install what is missing.

    Exits with status 1 if something is missing or broken that this machine needs. A machine without
    a GPU needs nothing for GPUs. Takes a few seconds; the first time on a machine, while Theano
    compiles, up to a minute.

    \b
    synkhronos doctor
    synkhronos doctor --fix           never uses sudo; examines the machine again
    synkhronos doctor --json | jq .ok
    """
    from ._doctor import examine
    from ._report import run_fixes

    if yes and not fix:
        fail("--yes needs --fix")
    report = examine()
    if fix:
        if not json:
            report.print_table()
        if run_fixes(report.fixes, yes=yes):
            report = examine()
        elif not json:
            raise click.exceptions.Exit(1 if report.broken else 0)
    if json:
        print_json(report.as_json())
    else:
        report.print_table()
    raise click.exceptions.Exit(1 if report.broken else 0)


@_app.command(context_settings=_OF_PROGRAM)
@click.argument("name", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of processes (default: one per GPU, or core).",
)
@click.option(
    "--devices",
    metavar="LIST",
    help="'cpu', or Theano's device names, separated by commas: cuda0,cuda1.",
)
@click.option("--source", is_flag=True, help="Print the program instead of running it.")
def demo(
    name: str | None,
    arguments: Sequence[str],
    processes: int | None,
    devices: str | None,
    source: bool,
) -> None:
    """Run one of the documented programs, or list them.

    Without NAME, lists all. All other arguments go to the program.

    \b
    synkhronos demo
    synkhronos demo intro --processes 2
    synkhronos demo mnist --model cnn --epochs 3
    synkhronos demo data --source > my_program.py
    """
    from ._programs import list_demos, run_demo

    if name is None:
        list_demos()
    else:
        run_demo(name, processes, devices, arguments, only_source=source)


@_app.command(
    context_settings=_OF_SCRIPT,
    short_help="Run a script on all ranks of mpiexec or srun.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT] [ARGUMENTS]...")
@click.option("-m", "module", metavar="MODULE", help="Run a module in place of a script.")
@click.option(
    "--hosts",
    metavar="LIST",
    help="Start the ranks with mpiexec or srun: a:4,b:4 (host:ranks).",
)
def run(program: Sequence[str], module: str | None, hosts: str | None) -> None:
    """Run a script with all processes that mpiexec or srun has started, on any number of hosts.

    Rank 0 runs the script; in it, fork() makes the other ranks its workers. They do not run the
    script. Without a launcher this is the same as python SCRIPT. The exit status is the script's.

    \b
    mpiexec -n 8 synkhronos run train.py --rate 0.1
    srun -n 8 synkhronos run -m project.train
    synkhronos run --hosts a:4,b:4 train.py
    """
    from ._programs import run_script

    if module is not None:
        program = ["-m", module, *program]
    if not program:
        fail("no SCRIPT: synkhronos run train.py")
    run_script(program, hosts)


@_app.command(short_help="Remove shared memory that dead processes left behind.")
@click.option("--dry-run", "-n", is_flag=True, help="Only list what would be removed.")
@click.option("--json", is_flag=True, help="Print JSON.")
def clean(dry_run: bool, json: bool) -> None:
    """Remove shared memory segments that dead processes of this user left behind.

    Never touches what a living process uses. For Theano's compiled modules and their locks there is
    theano-cache.

    \b
    synkhronos clean --dry-run
    """
    from rich.markup import escape

    try:
        import synk_shm
    except ImportError as error:
        fail(f"clean needs synk-shm, which cannot be imported: {error}", 1)
    stale = {one.name: one.nbytes for one in synk_shm.list() if not one.alive and not one.mine}
    if not dry_run:
        synk_shm.cleanup()
    left = {one.name for one in synk_shm.list()} & set(stale)
    if json:
        found = [
            {"name": name, "nbytes": nbytes, "removed": name not in left}
            for name, nbytes in stale.items()
        ]
        print_json({"dry_run": dry_run, "found": found})
    else:
        out = console()
        for name, nbytes in stale.items():
            did = "would remove" if dry_run else "not removed:" if name in left else "removed"
            out.print(f"{did} segment {escape(name)}, {in_units(nbytes)}")
        if not stale:
            out.print("Nothing is stale.")
    if left and not dry_run:
        raise click.exceptions.Exit(1)
