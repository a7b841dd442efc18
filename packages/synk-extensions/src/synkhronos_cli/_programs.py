"""``synkhronos demo`` and ``run``: start another program in place of this process."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path
from typing import List, Mapping, NamedTuple, NoReturn, Sequence, Tuple

import click
from rich.markup import escape
from rich.table import Table

from ._doctor import OPEN_MPI, family_of
from ._terminal import console, fail

FOLDER = Path(__file__).resolve().parents[1] / "synkhronos_examples"

# Requirements of demos that pip cannot install on every Python.
_ONLY_ON = {
    "theano": "Theano, on Python 3.9 to 3.11",
    "pymc": "PyMC, on Python 3.12 or newer: pip install 'synkhronos[pymc]'",
}


class _Demo(NamedTuple):
    program: str
    shows: str
    needs: Sequence[str] = ()
    defaults: Sequence[str] = ()
    has_options: bool = True
    on_cores_only: bool = False


DEMOS = {
    "intro": _Demo("intro.py", "the whole flow in one screen", has_options=False),
    "shared": _Demo(
        "shared_variables.py", "shared variables of each process, reduced", has_options=False
    ),
    "data": _Demo("demos/demo_2.py", "Data: arrays that all processes share"),
    "batch": _Demo("demos/demo_4.py", "batch=: rows selected before they are scattered"),
    "digits": _Demo(
        "train_digits.py",
        "networks trained on handwritten digits, and proof that each step is the serial one",
        needs=("sklearn",),
        on_cores_only=True,
    ),
    "mnist": _Demo(
        "lasagne_mnist/train_cpu_data.py",
        "a Lasagne network trained on handwritten digits",
        needs=("theano", "lasagne"),
    ),
    "resnet": _Demo(
        "resnet/train_synk.py",
        "a residual network trained on synthetic images (--full: ResNet-50)",
        needs=("theano", "lasagne") if sys.version_info < (3, 12) else (),
        defaults=("--tiny",),
    ),
    "pymc": _Demo(
        "pymc_regression.py",
        "a PyMC model whose rows are divided among all processes",
        needs=("pymc",),
        on_cores_only=True,
    ),
}


def list_demos() -> None:
    """Print each demo's name and subject."""
    out = console()
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, demo in DEMOS.items():
        lacks = f" (needs {', '.join(missing)})" if (missing := _missing(demo)) else ""
        table.add_row(f"[bold]synkhronos demo {name}[/]", escape(demo.shows + lacks))
    out.print(table)
    out.print(f"\nThe source of these and more programs: {escape(str(FOLDER))}", soft_wrap=True)


def run_demo(
    name: str,
    processes: int | None,
    devices: str | None,
    arguments: Sequence[str],
    *,
    only_source: bool,
) -> None:
    """Replace this process by a demo's program, or print its source; or exit with one line."""
    if name not in DEMOS:
        fail(f"no demo {name!r}; there are {', '.join(DEMOS)}")
    demo = DEMOS[name]
    program = FOLDER / demo.program
    if not program.is_file():
        fail(f"{program} is missing: reinstall synkhronos", 1)
    if only_source:
        click.echo(program.read_text(encoding="utf-8"), nl=False)
        return
    if missing := _missing(demo):
        install = f"{', '.join(missing)}: pip install 'synkhronos[examples]'"
        only_on = [_ONLY_ON[module] for module in missing if module in _ONLY_ON]
        fail(f"demo {name} needs {(only_on or [install])[0]}", 1)
    options = list(arguments)
    if options and not demo.has_options:
        fail(f"demo {name} has no option {options[0]}; it has --processes and --devices")
    if "--full" in options and demo.defaults:
        options.remove("--full")
    else:
        options = [*demo.defaults, *options]
    # The program's fork() reads these.
    settings = {} if processes is None else {"SYNKHRONOS_N_PARALLEL": str(processes)}
    if devices == "cpu":
        settings["SYNKHRONOS_USE_GPU"] = "0"
    elif devices is not None and demo.on_cores_only:
        fail(f"--devices {devices}: demo {name} runs on cores")
    elif devices is not None and not demo.has_options:
        fail(f"--devices {devices}: this program uses all GPUs, or 'cpu'")
    elif devices is not None:
        options += ["--devices", devices]
    _replace([sys.executable, str(program), *options], settings)


def _missing(demo: _Demo) -> List[str]:
    return [module for module in demo.needs if importlib.util.find_spec(module) is None]


def run_script(arguments: Sequence[str], hosts: str | None) -> NoReturn:
    """Replace this process by a rank that runs a script (or "-m" and a module) with its arguments,
    or by the launcher of such ranks on hosts, as in "a:4,b:4"."""
    command = [sys.executable, "-m", "synkhronos._running", *arguments]
    if hosts is not None:
        parsed = []
        for part in hosts.split(","):
            match = re.fullmatch(r"(\w[\w.-]*)(?::([1-9]\d*))?", part.strip())
            if match is None:
                fail(f"--hosts {hosts}: got {part!r}, expected a host and its ranks, as in a:4")
            parsed.append((match[1], int(match[2] or 1)))
        command = [*launcher_command(parsed), *command]
        click.echo(f"+ {' '.join(command)}", err=True)
    elif (name := arguments[0]) != "-m":
        if Path(name).is_dir():
            fail(f"{name} is a folder; expected a Python script")
        if not Path(name).is_file():
            fail(f"no such script: {name}")
        if not os.access(name, os.R_OK):
            fail(f"{name} cannot be read")
    _replace(command, {})


def launcher_command(hosts: Sequence[Tuple[str, int]]) -> List[str]:
    """Return the command that starts ranks on these hosts, up to the program."""
    count = str(sum(ranks for _, ranks in hosts))
    if os.environ.get("SLURM_JOB_ID") and shutil.which("srun"):
        each = {ranks for _, ranks in hosts}
        if len(each) > 1:
            fail("--hosts: in a Slurm job each host needs as many ranks as the others")
        names = ",".join(name for name, _ in hosts)
        per_host = f"--ntasks-per-node={each.pop()}"
        return ["srun", "--kill-on-bad-exit=1", f"--nodelist={names}", per_host, "-n", count]
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        fail("--hosts: there is no mpiexec on PATH; pip install mpich, or use the site's MPI")
    listed = ",".join(f"{name}:{ranks}" for name, ranks in hosts)
    family, version = family_of(mpiexec)
    if not family:
        fail(
            f"--hosts: {mpiexec} is neither MPICH's nor Open MPI's ({version}); start the ranks as "
            f"this cluster does: {os.path.basename(mpiexec)} -n {count} synkhronos run ..."
        )
    if family == OPEN_MPI:
        # Without binding: each rank would get one core.
        return [mpiexec, "--host", listed, "-n", count, "--with-ft", "ulfm", "--bind-to", "none"]
    return [mpiexec, "-hosts", listed, "-n", count]


def _replace(command: List[str], settings: Mapping[str, str]) -> NoReturn:
    """Replace this process by a program, with these variables added to its environment."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(command[0], command, {**os.environ, **settings})  # noqa: S606 - no shell
