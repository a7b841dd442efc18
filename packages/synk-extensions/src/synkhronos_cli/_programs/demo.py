"""``synkhronos demo``: run, print or list the documented programs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple, Sequence

import click
from rich.markup import escape
from rich.table import Table

from synkhronos_cli._terminal import console, fail

from .launch import devices_for_fork, replace

FOLDER = Path(__file__).resolve().parents[2] / "synkhronos_examples"


# What demos need that pip cannot bring to every Python.
_ONLY_ON = {
    "theano": "Theano, on Python 3.9 to 3.11",
    "pymc": "PyMC, on Python 3.12 or newer: pip install 'synkhronos[pymc]'",
}


class _Demo(NamedTuple):
    program: str
    shows: str
    needs: Sequence[str] = ()
    # Programs without options are configured by environment variables.
    has_options: bool = True
    on_cores_only: bool = False
    defaults: Sequence[str] = ()


DEMOS = {
    "intro": _Demo("intro.py", "the whole flow in one screen", has_options=False),
    "shared": _Demo(
        "shared_variables.py", "shared variables of each process, reduced", has_options=False
    ),
    "gpu": _Demo(
        "demos/check_gpu.py",
        "is the GPU used? the program of Theano's tutorial",
        needs=("theano",),
    ),
    "data": _Demo("demos/demo_2.py", "Data: arrays that all processes share"),
    "batch": _Demo("demos/demo_4.py", "batch=: rows selected before they are scattered"),
    "digits": _Demo(
        "train_digits.py",
        "networks trained on handwritten digits, and proof that each step is the serial one",
        needs=("sklearn", "threadpoolctl"),
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
        needs=("theano", "lasagne"),
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


def print_source(name: str) -> None:
    """Print a demo's program."""
    click.echo(_program(_find(name)).read_text(encoding="utf-8"), nl=False)


def run_demo(
    name: str, processes: int | None, devices: str | None, arguments: Sequence[str]
) -> None:
    """Replace this process by a demo's program; exit with one line if it cannot run."""
    demo = _find(name)
    missing = _missing(demo)
    for module in missing:
        if module in _ONLY_ON:
            fail(f"demo {name} needs {_ONLY_ON[module]}", 1)
    if missing:
        fail(f"demo {name} needs {', '.join(missing)}: pip install 'synkhronos[examples]'", 1)
    program, options = _program(demo), list(arguments)
    if not demo.has_options:
        if options:
            fail(f"demo {name} has no option {options[0]}; it has --processes and --devices")
        replace([str(program)], devices_for_fork(processes, devices))
    if "--full" in options and demo.defaults:
        options.remove("--full")
    else:
        options = [*demo.defaults, *options]
    if processes is not None:
        options += ["--processes", str(processes)]
    if demo.on_cores_only:
        if devices not in (None, "cpu"):
            fail(f"--devices {devices}: demo {name} runs on cores")
    elif devices is not None:
        options += ["--devices", devices]
    replace([str(program), *options], {})


def _missing(demo: _Demo) -> list[str]:
    return [module for module in demo.needs if importlib.util.find_spec(module) is None]


def _find(name: str) -> _Demo:
    if name not in DEMOS:
        fail(f"no demo {name!r}; there are {', '.join(DEMOS)}")
    return DEMOS[name]


def _program(demo: _Demo) -> Path:
    path = FOLDER / demo.program
    if not path.is_file():
        fail(f"{path} is missing: reinstall synkhronos", 1)
    return path
