"""Start another Python in place of this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Mapping, NoReturn, Sequence

from synkhronos_cli._terminal import fail


def script_path(name: str) -> str:
    """Return a script's path, or exit with one line about what is wrong with it."""
    path = Path(name)
    if path.is_dir():
        fail(f"{name} is a folder; expected a Python script")
    if not path.is_file():
        fail(f"no such script: {name}")
    if not os.access(path, os.R_OK):
        fail(f"{name} cannot be read")
    return name


def replace(arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by a Python with these arguments.

    Args:
        arguments: The arguments of ``python``.
        environment: Variables to add to those of this process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, *arguments]
    os.execve(sys.executable, command, {**os.environ, **environment})  # noqa: S606 - no shell


def devices_for_fork(processes: int | None, devices: str | None) -> dict[str, str]:
    """Return the variables from which `fork()` without arguments takes these.

    Exits with one line if devices are named: no variable selects GPUs.
    """
    environment = {}
    if processes is not None:
        environment["SYNKHRONOS_N_PARALLEL"] = str(processes)
    if devices == "cpu":
        environment["SYNKHRONOS_USE_GPU"] = "0"
    elif devices is not None:
        fail(f"--devices {devices}: this program uses all GPUs, or 'cpu'")
    return environment
